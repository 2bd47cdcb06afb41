//! Support for the end-to-end tests: a private place for each test, the staged command line run as an
//! ordinary user, and small programs compiled on first use.
//!
//! Nothing here waits by sleeping: a test waits for a line of output, for the end of a process or for
//! a descriptor.

mod family;
mod memory;
mod offload;
mod program;
mod session;
mod stage;
mod survive;
mod terminal;
mod user;

pub use family::{await_stopped, continue_family, family, kill_family, signal, stop_family};
pub use memory::{MemoryCopy, Region};
pub use offload::{OffloadApp, Shape};
pub use program::{Language, compile, example};
pub use session::{Finished, Running, Session, poll_until};
pub use stage::stage;
pub use survive::{Meanwhile, survive_rounds, survives};
pub use terminal::Terminal;
pub use user::User;

/// How many rounds a test of random moments does: `SNAPIFY_ROUNDS`, or `default`.
#[must_use]
pub fn rounds(default: usize) -> usize {
    std::env::var("SNAPIFY_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(default)
}

/// Random numbers for random moments (SplitMix64; the seed is printed so that a failure can be repeated).
pub struct Random(u64);

impl Random {
    /// Seeds from `SNAPIFY_SEED`, or from the clock.
    #[must_use]
    pub fn new() -> Self {
        let seed = std::env::var("SNAPIFY_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or_else(|| {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                u64::try_from(now.map_or(0, |d| d.as_nanos()) & u128::from(u64::MAX)).unwrap_or(0)
            });
        eprintln!("SNAPIFY_SEED={seed}");
        Self(seed)
    }

    /// Begins another sequence, for another thread.
    #[must_use]
    pub fn branch(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

impl Default for Random {
    fn default() -> Self {
        Self::new()
    }
}
