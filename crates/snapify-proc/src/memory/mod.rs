//! The address space: mappings, which of their pages are saved, and the process's idea of its own layout.

mod build;
mod capture;
mod classify;
mod common;
mod extent;
mod fill;
mod flags;
pub(crate) mod gaps;
mod hold;
pub(crate) mod huge;
pub mod image;
mod keep;
mod layout;
pub(crate) mod named;
pub(crate) mod names;
mod present;
pub(crate) mod room;
mod save;
mod segments;
pub mod settings;
mod shared;
pub mod vdso;

pub(crate) use build::{Trampoline, build, finish};
pub(crate) use capture::{Ranges, capture, syscall_instruction};
pub(crate) use fill::{Sink, Target};
pub(crate) use flags::{Flagged, Unflagged, are_needed_first};
pub(crate) use hold::Held;
pub use image::MemoryImage;
pub(crate) use keep::kept;
pub(crate) use layout::restore as restore_layout;
pub(crate) use present::of_built;
pub use save::Form;
pub(crate) use save::{SavedMemory, changes, held_bytes, hold, hold_more, not_copied, save};
pub(crate) use shared::{segment_content, segment_id};

use crate::capture::CaptureContext;
use crate::error::Obstacle;
use crate::image::ObjectImage;
use std::collections::HashSet;
use std::path::Path;

/// Which of the files that the address space needs are not what they were, but for those that come back with their
/// content (`restorable`), and whether the vDSO differs.
#[must_use]
pub fn preflight(
    image: &MemoryImage,
    objects: &[ObjectImage],
    restorable: &HashSet<&Path>,
) -> Vec<Obstacle> {
    let mut obstacles: Vec<Obstacle> = image
        .files
        .iter()
        .filter(|file| !restorable.contains(file.identity.path.as_path()))
        .filter_map(|file| file.verify().err())
        .collect();
    obstacles.extend(vdso::preflight(image));
    obstacles.extend(huge::preflight(image, objects));
    obstacles
}

/// What among the mappings cannot be saved, as far as /proc shows it.
pub(crate) fn obstacles(ctx: &CaptureContext<'_>) -> Vec<Obstacle> {
    let refused = |mapping| match classify::classify(mapping, ctx) {
        classify::Class::Obstacle(obstacle) => Some(obstacle),
        _ => None,
    };
    let mut obstacles: Vec<Obstacle> = ctx.maps.iter().filter_map(refused).collect();
    if let Ok(pagemap) = ctx.proc.open_file("pagemap") {
        let watched = |mapping| capture::watched(&pagemap, mapping).ok().flatten();
        obstacles.extend(ctx.maps.iter().filter_map(watched));
    }
    obstacles.extend(capture::too_many(ctx.maps));
    if let Err(e) = ctx.proc.open_file("exe") {
        obstacles.push(Obstacle::new("executable", e.to_string()));
    }
    obstacles
}
