//! Sleepers on a window whose file is replaced under them.
//!
//! futex(2) knows a sleeper on shared memory by the file behind the word, not by the address. When a mapping is made to
//! show another file (the process behind the window was swapped out, or moved to another card), whoever sleeps on the old
//! file would never be woken by somebody who counts up in the new one. They have to be woken once, to go to sleep again on
//! the new file; and one who is about to sleep, and has found the old file already, must not be missed.
//!
//! Each sleeper therefore counts itself in, in the counter of the present epoch. A replacement begins a new epoch once the
//! new file is mapped, and wakes until the counter of the old one has fallen to zero: whoever counts itself in afterwards
//! finds the new file.

use crate::futex::{self, Scope};
use std::sync::atomic::{AtomicU32, Ordering};

/// Who sleeps on the words of a mapping, in this process.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    epoch: AtomicU32,
    /// Sleepers of the present epoch and of the one before, by the epoch's last bit.
    asleep: [AtomicU32; 2],
}

impl Moves {
    /// Sleeps while `word` holds `expected`, until woken. May return early.
    pub(crate) fn sleep(&self, word: &AtomicU32, expected: u32) {
        let counter = loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let counter = &self.asleep[(epoch & 1) as usize];
            counter.fetch_add(1, Ordering::SeqCst);
            if self.epoch.load(Ordering::SeqCst) == epoch {
                break counter;
            }
            counter.fetch_sub(1, Ordering::SeqCst);
        };
        futex::wait(word, Scope::Shared, expected);
        counter.fetch_sub(1, Ordering::SeqCst);
    }

    /// After another file was mapped: wakes all who may sleep on the old one, by calling `wake` until they have gone.
    /// Replacements come one at a time.
    pub(crate) fn rouse(&self, wake: impl Fn()) {
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst);
        let counter = &self.asleep[(epoch & 1) as usize];
        while counter.load(Ordering::SeqCst) != 0 {
            wake();
            // They need the processor to go.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::window::{Mapping, SharedFile};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    fn file() -> SharedFile {
        SharedFile::create_in(Path::new("/dev/shm"), 1 << 20).unwrap()
    }

    /// Sleeps until the word differs from `seen`; gives its value.
    fn await_change(map: &Mapping, seen: u32) -> u32 {
        loop {
            let word = map.atomic(64).unwrap();
            let value = word.load(Ordering::SeqCst);
            if value != seen {
                return value;
            }
            map.sleep(word, value);
        }
    }

    #[test]
    fn sleepers_follow_the_window_to_another_file() {
        let mut files = vec![file()];
        let map = Arc::new(files[0].map(None).unwrap());
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (map, stop, rounds) = (map.clone(), stop.clone(), rounds.clone());
                std::thread::spawn(move || {
                    let mut seen = 0;
                    while !stop.load(Ordering::SeqCst) {
                        seen = await_change(&map, seen);
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for round in 1..300_u32 {
            let next = file();
            let old = files.last().unwrap().map(None).unwrap();
            // What the others look at stays what it was.
            next.map(None)
                .unwrap()
                .atomic(64)
                .unwrap()
                .store(round - 1, Ordering::SeqCst);
            map.show(&next, &old, &[64]).unwrap();
            files.push(next);
            // Somebody else counts up in the new file, and wakes who sleeps on that.
            let other = files.last().unwrap().map(None).unwrap();
            let before = rounds.load(Ordering::SeqCst);
            other.atomic(64).unwrap().store(round, Ordering::SeqCst);
            crate::futex::wake_all(other.atomic(64).unwrap(), crate::futex::Scope::Shared);
            while rounds.load(Ordering::SeqCst) < before + 4 {
                std::thread::yield_now();
            }
        }
        stop.store(true, Ordering::SeqCst);
        map.atomic(64).unwrap().store(u32::MAX, Ordering::SeqCst);
        crate::futex::wake_all(map.atomic(64).unwrap(), crate::futex::Scope::Shared);
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_shorter_file_leaves_the_rest_without_access() {
        let map = file().map(None).unwrap();
        let old = file().map(None).unwrap();
        let short = SharedFile::create_in(Path::new("/dev/shm"), 8192).unwrap();
        short.map(None).unwrap().write(100, b"here").unwrap();
        map.show(&short, &old, &[]).unwrap();
        let mut got = [0; 4];
        map.read(100, &mut got).unwrap();
        assert_eq!(&got, b"here");
        let start = map.address() + 8192;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let rest = maps
            .lines()
            .find(|line| line.starts_with(&format!("{start:x}-")))
            .unwrap();
        assert!(rest.contains("---p"), "{rest}");
        let long = file();
        map.show(&long, &old, &[]).unwrap();
        map.write(1 << 19, b"there").unwrap();
    }
}
