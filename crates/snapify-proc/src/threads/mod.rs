//! Threads: registers, extended state, signal mask and what else the kernel keeps for each.

pub(crate) mod capture;
pub mod image;
pub mod restart;
pub(crate) mod restore;
pub mod rseq;

pub use image::ThreadImage;
