//! How often to take a snapshot, how many incremental ones between two full ones, and whether to compress: models,
//! and what they recommend for machines of any size.
//!
//! - [`pccr`]: the time of a checkpoint of many processes onto shared storage (paper 4, section II).
//! - [`hybrid`]: full and incremental checkpoints mixed (paper 5, section 5.4).
//! - [`interval`]: Young's and Daly's optimum interval, and the share of time that remains for work.
//! - [`plan`]: all of them together: a recommendation for each number of nodes.
//! - [`full_every`]: how long a chain should become, from what its snapshots have cost.
//! - [`Measurement`]: what a checkpoint leaves behind about itself, and what a plan learns from it.
//! - [`plot`]: the same as a picture.
//! - [`bars`]: pictures of what was measured.
//!
//! Everything here is arithmetic: no file is read and no process is known. Times are in seconds, sizes in bytes and rates
//! in bytes a second, all as `f64`.
#![forbid(unsafe_code)]

pub mod bars;
mod chain_length;
pub mod hybrid;
pub mod interval;
mod measurement;
pub mod pccr;
mod planner;
pub mod plot;
mod svg;

pub use chain_length::{LONGEST_CHAIN, full_every};
pub use measurement::{Learned, Measurement, learn};
pub use planner::{Codec, Inputs, Plan, PlanError, Recommendation, Thresholds, decades, plan};
