//! The address space: mappings, which of their pages are saved, and the process's idea of its own layout.

mod build;
mod capture;
mod classify;
mod fill;
pub(crate) mod gaps;
pub mod image;
mod layout;
mod save;
mod shared;
pub mod vdso;

pub(crate) use build::{Trampoline, build, finish};
pub(crate) use capture::{Ranges, capture, syscall_instruction};
pub(crate) use fill::Sink;
pub use image::MemoryImage;
pub(crate) use layout::restore as restore_layout;
pub(crate) use save::save;

use crate::capture::CaptureContext;
use crate::error::Obstacle;

/// Which of the files that the address space needs are not what they were, and whether the vDSO differs.
#[must_use]
pub fn preflight(image: &MemoryImage) -> Vec<Obstacle> {
    let mut obstacles: Vec<Obstacle> = image
        .files
        .iter()
        .filter_map(|file| file.verify().err())
        .collect();
    obstacles.extend(vdso::preflight(image));
    obstacles
}

/// What among the mappings cannot be saved, as far as /proc shows it.
pub(crate) fn obstacles(ctx: &CaptureContext<'_>) -> Vec<Obstacle> {
    let refused = |mapping| match classify::classify(mapping, ctx) {
        classify::Class::Obstacle(obstacle) => Some(obstacle),
        _ => None,
    };
    let mut obstacles: Vec<Obstacle> = ctx.maps.iter().filter_map(refused).collect();
    if let Ok(path) = ctx.proc.link("exe")
        && let Err(e) = std::fs::metadata(&path)
    {
        obstacles.push(Obstacle::new(format!("executable {path}"), e.to_string()));
    }
    obstacles
}
