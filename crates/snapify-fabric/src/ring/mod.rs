//! Command rings: requests and answers in a window, for one client and one server process.
//!
//! ```text
//! 0         64        128       192       256              4096                               length
//! |         | submit  |         | complete|         |  ... | record | record | ...   | wrap |      |
//! |         | word    |         | word    |         |      |                                       |
//! ```
//!
//! The client writes a record and counts the submit word up; the server serves records in order, writes its
//! answer over the request in the same record, and counts the complete word up. Bit 0 of both words says that
//! the ring is closed, the upper 30 bits count, modulo 2^30. Who finds nothing to do spins for a moment, sets bit 1
//! and then sleeps on the word (futex(2)) with that bit in it; who counts up and finds the bit set clears it and
//! wakes. A bit of the word itself and not a flag beside it: whatever clears it changes the word, and the kernel lets
//! nobody fall asleep on a word that is not what it was.
//!
//! Both sides keep their positions in their own memory. What stands in the shared memory is checked before it
//! is used as a length or an offset: a damaged peer yields [`RingError::Damaged`], nothing worse.

mod client;
mod server;

pub use client::{Reply, RingClient, Ticket};
pub use server::{Request, RingServer};

use crate::futex::{self, Scope};
use crate::window::{Mapping, WindowError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Most bytes in a request or an answer.
pub const MAX_PAYLOAD: usize = 32 * 1024;

/// Bytes of a ring before its records.
const HEADER: u64 = 4096;

/// Smallest length of a ring: two of the largest records always fit, so that there is always one more.
pub const MIN_BYTES: u64 = HEADER + 2 * record_bytes(MAX_PAYLOAD as u64) + ALIGN;

/// Places of the words in the header, each on a cache line of its own.
mod place {
    pub const SUBMITTED: u64 = 64;
    /// On the line of the word that is written next.
    pub const CLIENT_CPU: u64 = SUBMITTED + 4;
    pub const COMPLETED: u64 = 192;
    pub const SERVER_CPU: u64 = COMPLETED + 4;
}

/// Bit of the count words: the ring is closed.
const CLOSED: u32 = 1;
/// Bit of the count words: somebody sleeps, or is about to.
const SLEEPER: u32 = 2;
/// What one record adds to a count word.
const ONE: u32 = 4;
/// Sequence numbers are counted modulo one more than this.
const SEQUENCE: u32 = u32::MAX / ONE;

/// Records start at multiples of this.
const ALIGN: u64 = 64;
/// Bytes of a record's head.
const HEAD: u64 = 32;
/// Kind of the record that says: go on at the start.
const WRAP: u32 = u32::MAX;

/// Bytes that a record with room for `payload` bytes takes.
const fn record_bytes(payload: u64) -> u64 {
    (HEAD + payload).next_multiple_of(ALIGN)
}

/// Using a ring failed.
#[derive(thiserror::Error, Debug)]
pub enum RingError {
    /// The ring was closed, by this side or the other.
    #[error("the ring is closed")]
    Closed,
    /// What the other side wrote makes no sense.
    #[error("{0}")]
    Damaged(String),
    /// A request is larger than [`MAX_PAYLOAD`].
    #[error("a request of {bytes} bytes is larger than a ring takes")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The ring does not lie in its window.
    #[error(transparent)]
    Window(#[from] WindowError),
}

/// How long to look for work before sleeping. Looking costs a core that others may need; waking costs a few
/// microseconds of latency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spin {
    /// Keep the core for so long.
    pub busy: Duration,
    /// Then offer it to others between looks for so long, unless there are any.
    pub yielding: Duration,
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            busy: Duration::from_micros(4),
            yielding: Duration::from_micros(50),
        }
    }
}

/// A yield that takes longer than this has let somebody else run.
const YIELDED: Duration = Duration::from_micros(3);

/// After looking in vain, so many times the waiting side sleeps at once before it looks again.
const DISCOURAGED: u32 = 15;

/// Remembers whether looking was worth while: what took long the last time mostly does the next time.
#[derive(Debug, Default)]
struct Patience(AtomicU32);

impl Patience {
    /// Whether to look before sleeping this time.
    fn looks(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// It looked in vain.
    fn lose(&self) {
        self.0.store(DISCOURAGED, Ordering::Relaxed);
    }
}

/// The ring's place in its window.
#[derive(Clone, Debug)]
struct Shared {
    window: Arc<Mapping>,
    start: u64,
    /// Bytes for records.
    room: u64,
}

impl Shared {
    fn new(window: Arc<Mapping>, start: u64, bytes: u64) -> Result<Self, RingError> {
        window.range(start, bytes)?;
        if bytes < MIN_BYTES || !start.is_multiple_of(ALIGN) {
            return Err(WindowError::OutOfBounds {
                offset: start,
                bytes,
            }
            .into());
        }
        let room = (bytes - HEADER) / ALIGN * ALIGN;
        Ok(Self {
            window,
            start,
            room,
        })
    }

    /// One of the words of the header.
    #[inline]
    fn word(&self, place: u64) -> &AtomicU32 {
        match self.window.atomic(self.start + place) {
            Ok(word) => word,
            // `new` has checked that the header lies in the window.
            Err(_) => unreachable!("a ring's header left its window"),
        }
    }

    /// From client to server.
    fn requests(&self) -> Direction<'_> {
        Direction {
            window: &self.window,
            word: self.word(place::SUBMITTED),
            cpu: self.word(place::CLIENT_CPU),
        }
    }

    /// From server to client.
    fn answers(&self) -> Direction<'_> {
        Direction {
            window: &self.window,
            word: self.word(place::COMPLETED),
            cpu: self.word(place::SERVER_CPU),
        }
    }

    #[inline]
    fn record(&self, offset: u64) -> u64 {
        self.start + HEADER + offset
    }

    fn read_head(&self, offset: u64) -> Result<Head, RingError> {
        let mut bytes = [0; HEAD as usize];
        self.window.read(self.record(offset), &mut bytes)?;
        Ok(Head::decode(&bytes))
    }

    fn write_head(&self, offset: u64, head: Head) -> Result<(), RingError> {
        Ok(self.window.write(self.record(offset), &head.encode())?)
    }

    /// Closes the ring and wakes everybody: their waiting ends with [`RingError::Closed`].
    fn close(&self) {
        for place in [place::SUBMITTED, place::COMPLETED] {
            let word = self.word(place);
            word.fetch_or(CLOSED, Ordering::SeqCst);
            futex::wake_all(word, Scope::Shared);
        }
    }
}

/// Head of a record. The client fills all of it, the server `status` and `length`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Head {
    /// What the client wants.
    kind: u32,
    /// Bytes of the request, then of the answer.
    length: u32,
    /// Bytes that the record takes in all.
    capacity: u32,
    /// The server's verdict.
    status: u32,
    /// For the client's use.
    argument: u64,
}

impl Head {
    fn encode(self) -> [u8; HEAD as usize] {
        let mut bytes = [0; HEAD as usize];
        bytes[0..4].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.capacity.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.status.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.argument.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD as usize]) -> Self {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Self {
            kind: word(0),
            length: word(4),
            capacity: word(8),
            status: word(12),
            argument: u64::from(word(16)) | u64::from(word(20)) << 32,
        }
    }

    fn wrap() -> Self {
        Self {
            kind: WRAP,
            length: 0,
            capacity: 0,
            status: 0,
            argument: 0,
        }
    }
}

/// The words of one direction of a ring: one side counts up, the other waits.
struct Direction<'a> {
    /// Where the words lie.
    window: &'a Mapping,
    /// Counts records.
    word: &'a AtomicU32,
    /// Where the counting side last ran.
    cpu: &'a AtomicU32,
}

impl Direction<'_> {
    /// Waits until `done` says yes to the word's value, or the ring is closed; returns the value.
    ///
    /// Spins for a moment first, unless the other side last ran on this very processor.
    fn wait(&self, spin: Spin, patience: &Patience, done: impl Fn(u32) -> bool) -> u32 {
        let over = |value: u32| done(value) || value & CLOSED != 0;
        let value = self.word.load(Ordering::Acquire);
        if over(value) {
            return value;
        }
        if patience.looks() {
            if let Some(value) = self.look(spin, over) {
                return value;
            }
            patience.lose();
        }
        loop {
            // Whoever counts up after this sees the bit; whoever has before shows in the value.
            let value = self.word.fetch_or(SLEEPER, Ordering::SeqCst) | SLEEPER;
            if over(value) {
                return value;
            }
            // Sleeps only while the count is the same and the bit is set: so the next who counts up wakes. That holds
            // for a restored process, too, whose window was saved before it set the bit: the system call begins
            // again and finds another value.
            self.window.sleep(self.word, value);
            let value = self.word.load(Ordering::Acquire);
            if over(value) {
                return value;
            }
        }
    }

    /// Looks at the word for a while. Gives its value if the wait is over.
    fn look(&self, spin: Spin, over: impl Fn(u32) -> bool) -> Option<u32> {
        let start = Instant::now();
        loop {
            // Who spins on the processor on which the other side wants to run waits for itself.
            if self.cpu.load(Ordering::Relaxed) == current_cpu() {
                return None;
            }
            for _ in 0..16 {
                let value = self.word.load(Ordering::Acquire);
                if over(value) {
                    return Some(value);
                }
            }
            // One PAUSE a round: hypervisors take the processor away from tight loops of it.
            std::hint::spin_loop();
            let spent = start.elapsed();
            if spent >= spin.busy + spin.yielding {
                return None;
            }
            if spent >= spin.busy {
                std::thread::yield_now();
                // Somebody else wants this processor: a thread of a team that the function needs, perhaps. Going
                // on to take it from them now and then is worse for both than to sleep: who is woken runs at once.
                if start.elapsed() - spent > YIELDED {
                    return None;
                }
            }
        }
    }

    /// Counts up by one record and wakes who sleeps.
    fn advance(&self) {
        self.cpu.store(current_cpu(), Ordering::Relaxed);
        if self.word.fetch_add(ONE, Ordering::SeqCst) & SLEEPER != 0 {
            self.word.fetch_and(!SLEEPER, Ordering::SeqCst);
            futex::wake_all(self.word, Scope::Shared);
        }
    }
}

/// The processor that this thread runs on, for what it is worth by the time it is used.
fn current_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// The count in a count word.
fn count(word: u32) -> u32 {
    word / ONE
}

/// Whether a count has come to `sequence`, modulo 2^30.
fn reached(word: u32, sequence: u32) -> bool {
    count(word).wrapping_sub(sequence) & SEQUENCE < 1 << 29
}

#[cfg(test)]
mod tests;
