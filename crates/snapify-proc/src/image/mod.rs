//! The image of a process tree: everything about it but the contents of its pages.
//!
//! All ids in it are those of the innermost PID namespace: the ones that the processes themselves know.

pub mod hex;
pub mod process;
pub mod relocate;
pub mod siginfo;
pub mod tree;

pub use process::{ProcessImage, Shares};
pub use tree::{EndedProcess, IMAGE_VERSION, Kin, TreeImage};

use serde::{Deserialize, Serialize};
use snapify_store::SpaceId;

/// A content that is saved beside the memory: of a deleted file, of shared memory, of a pipe.
///
/// At restore every object is a fresh file, filled, that the processes under construction inherit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObjectImage {
    /// Its space in the page file; never that of a process's memory.
    pub space: SpaceId,
    /// Length in bytes.
    pub bytes: u64,
    /// What it was, for people.
    pub what: String,
    /// Directory on whose file system the new file is to be made; in memory if `None` or if that is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<crate::path::ImagePath>,
    /// The name under which it is to be found again: that of POSIX shared memory, or of a file that the program has made for
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<crate::path::ImagePath>,
    /// What becomes of a file that has this name at the restart.
    #[serde(default, skip_serializing_if = "Existing::is_filled")]
    pub existing: Existing,
    /// Permission bits of the file.
    pub mode: u32,
    /// What holds the content at restore.
    #[serde(default, skip_serializing_if = "Backing::is_file")]
    pub backing: Backing,
}

/// What becomes of a file that is there, under the name of an object, at the restart. One that is in use always stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Existing {
    /// It is filled with the content of the object.
    #[default]
    Fill,
    /// So it is if it still is the same file; another stays as it is.
    Same {
        /// Device number.
        device: u64,
        /// Inode number.
        inode: u64,
    },
    /// It stays as it is.
    Keep,
}

impl Existing {
    fn is_filled(&self) -> bool {
        *self == Self::Fill
    }
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
