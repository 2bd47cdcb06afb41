//! Threads: registers, extended state, signal mask and what else the kernel keeps for each.

pub mod image;

pub use image::ThreadImage;
