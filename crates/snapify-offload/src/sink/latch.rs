//! Something that happens once, and that others wait for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Closed at first; once open it stays so.
#[derive(Debug, Default)]
pub struct Latch {
    /// The same as `state`, to be looked at without the lock: each run function does.
    open: AtomicBool,
    state: Mutex<bool>,
    opened: Condvar,
}

impl Latch {
    /// Lets all pass that wait, and all that come.
    pub fn open(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.open.store(true, Ordering::Release);
        self.opened.notify_all();
    }

    /// Waits until it is open.
    pub fn wait(&self) {
        if self.open.load(Ordering::Acquire) {
            return;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(state, |open| !*open));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn all_wait_until_it_is_open_and_none_afterwards() {
        let latch = Arc::new(Latch::default());
        let passed = Arc::new(AtomicBool::new(false));
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let (latch, passed) = (latch.clone(), passed.clone());
                std::thread::spawn(move || {
                    latch.wait();
                    passed.load(Ordering::SeqCst)
                })
            })
            .collect();
        passed.store(true, Ordering::SeqCst);
        latch.open();
        for thread in waiting {
            assert!(thread.join().unwrap(), "it passed before");
        }
        latch.wait();
    }
}
