//! The address space: mappings, which of their pages are saved, and the process's idea of its own layout.

pub mod image;

pub use image::MemoryImage;
