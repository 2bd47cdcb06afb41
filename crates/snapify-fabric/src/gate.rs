//! A gate that many threads pass and that one can close.
//!
//! Passing costs two uncontended atomic operations. The pause protocol closes gates to drain what is in
//! flight (paper 1, section 4.1: the locks around transfers and around the two send functions of a pipeline).

use crate::futex::{self, Scope};
use std::sync::atomic::{AtomicU32, Ordering};

/// Set in the word while the gate is closed; the other bits count who is inside.
const CLOSED: u32 = 1 << 31;

/// The gate; open at first.
#[derive(Debug, Default)]
pub struct Gate {
    word: AtomicU32,
}

/// Proof of having passed the gate; leaves when dropped. Passing a second time while holding one can deadlock.
#[derive(Debug)]
#[must_use]
pub struct Inside<'a> {
    gate: &'a Gate,
}

impl Gate {
    /// Makes an open gate.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
        }
    }

    /// Passes the gate; waits while it is closed.
    pub fn enter(&self) -> Inside<'_> {
        loop {
            // All changes of the word are read-modify-write, so this one comes either before the closing,
            // which then waits for us, or after it, and sees it.
            if self.word.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
                return Inside { gate: self };
            }
            self.leave();
            self.wait_open();
        }
    }

    /// Passes the gate if it is open.
    pub fn try_enter(&self) -> Option<Inside<'_>> {
        if self.word.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            return Some(Inside { gate: self });
        }
        self.leave();
        None
    }

    /// Waits until the gate is open. It may be closed again by the time that the caller goes on.
    pub fn wait_open(&self) {
        let mut seen = self.word.load(Ordering::Relaxed);
        while seen & CLOSED != 0 {
            futex::wait(&self.word, Scope::Private, seen);
            seen = self.word.load(Ordering::Relaxed);
        }
    }

    /// Whether the gate is closed just now.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Passes two gates, and waits for one that is closed only outside of the other: it may stay closed for long, and
    /// whoever wants to close the other must not wait for that.
    pub fn enter_both<'a>(first: &'a Gate, second: &'a Gate) -> (Inside<'a>, Inside<'a>) {
        loop {
            let inside = first.enter();
            if let Some(both) = second.try_enter() {
                return (inside, both);
            }
            drop(inside);
            second.wait_open();
        }
    }

    /// Closes the gate and waits until nobody is inside.
    pub fn close(&self) {
        let mut seen = self.word.fetch_or(CLOSED, Ordering::Acquire) | CLOSED;
        while seen != CLOSED {
            futex::wait(&self.word, Scope::Private, seen);
            seen = self.word.load(Ordering::Acquire);
        }
    }

    /// Opens the gate. Does nothing to an open one.
    pub fn open(&self) {
        self.word.fetch_and(!CLOSED, Ordering::Release);
        futex::wake_all(&self.word, Scope::Private);
    }

    fn leave(&self) {
        if self.word.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            futex::wake_all(&self.word, Scope::Private);
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn who_waits_for_one_gate_does_not_keep_the_other_from_closing() {
        let gates = Arc::new((Gate::new(), Gate::new()));
        gates.1.close();
        let entered = Arc::new(AtomicBool::new(false));
        let thread = {
            let (gates, entered) = (gates.clone(), entered.clone());
            std::thread::spawn(move || {
                let both = Gate::enter_both(&gates.0, &gates.1);
                entered.store(true, Ordering::SeqCst);
                drop(both);
            })
        };
        for _ in 0..1000 {
            gates.0.close();
            assert!(!entered.load(Ordering::SeqCst) && gates.0.try_enter().is_none());
            gates.0.open();
            std::thread::yield_now();
        }
        gates.1.open();
        thread.join().unwrap();
        assert!(entered.load(Ordering::SeqCst) && !gates.1.is_closed());
    }

    #[test]
    fn nobody_is_inside_while_it_is_closed() {
        let gate = Arc::new(Gate::new());
        let inside = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let passes = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (gate, inside, stop, passes) =
                    (gate.clone(), inside.clone(), stop.clone(), passes.clone());
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let guard = gate.enter();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                        passes.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // The threads have to be there before it means anything that they are kept out.
        while passes.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..2000 {
            gate.close();
            let before = passes.load(Ordering::SeqCst);
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            std::thread::yield_now();
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            // Threads that were past the gate may still count, those before it may not.
            assert!(passes.load(Ordering::SeqCst) <= before + 4);
            gate.open();
        }
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
