//! Memory of running processes as seen from outside: independent copies, to compare what a restart brings back with.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;

/// A part of a process's address space, in which there are no holes.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Where it begins.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
}

/// What was in a region at a moment.
#[derive(Clone)]
pub struct MemoryCopy {
    /// Of its mappings, one after the other.
    protections: Vec<String>,
    bytes: Vec<u8>,
}

impl Region {
    /// The next two numbers of what a program has said.
    #[must_use]
    pub fn told<'a>(words: &mut impl Iterator<Item = &'a str>) -> Self {
        let mut number = || words.next()?.parse().ok();
        Self {
            start: number().expect("an address"),
            bytes: number().expect("a size"),
        }
    }

    /// Copies what is there in process `pid` now, by `/proc/PID/mem`.
    #[must_use]
    pub fn copy(self, pid: i32) -> MemoryCopy {
        let mut bytes = vec![0; self.bytes as usize];
        let file = File::open(format!("/proc/{pid}/mem")).expect("open its memory");
        file.read_exact_at(&mut bytes, self.start)
            .expect("read its memory");
        let maps = File::open(format!("/proc/{pid}/maps")).expect("open its mappings");
        let lines = BufReader::new(maps).lines().map_while(Result::ok);
        let mut protections = Vec::new();
        for line in lines {
            let start = u64::from_str_radix(line.split('-').next().unwrap_or_default(), 16);
            let start = start.expect("an address");
            if (self.start..self.start + self.bytes).contains(&start) {
                protections.extend(line.split_whitespace().nth(1).map(str::to_owned));
            }
        }
        // Mappings next to each other may be one or several.
        protections.dedup();
        MemoryCopy { protections, bytes }
    }
}

impl MemoryCopy {
    /// Fails unless every byte is that of `copy`; `what` is for the message.
    pub fn expect_is(&self, copy: &Self, what: &str) {
        assert_eq!(self.protections, copy.protections, "mappings of {what}");
        assert_eq!(self.bytes.len(), copy.bytes.len(), "length of {what}");
        let pages = self.bytes.chunks(4096).zip(copy.bytes.chunks(4096));
        let wrong: Vec<usize> = pages
            .enumerate()
            .filter(|(_, (found, copy))| found != copy)
            .map(|(page, _)| page)
            .collect();
        assert!(wrong.is_empty(), "pages {wrong:?} of {what} are wrong");
    }
}
