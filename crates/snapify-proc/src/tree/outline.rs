//! Descriptions that lack the flags of mappings, until these are read by another thread: meanwhile pages are saved already, and a
//! program of which there are copies goes on.

use super::has_ended;
use crate::error::{Obstacle, ProcError};
use crate::ids::Pid;
use crate::image::TreeImage;
use crate::memory::{Flagged, Unflagged};
use std::io;
use std::thread::{Builder, JoinHandle};

/// A description of processes, as far as it can be had at little cost: advice that was given on memory, whether it may be made
/// writable, and the like are still to come. Which pages are saved, and how many, is known.
#[derive(Debug)]
pub struct Outline {
    image: TreeImage,
}

impl Outline {
    pub(super) fn new(image: TreeImage) -> Self {
        Self { image }
    }

    /// The description as it is yet: nothing can be restarted from it.
    #[must_use]
    pub fn image(&self) -> &TreeImage {
        &self.image
    }
}

/// What an [`Outline`] lacks, being read by a thread of its own.
#[derive(Debug, Default)]
pub struct Rest {
    first: Option<Pid>,
    reading: Option<io::Result<JoinHandle<Result<Parts, ProcError>>>>,
}

/// Of each process of a tree what was left out, if something was.
type Parts = Vec<Option<Flagged>>;

impl Rest {
    /// `shown_by` tells which process shows what one was.
    pub(super) fn read(
        unflagged: Vec<Option<Unflagged>>,
        shown_by: impl Fn(Pid) -> Pid + Send + 'static,
    ) -> Self {
        let first = unflagged.iter().flatten().next().map(Unflagged::pid);
        let work = move || read(&unflagged, shown_by);
        let spawn = || Builder::new().name("flags".into()).spawn(work);
        Self {
            first,
            reading: first.is_some().then(spawn),
        }
    }

    /// Waits until all is read, and completes the description.
    ///
    /// # Errors
    /// [`ProcError::Unsupported`] with what turns out to stand in the way; [`ProcError::Died`] if one of the processes was killed.
    pub fn complete(self, outline: Outline) -> Result<TreeImage, ProcError> {
        let mut image = outline.image;
        let (Some(pid), Some(reading)) = (self.first, self.reading) else {
            return Ok(image);
        };
        let reading = reading.map_err(ProcError::system("start a thread"))?;
        let parts = match reading.join() {
            Ok(parts) => parts?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let obstacles = complete(&mut image, parts);
        match obstacles.is_empty() {
            true => Ok(image),
            false => Err(ProcError::Unsupported { pid, obstacles }),
        }
    }
}

/// Reads what was left out.
///
/// # Errors
/// If a process that is looked at is killed.
pub(super) fn read(
    unflagged: &[Option<Unflagged>],
    shown_by: impl Fn(Pid) -> Pid,
) -> Result<Parts, ProcError> {
    let read = |unflagged: &Unflagged| {
        let (pid, of) = (unflagged.pid(), shown_by(unflagged.pid()));
        unflagged.read(of).map_err(|error| match has_ended(of) {
            true if of == pid => ProcError::Died {
                pid,
                during: "its description",
            },
            true => ProcError::System {
                what: format!("look at the copy of process {pid}"),
                source: io::Error::other("it was killed, as when memory is short"),
            },
            false => error,
        })
    };
    let parts = unflagged
        .iter()
        .map(|one| one.as_ref().map(read).transpose());
    parts.collect()
}

/// Completes the descriptions of all processes, and returns what stands in the way.
pub(super) fn complete(image: &mut TreeImage, parts: Parts) -> Vec<Obstacle> {
    let processes = image.processes.iter_mut().zip(parts);
    let complete =
        processes.filter_map(|(process, part)| Some(part?.complete(&mut process.memory)));
    complete.flatten().collect()
}
