//! Waiting on a word of memory (futex(2)).

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use std::sync::atomic::AtomicU32;

/// Who may wait on a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Threads of this process only.
    Private,
    /// All processes that map the memory.
    Shared,
}

impl Scope {
    fn flags(self) -> Flags {
        match self {
            Self::Private => Flags::PRIVATE,
            Self::Shared => Flags::empty(),
        }
    }
}

/// Sleeps while the word holds `expected`, until woken. May return early: callers look at the word again.
pub fn wait(word: &AtomicU32, scope: Scope, expected: u32) {
    match futex::wait(word, scope.flags(), expected, None) {
        // EAGAIN: the word had changed already. EINTR: a signal, or the process was stopped and went on.
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
        // Nothing else can happen to an aligned word in mapped memory, except that its file was truncated by
        // someone (EFAULT): looking again is all that can be done, and not in a tight loop.
        Err(_) => std::thread::yield_now(),
    }
}

/// Wakes all who wait on the word.
pub fn wake_all(word: &AtomicU32, scope: Scope) {
    // Fails only for an address that is not mapped.
    let _ = futex::wake(word, scope.flags(), i32::MAX.cast_unsigned());
}
