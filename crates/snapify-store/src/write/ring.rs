//! A bounded queue between two stages: what is put in out of order comes out in order.
//!
//! This is the double ring buffer of Shen et al., "A Parallel Compression Checkpointing" (section III.B): a place in it is empty or
//! ready, the stage before waits for an empty one, the stage behind for the first to be ready.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Items that are numbered from 0 without gaps.
pub(super) struct Ring<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    places: usize,
}

struct State<T> {
    /// Number of the item that comes out next; its place is the first.
    first: u64,
    /// The items from there on, as far as they are ready.
    ready: VecDeque<Option<T>>,
    /// How many items there are, once that is known.
    end: Option<u64>,
    stopped: bool,
}

impl<T> Ring<T> {
    /// A ring with `places` places; at least one.
    pub(super) fn new(places: usize) -> Self {
        Self {
            state: Mutex::new(State {
                first: 0,
                ready: VecDeque::new(),
                end: None,
                stopped: false,
            }),
            changed: Condvar::new(),
            places: places.max(1),
        }
    }

    /// Puts in item `number`, once there is a place for it. The item comes back if all has been stopped.
    pub(super) fn put(&self, number: u64, item: T) -> Result<(), T> {
        let far = |state: &mut State<T>| {
            !state.stopped && number.saturating_sub(state.first) >= self.places as u64
        };
        let mut state = self.wait_while(far);
        if state.stopped {
            return Err(item);
        }
        let place = (number - state.first) as usize;
        while state.ready.len() <= place {
            state.ready.push_back(None);
        }
        state.ready[place] = Some(item);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Takes out the next item, once it is ready. `None` after the last one, or if all has been stopped.
    pub(super) fn take(&self) -> Option<(u64, T)> {
        let early = |state: &mut State<T>| {
            !state.stopped
                && state.end.is_none_or(|end| state.first < end)
                && !matches!(state.ready.front(), Some(Some(_)))
        };
        let mut state = self.wait_while(early);
        if state.stopped {
            return None;
        }
        let item = state.ready.pop_front().flatten()?;
        let number = state.first;
        state.first += 1;
        drop(state);
        self.changed.notify_all();
        Some((number, item))
    }

    /// Tells that there are `end` items.
    pub(super) fn finish(&self, end: u64) {
        self.lock().end = Some(end);
        self.changed.notify_all();
    }

    /// Lets everybody go.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl FnMut(&mut State<T>) -> bool) -> MutexGuard<'_, State<T>> {
        self.changed
            .wait_while(self.lock(), condition)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    #[test]
    fn what_goes_in_out_of_order_comes_out_in_order() {
        let ring = Ring::new(3);
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= 500 {
                            return;
                        }
                        ring.put(number, number * 2).unwrap();
                    }
                });
            }
            ring.finish(500);
            for number in 0..500 {
                assert_eq!(ring.take(), Some((number, number * 2)));
            }
            assert_eq!(ring.take(), None);
        });
    }

    #[test]
    fn stopping_lets_everybody_go() {
        let (ring, other) = (Ring::new(1), Ring::<char>::new(1));
        thread::scope(|scope| {
            ring.put(0, 'a').unwrap();
            let full = scope.spawn(|| ring.put(1, 'b'));
            let empty = scope.spawn(|| other.take());
            other.stop();
            ring.stop();
            assert_eq!(full.join().unwrap(), Err('b'));
            assert_eq!(empty.join().unwrap(), None);
        });
    }
}
