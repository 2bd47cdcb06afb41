//! The image of one process: everything about it but the contents of its pages.
//!
//! All ids in it are those of the innermost PID namespace: the ones that the process itself knows.

pub mod hex;
pub mod siginfo;

use crate::context::ContextImage;
use crate::files::FilesImage;
use crate::ipc::IpcImage;
use crate::memory::MemoryImage;
use crate::memory::image::{Executable, MappingKind};
use crate::signals::SignalImage;
use crate::threads::ThreadImage;
use crate::timers::TimersImage;
use crate::{error::ProcError, external::External};
use serde::{Deserialize, Serialize};
use snapify_store::SpaceId;
use std::collections::HashMap;

/// Version of the image that this crate writes. Newer ones are refused.
pub const IMAGE_VERSION: u32 = 1;

/// Everything about one process but the contents of its pages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessImage {
    /// [`IMAGE_VERSION`] of the writer.
    pub version: u32,
    /// The process id that it sees itself.
    pub pid: i32,
    /// Whether it was stopped by job control (SIGSTOP and the like); it is then stopped after the restart too.
    pub stopped: bool,
    /// Its threads, the leader first.
    pub threads: Vec<ThreadImage>,
    /// Its address space.
    pub memory: MemoryImage,
    /// Contents that are saved as page spaces of their own.
    pub objects: Vec<ObjectImage>,
    /// System V objects.
    #[serde(default)]
    pub ipc: IpcImage,
    /// Its descriptors.
    pub files: FilesImage,
    /// Dispositions, and signals pending for the whole process.
    pub signals: SignalImage,
    /// Its timers.
    pub timers: TimersImage,
    /// Working directory, limits and more.
    pub context: ContextImage,
    /// Objects that the process's agent declared its own; the restorer supplies them.
    pub externals: Vec<External>,
}

/// A content that is saved beside the memory: of a deleted file, of shared memory, of a pipe.
///
/// At restore every object is a fresh file, filled, that the process under construction inherits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObjectImage {
    /// Its space in the page file; never 0, which is the private memory.
    pub space: SpaceId,
    /// Length in bytes.
    pub bytes: u64,
    /// What it was, for people.
    pub what: String,
    /// Directory on whose file system the new file is to be made; in memory if `None` or if that is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<crate::path::ImagePath>,
    /// Permission bits of the file.
    pub mode: u32,
    /// What holds the content at restore.
    #[serde(default, skip_serializing_if = "Backing::is_file")]
    pub backing: Backing,
}

/// What holds the content of an object at restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Backing {
    /// A file without a name.
    #[default]
    File,
    /// A file without a name in huge pages.
    HugePages {
        /// Size of a page in bytes.
        page_bytes: u64,
    },
    /// A System V segment.
    Segment {
        /// Its id.
        id: i32,
    },
}

/// Type of the file system of huge pages (linux/magic.h).
const HUGE_PAGES: rustix::fs::FsWord = 0x9584_58f6;

impl Backing {
    /// What an open file is kept in.
    pub(crate) fn of(file: &std::os::fd::OwnedFd) -> std::io::Result<Self> {
        let status = rustix::fs::fstatfs(file)?;
        Ok(match status.f_type {
            HUGE_PAGES => Self::HugePages {
                page_bytes: u64::try_from(status.f_bsize).unwrap_or(0),
            },
            _ => Self::File,
        })
    }

    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_file(&self) -> bool {
        *self == Self::File
    }
}

impl ProcessImage {
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
        let Some(leader) = self.threads.first() else {
            return bad("it has no threads".into());
        };
        if leader.tid != self.pid {
            return bad(format!(
                "its first thread {} is not process {}",
                leader.tid, self.pid
            ));
        }
        let mut tids: Vec<i32> = self.threads.iter().map(|t| t.tid).collect();
        tids.sort_unstable();
        if tids[0] < 2 {
            return bad(format!(
                "thread id {} cannot be given to a restored thread",
                tids[0]
            ));
        }
        if let Some(pair) = tids.windows(2).find(|pair| pair[0] == pair[1]) {
            return bad(format!("thread {} is there twice", pair[0]));
        }
        for (n, object) in self.objects.iter().enumerate() {
            if object.space.0 == 0 || self.objects[..n].iter().any(|o| o.space == object.space) {
                return bad(format!(
                    "space {} of an object is not its own",
                    object.space.0
                ));
            }
        }
        for (n, external) in self.externals.iter().enumerate() {
            if self.externals[..n].iter().any(|e| e.key == external.key) {
                return bad(format!("external {:?} is there twice", external.key));
            }
        }
        self.files.validate()?;
        self.ipc.validate()?;
        if !self.files.queues.is_empty() && !self.ipc.namespace {
            return bad("it has message queues but no namespace for them".into());
        }
        let objects: HashMap<SpaceId, &ObjectImage> =
            self.objects.iter().map(|o| (o.space, o)).collect();
        let is_file = |space: SpaceId| {
            objects
                .get(&space)
                .is_some_and(|o| !matches!(o.backing, Backing::Segment { .. }))
        };
        for object in &self.objects {
            let fine = match object.backing {
                Backing::File => true,
                Backing::HugePages { page_bytes } => page_bytes.is_power_of_two(),
                Backing::Segment { id } => self.ipc.segment(id).is_some_and(|segment| {
                    segment.object == object.space && segment.bytes == object.bytes
                }),
            };
            if !fine {
                return bad(format!("{} cannot be made", object.what));
            }
        }
        for segment in &self.ipc.segments {
            let backing = objects.get(&segment.object).map(|o| o.backing);
            let id = segment.label.id;
            if backing != Some(Backing::Segment { id }) {
                return bad(format!("segment {id} has no content of its own"));
            }
        }
        if let Executable::Removed { object } = self.memory.executable
            && !is_file(object)
        {
            return bad("its executable is nowhere".into());
        }
        for mapping in &self.memory.mappings {
            let known = match &mapping.kind {
                MappingKind::External { key, .. } => self.externals.iter().any(|e| e.key == *key),
                MappingKind::Shared { object, .. } | MappingKind::PrivateObject { object, .. } => {
                    is_file(*object)
                }
                MappingKind::Segment { segment, .. } => self.ipc.segment(*segment).is_some(),
                _ => true,
            };
            if !known {
                return bad(format!(
                    "mapping {} is of an object that it lacks",
                    mapping.start
                ));
            }
        }
        self.memory.validate()
    }
}
