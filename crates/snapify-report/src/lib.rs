//! What operations on an application took, step by step: recorded while they go on, kept beside the snapshots, drawn
//! as one page.
//!
//! - [`Recorder`] notes the phases of an operation, for each party to it: the coordinator, the host process, each card's
//!   daemon, each offload process. What comes of it is a [`Timeline`].
//! - [`keep`] writes a timeline into `DIR/reports`, [`kept`] reads what is there. Nobody needs these files: readers of
//!   snapshots pass them over.
//! - [`page`] draws timelines as those of paper 1, figures 5 to 7, with the times and sizes of its figure 10.
//!
//! ```
//! use snapify_report::{Actor, Operation, Recorder};
//! let recorder = Recorder::begin(Operation::Checkpoint);
//! let answer = recorder.time(Actor::Coordinator, "pause", || 42);
//! let timeline = recorder.finish();
//! assert_eq!((answer, timeline.phases.len()), (42, 1));
//! ```
#![deny(unsafe_code)]

mod files;
mod html;
mod page;
mod timeline;
mod units;

pub use files::{REPORTS_DIR, ReportError, Unreadable, keep, kept};
pub use page::{MemberSize, Page, PointSize, page};
pub use timeline::{Actor, Moment, Operation, Phase, Recorder, Timeline};
