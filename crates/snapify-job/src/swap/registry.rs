//! Which images of swapped-out processes belong to a running application: one file each in its folder, so that they are
//! removed with it, even if its supervisor is killed.

use crate::error::JobError;
use serde::{Deserialize, Serialize};
use snapify_offload::ProcessId;
use std::path::{Path, PathBuf};

/// The notes of one application.
pub(crate) struct Registry {
    dir: PathBuf,
}

/// A swapped-out process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Swapped {
    /// Which.
    pub id: ProcessId,
    /// The process that it works for.
    #[serde(default)]
    pub host: Option<i32>,
    /// The card that it was on.
    pub card: u32,
    /// Bytes of its local store.
    pub store_bytes: u64,
    /// The directory that the user named.
    pub dir: PathBuf,
    /// The directory in it with the image.
    pub image: PathBuf,
    /// Which program the image belongs to.
    pub program: String,
    /// Directories that were made for it, outermost first.
    pub made: Vec<PathBuf>,
}

impl Registry {
    /// The notes in an application's folder.
    pub(crate) fn of(folder: &Path) -> Self {
        Self {
            dir: folder.join("swapped"),
        }
    }

    /// Notes an image. It must not be there before it is noted.
    pub(crate) fn note(&self, swapped: &Swapped) -> Result<(), JobError> {
        let path = self.path(swapped.id);
        let failed = |source| JobError::File {
            operation: "write",
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(&self.dir).map_err(failed)?;
        let text = serde_json::to_vec(swapped).map_err(|error| failed(error.into()))?;
        std::fs::write(&path, text).map_err(failed)
    }

    /// What is noted of a process.
    pub(crate) fn get(&self, id: ProcessId) -> Option<Swapped> {
        serde_json::from_slice(&std::fs::read(self.path(id)).ok()?).ok()
    }

    /// All that is noted.
    pub(crate) fn all(&self) -> Vec<Swapped> {
        let files = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut all: Vec<Swapped> = files
            .filter_map(|file| serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok())
            .collect();
        all.sort_by_key(|swapped| swapped.id);
        all
    }

    /// Removes an image and what is noted of it.
    pub(crate) fn remove(&self, swapped: &Swapped) {
        super::image::remove(swapped);
        let _ = std::fs::remove_file(self.path(swapped.id));
    }

    /// The application has ended: removes all of its images.
    pub(crate) fn clean(&self) {
        for swapped in self.all() {
            self.remove(&swapped);
        }
    }

    fn path(&self, id: ProcessId) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}
