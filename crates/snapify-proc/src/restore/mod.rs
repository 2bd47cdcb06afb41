//! Building a process from its image.

pub mod context;

pub use context::RestoreContext;
