//! The image of a tree of processes, and what must hold for it.

use super::{Backing, ObjectImage, ProcessImage};
use crate::error::ProcError;
use crate::files::regular::NamedType;
use crate::files::{FilesImage, Object, can_write};
use crate::ipc::IpcImage;
use crate::memory::image::{Executable, MappingKind};
use crate::scratch::ScratchDirectory;
use serde::{Deserialize, Serialize};
use snapify_store::SpaceId;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Component, Path};

/// Version of the image that this crate writes. Newer ones are refused.
pub const IMAGE_VERSION: u32 = 1;

/// A process and all its descendants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TreeImage {
    /// [`IMAGE_VERSION`] of the writer.
    pub version: u32,
    /// The processes, parents before their children. The first is the one that the snapshot was asked for.
    pub processes: Vec<ProcessImage>,
    /// Processes that have ended and that their parents have not waited for yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<EndedProcess>,
    /// What their descriptors lead to.
    pub files: FilesImage,
    /// System V objects.
    #[serde(default)]
    pub ipc: IpcImage,
    /// Directories that it has made for itself in places for temporary files, those above others before them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scratch: Vec<ScratchDirectory>,
    /// Contents that are saved as page spaces of their own.
    pub objects: Vec<ObjectImage>,
}

/// A process id, and its relations to others. Ids that no process of the tree could have given (of a session that was there
/// before the tree) are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kin {
    /// The id.
    pub pid: i32,
    /// Its parent; 0 if that is no process of the tree.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// The signal that its parent gets when it ends; 0 for none.
    pub exit_signal: i32,
}

/// A process that has ended, and is kept for its parent to ask how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedProcess {
    /// Its id, and its place in the tree.
    #[serde(flatten)]
    pub kin: Kin,
    /// What wait(2) will tell its parent.
    pub status: i32,
}

impl TreeImage {
    /// The process that the snapshot was asked for.
    ///
    /// # Panics
    /// If there is none: [`Self::validate`] refuses such an image.
    #[must_use]
    pub fn root(&self) -> &ProcessImage {
        &self.processes[0]
    }

    /// The process with this id.
    #[must_use]
    pub fn process(&self, pid: i32) -> Option<&ProcessImage> {
        self.processes.iter().find(|process| process.pid() == pid)
    }

    /// Bytes of private memory and of other contents that are in the page file, at most.
    #[must_use]
    pub fn saved_bytes(&self) -> u64 {
        let memory = self.processes.iter().flat_map(|p| &p.memory.mappings);
        let objects = self.objects.iter().map(|object| object.bytes);
        memory.map(|mapping| mapping.saved).chain(objects).sum()
    }

    /// Regular files with a name that are open for writing: each with its length in bytes.
    #[must_use]
    pub fn written_files(&self) -> BTreeMap<&Path, u64> {
        let open = self.files.descriptions.iter();
        open.filter_map(|description| match &description.object {
            Object::Named(file)
                if file.file_type == NamedType::Regular && can_write(description.flags) =>
            {
                Some((file.identity.path.as_path(), file.identity.bytes))
            }
            _ => None,
        })
        .collect()
    }

    /// Bytes of private memory that are in the page file, at most.
    #[must_use]
    pub fn private_bytes(&self) -> u64 {
        let memory = self.processes.iter().flat_map(|p| &p.memory.mappings);
        memory.map(|mapping| mapping.saved).sum()
    }

    /// Ids of all processes, running and ended, with their relations.
    pub fn kin(&self) -> impl Iterator<Item = &Kin> {
        let running = self.processes.iter().map(|process| &process.kin);
        running.chain(self.ended.iter().map(|ended| &ended.kin))
    }

    /// Checks what must hold for any restore: it never trusts an image.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] with the first contradiction.
    pub fn validate(&self) -> Result<(), ProcError> {
        let bad = |text: String| Err(ProcError::BadImage(text));
        if self.version > IMAGE_VERSION {
            return bad(format!(
                "it has version {}, this program reads up to {IMAGE_VERSION}; use a newer one",
                self.version
            ));
        }
        if self.processes.is_empty() {
            return bad("it has no process".into());
        }
        self.validate_ids()?;
        let mut spaces = HashSet::new();
        for process in &self.processes {
            process.validate()?;
            self.validate_shares(process)?;
            if process.shares.memory.is_none() && !spaces.insert(process.memory.space) {
                return bad(format!(
                    "the memory of process {} is not its own",
                    process.pid()
                ));
            }
        }
        let mut keys = HashSet::new();
        for external in self.processes.iter().flat_map(|p| &p.externals) {
            if !keys.insert(external.key.as_str()) {
                return bad(format!("external {:?} is there twice", external.key));
            }
        }
        for object in &self.objects {
            if !spaces.insert(object.space) {
                return bad(format!(
                    "space {} of an object is not its own",
                    object.space.0
                ));
            }
        }
        self.files.validate()?;
        self.ipc.validate()?;
        if !self.files.queues.is_empty() && !self.ipc.namespace {
            return bad("it has message queues but no namespace for them".into());
        }
        self.validate_objects()?;
        for process in &self.processes {
            self.files.validate_table(&process.descriptors)?;
            if process.shares.memory.is_none() {
                self.validate_mappings(process)?;
            }
        }
        Ok(())
    }

    /// No id twice, none that cannot be given again, parents before children.
    fn validate_ids(&self) -> Result<(), ProcError> {
        let bad = |text: String| Err(ProcError::BadImage(text));
        let mut known = HashSet::new();
        // Ended processes come last and are nobody's parents.
        for kin in self.kin() {
            if kin.parent != 0 && !known.contains(&kin.parent) {
                return bad(format!(
                    "process {} is not preceded by its parent {}",
                    kin.pid, kin.parent
                ));
            }
            known.insert(kin.pid);
            if !(0..=64).contains(&kin.exit_signal) || kin.group < 0 || kin.session < 0 {
                return bad(format!("process {} has relations that cannot be", kin.pid));
            }
        }
        let ended = self.ended.iter().map(|ended| ended.kin.pid);
        let threads = self.processes.iter().flat_map(|p| &p.threads);
        let mut taken = HashSet::new();
        for id in threads.map(|thread| thread.tid).chain(ended) {
            if id < 2 {
                return bad(format!("id {id} cannot be given to a restored thread"));
            }
            if !taken.insert(id) {
                return bad(format!("id {id} is there twice"));
            }
        }
        Ok(())
    }

    fn validate_shares(&self, process: &ProcessImage) -> Result<(), ProcError> {
        let place = |pid| self.processes.iter().position(|p| p.pid() == pid);
        let own = place(process.pid());
        // What is shared is in the image of the first of those who share it.
        let sound = process
            .shares
            .with()
            .all(|other| place(other).is_some_and(|at| Some(at) < own) && other != process.pid());
        let handlers_need_memory =
            process.shares.handlers.is_none() || process.shares.memory.is_some();
        if sound && handlers_need_memory {
            Ok(())
        } else {
            Err(ProcError::BadImage(format!(
                "process {} shares what it cannot share",
                process.pid()
            )))
        }
    }

    /// What holds a content can be made, and belongs to whom it says.
    fn validate_objects(&self) -> Result<(), ProcError> {
        let bad = |text: String| Err(ProcError::BadImage(text));
        if let Some(odd) = self.scratch.iter().find(|d| !is_plain(&d.path)) {
            return bad(format!("directory {} cannot be made", odd.path));
        }
        for object in &self.objects {
            let fine = match object.backing {
                Backing::File => true,
                Backing::HugePages { page_bytes } => page_bytes.is_power_of_two(),
                Backing::Segment { id } => self.ipc.segment(id).is_some_and(|segment| {
                    segment.object == object.space && segment.bytes == object.bytes
                }),
            };
            let named_fine = object.named.as_deref().is_none_or(is_plain);
            if !fine || !named_fine {
                return bad(format!("{} cannot be made", object.what));
            }
        }
        let backings: HashMap<SpaceId, Backing> =
            self.objects.iter().map(|o| (o.space, o.backing)).collect();
        for segment in &self.ipc.segments {
            let id = segment.label.id;
            if backings.get(&segment.object) != Some(&Backing::Segment { id }) {
                return bad(format!("segment {id} has no content of its own"));
            }
        }
        Ok(())
    }

    fn validate_mappings(&self, process: &ProcessImage) -> Result<(), ProcError> {
        let externals = self.processes.iter().flat_map(|p| &p.externals);
        let keys: HashSet<&str> = externals.map(|e| e.key.as_str()).collect();
        let files: HashSet<SpaceId> = self
            .objects
            .iter()
            .filter(|o| !matches!(o.backing, Backing::Segment { .. }))
            .map(|o| o.space)
            .collect();
        if let Executable::Removed { object } = process.memory.executable
            && !files.contains(&object)
        {
            return Err(ProcError::BadImage(format!(
                "the executable of process {} is nowhere",
                process.pid()
            )));
        }
        for mapping in &process.memory.mappings {
            let known = match &mapping.kind {
                MappingKind::External { key, .. } => keys.contains(key.as_str()),
                MappingKind::Shared { object, .. } | MappingKind::PrivateObject { object, .. } => {
                    files.contains(object)
                }
                MappingKind::Segment { segment, .. } => self.ipc.segment(*segment).is_some(),
                _ => true,
            };
            if !known {
                return Err(ProcError::BadImage(format!(
                    "mapping {} of process {} is of an object that it lacks",
                    mapping.start,
                    process.pid()
                )));
            }
        }
        Ok(())
    }
}

/// Whether a path is absolute, leads to something below the root, and means what it says.
fn is_plain(path: &Path) -> bool {
    let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute() && path.file_name().is_some() && path.components().all(plain)
}
