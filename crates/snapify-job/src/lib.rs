//! Jobs: an application with all its members, as one thing that is run, saved and started again.
//!
//! - [`run`] starts a program with cards and supervises it.
//! - [`checkpoint`] saves all members of a running application in two phases: everything is paused and written
//!   into a staging directory; the manifest makes it a snapshot, or nothing does.
//! - [`restart`] rebuilds all members stopped, and lets them go together.
//! - [`applications`] and [`check`] look.
//!
//! The engine (`snapify-proc`), the snapshot store and the offload runtime do the work; this crate knows who is a
//! member of what, and in which order things happen.
#![deny(unsafe_code)]

mod card;
mod checkpoint;
mod clients;
mod copy;
mod engine;
mod error;
mod events;
#[cfg(fuzzing)]
pub mod fuzzing;
mod identity;
mod keeper;
mod layout;
mod link;
mod measured;
mod processes;
mod protocol;
mod registration;
mod restart;
mod runtime_dir;
mod schedule;
mod shared_cards;
mod signals;
mod snapshot;
mod supervisor;
mod swap;
mod timing;

pub use card::{CardDaemonOptions, card_daemon};
pub use checkpoint::{Increments, Live, Sequence};
pub use clients::{CheckpointOptions, application_of, applications, check, checkpoint};
pub use copy::{CopyEvent, CopyOptions, copy};
pub use error::JobError;
pub use events::{Event, Observer, Phase};
pub use layout::Layout;
pub use measured::{codecs, full_every, measurements};
pub use protocol::{
    ApplicationStatus, CardStatus, CheckpointReport, MemberReport, OffloadProcessStatus,
};
pub use restart::{Files, RestartOptions, restart};
pub use schedule::{Schedule, WatchEvent, WatchOptions, watch};
pub use shared_cards::DEFAULT_CARD_MEMORY;
pub use snapify_proc::Outside;
pub use supervisor::{RunOptions, run};
pub use swap::{SwapReport, Which, migrate, swap_in, swap_out};
