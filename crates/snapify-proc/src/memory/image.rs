//! The image of an address space.

use super::settings::Settings;
use crate::error::{Obstacle, ProcError};
use crate::identity::FileIdentity;
use crate::ids::RemoteAddr;
use crate::image::hex::HexBytes;
use serde::{Deserialize, Serialize};
use snapify_store::{PAGE_SIZE, SpaceId};

/// End of the addresses that a program gets without asking for more (47 bits less a page).
pub const USER_END: u64 = 0x7fff_ffff_f000;

/// Protection keys that x86 has.
const KEYS: u32 = 16;

/// The advice that a mapping can come with (`MADV_*`): what the kernel keeps as a flag.
const ADVICE: [i32; 8] = [
    libc::MADV_DONTFORK,
    libc::MADV_WIPEONFORK,
    libc::MADV_DONTDUMP,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_MERGEABLE,
    libc::MADV_SEQUENTIAL,
    libc::MADV_RANDOM,
];

/// An address space.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemoryImage {
    /// The space of its private memory in the page file.
    #[serde(default)]
    pub space: SpaceId,
    /// Its mappings in order of address. `[vsyscall]` is not among them.
    pub mappings: Vec<MappingImage>,
    /// Files that mappings and the executable are of.
    pub files: Vec<FileImage>,
    /// Where the kernel thinks text, data, heap, stack, arguments and environment are.
    pub layout: LayoutImage,
    /// Auxiliary vector.
    pub auxv: HexBytes,
    /// The program.
    pub executable: Executable,
    /// Hash of the content of the vDSO, which must be the same at restore.
    pub vdso_hash: u64,
    /// What holds for all of it.
    #[serde(default)]
    pub settings: Settings,
}

/// The file of the program, to which `/proc/PID/exe` leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Executable {
    /// Index in [`MemoryImage::files`].
    File(usize),
    /// It was removed or replaced while the program ran.
    Removed {
        /// Its content.
        object: SpaceId,
    },
}

/// One mapping.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MappingImage {
    /// First address.
    pub start: RemoteAddr,
    /// First address behind it.
    pub end: RemoteAddr,
    /// `PROT_*`
    pub prot: i32,
    /// What it is of.
    pub kind: MappingKind,
    /// Flags that differ from those of a plain mapping.
    #[serde(default, skip_serializing_if = "MappingFlags::is_plain")]
    pub flags: MappingFlags,
    /// Bytes of it that are in the page file.
    pub saved: u64,
    /// Of a private mapping of a file: the pages that are the process's own, address and bytes. A page file leaves out those
    /// of zeros, but they hide what is in the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<(RemoteAddr, u64)>,
}

/// What a mapping is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "of")]
pub enum MappingKind {
    /// Private memory; also what was a private mapping of a file that is gone.
    Private,
    /// Private mapping of a file, of which written pages are saved.
    PrivateFile {
        /// Index of the file.
        file: usize,
        /// Offset in bytes.
        offset: u64,
    },
    /// Shared mapping of a file; the content is the file's.
    SharedFile {
        /// Index of the file.
        file: usize,
        /// Offset in bytes.
        offset: u64,
        /// Whether the mapping may be made writable.
        may_write: bool,
    },
    /// Shared memory, or a shared mapping of a file that is gone.
    Shared {
        /// The object with its content.
        object: SpaceId,
        /// Offset in bytes.
        offset: u64,
        /// Whether the mapping may be made writable.
        #[serde(default = "yes")]
        may_write: bool,
    },
    /// Private mapping of a file that is gone but whose content is saved as an object: written pages are saved with the
    /// private memory.
    PrivateObject {
        /// The object with the file's content.
        object: SpaceId,
        /// Offset in bytes.
        offset: u64,
    },
    /// A System V segment, or a part of one.
    Segment {
        /// Its id.
        segment: i32,
        /// Offset in bytes.
        offset: u64,
        /// Whether the mapping may be made writable.
        may_write: bool,
    },
    /// Belongs to an agent.
    External {
        /// Which one.
        key: String,
        /// Offset in bytes.
        offset: u64,
        /// `MAP_SHARED`
        shared: bool,
    },
    /// A part of the vDSO group: `[vvar]`, `[vvar_vclock]`, `[vdso]`.
    Kernel {
        /// Its name.
        name: String,
    },
}

/// Flags of a mapping beyond protection and sharing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MappingFlags {
    /// `MAP_GROWSDOWN`
    #[serde(skip_serializing_if = "is_false")]
    pub grows_down: bool,
    /// `MAP_NORESERVE`
    #[serde(skip_serializing_if = "is_false")]
    pub no_reserve: bool,
    /// Counted against the overcommit limit though it is not writable now.
    #[serde(skip_serializing_if = "is_false")]
    pub accounted: bool,
    /// Locked in memory.
    #[serde(skip_serializing_if = "is_false")]
    pub locked: bool,
    /// Locked when touched.
    #[serde(skip_serializing_if = "is_false")]
    pub locked_on_fault: bool,
    /// Sealed by mseal(2).
    #[serde(skip_serializing_if = "is_false")]
    pub sealed: bool,
    /// `MAP_DROPPABLE`
    #[serde(skip_serializing_if = "is_false")]
    pub droppable: bool,
    /// Size of its pages in bytes, if they are huge TLB pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub huge_page: Option<u64>,
    /// Protection key, 0 for none.
    #[serde(skip_serializing_if = "is_zero")]
    pub key: u32,
    /// What the program has called it (`PR_SET_VMA_ANON_NAME`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `MADV_*` to be given again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<i32>,
    /// Ranges set up with `MADV_GUARD_INSTALL`: address and bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<(RemoteAddr, u64)>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

fn yes() -> bool {
    true
}

impl MappingFlags {
    fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// A file that must be unchanged at restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileImage {
    /// What it was like.
    #[serde(flatten)]
    pub identity: FileIdentity,
    /// Whether it is mapped so that the program itself may change it: then only its size counts.
    #[serde(default)]
    pub written: bool,
}

/// `struct prctl_mm_map` without the auxiliary vector and the executable.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutImage {
    pub start_code: u64,
    pub end_code: u64,
    pub start_data: u64,
    pub end_data: u64,
    pub start_brk: u64,
    pub brk: u64,
    pub start_stack: u64,
    pub arg_start: u64,
    pub arg_end: u64,
    pub env_start: u64,
    pub env_end: u64,
}

impl FileImage {
    /// Whether the file is still what it was.
    ///
    /// # Errors
    /// An obstacle that names the file and what has changed.
    pub fn verify(&self) -> Result<(), Obstacle> {
        if !self.written {
            return self.identity.verify("mapped file");
        }
        // The program goes on with what is in the file now; without the pages it would be killed when it touches them.
        let path = &self.identity.path;
        match std::fs::metadata(path) {
            Ok(now) if now.len() >= self.identity.bytes => Ok(()),
            Ok(_) => Err(Obstacle::new(
                format!("mapped file {path}"),
                "it is shorter now",
            )),
            Err(e) => Err(Obstacle::new(format!("mapped file {path}"), e.to_string())),
        }
    }
}

impl MappingImage {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether it is a part of the vDSO group.
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        matches!(self.kind, MappingKind::Kernel { .. })
    }
}

impl MappingKind {
    /// Where in its file or object the mapping begins.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        match *self {
            Self::Private | Self::Kernel { .. } => None,
            Self::PrivateFile { offset, .. }
            | Self::SharedFile { offset, .. }
            | Self::Shared { offset, .. }
            | Self::PrivateObject { offset, .. }
            | Self::Segment { offset, .. }
            | Self::External { offset, .. } => Some(offset),
        }
    }

    /// Whether what is written there stays private: such pages are saved with the memory.
    #[must_use]
    pub fn is_private(&self) -> bool {
        matches!(
            self,
            Self::Private | Self::PrivateFile { .. } | Self::PrivateObject { .. }
        )
    }
}

impl MemoryImage {
    /// The image of a process whose memory is another's.
    pub(crate) fn shared() -> Self {
        Self {
            space: SpaceId(u32::MAX),
            mappings: Vec::new(),
            files: Vec::new(),
            layout: LayoutImage::default(),
            auxv: HexBytes::default(),
            executable: Executable::File(0),
            vdso_hash: 0,
            settings: Settings::default(),
        }
    }

    /// Checks that mappings are in order, page aligned, in the user's half, and refer to files that there are.
    ///
    /// # Errors
    /// [`ProcError::BadImage`].
    pub fn validate(&self) -> Result<(), ProcError> {
        let mut last = 0;
        for mapping in &self.mappings {
            let (start, end) = (mapping.start.0, mapping.end.0);
            let place_fine = start >= last
                && start < end
                && end <= USER_END
                && start % PAGE_SIZE == 0
                && end % PAGE_SIZE == 0;
            if !place_fine || !self.is_sound(mapping) {
                return Err(ProcError::BadImage(format!(
                    "mapping {start:#x}-{end:#x} cannot be"
                )));
            }
            last = end;
        }
        if matches!(self.executable, Executable::File(file) if file >= self.files.len()) {
            return Err(ProcError::BadImage("it names no executable".into()));
        }
        if !self.settings.is_sound() {
            return Err(ProcError::BadImage(
                "it has impossible protection keys".into(),
            ));
        }
        Ok(())
    }

    /// Whether a mapping refers to a file that there is, and its flags would do nothing but what they are for.
    fn is_sound(&self, mapping: &MappingImage) -> bool {
        let file_fine = match mapping.kind {
            MappingKind::PrivateFile { file, .. } | MappingKind::SharedFile { file, .. } => {
                file < self.files.len()
            }
            _ => true,
        };
        let flags = &mapping.flags;
        let mut parts = flags.guards.iter().chain(&mapping.written);
        let parts_fine = parts.all(|&(at, bytes)| {
            mapping.start <= at
                && at
                    .0
                    .checked_add(bytes)
                    .is_some_and(|end| end <= mapping.end.0)
        });
        let huge_fine = flags.huge_page.is_none_or(|page| {
            page.is_power_of_two()
                && mapping.start.0.is_multiple_of(page)
                && mapping.end.0.is_multiple_of(page)
        });
        let offset_fine = mapping.kind.offset().is_none_or(|offset| {
            offset % PAGE_SIZE == 0 && offset.checked_add(mapping.bytes()).is_some()
        });
        file_fine
            && parts_fine
            && huge_fine
            && offset_fine
            && flags.key < KEYS
            && flags.advice.iter().all(|advice| ADVICE.contains(advice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn image(mappings: Vec<MappingImage>) -> MemoryImage {
        let exe = PathBuf::from("/proc/self/exe");
        let stat = rustix::fs::stat(&exe).unwrap();
        MemoryImage {
            space: SpaceId(0),
            mappings,
            files: vec![FileImage {
                identity: FileIdentity::new(exe.into(), &stat),
                written: false,
            }],
            layout: LayoutImage::default(),
            auxv: HexBytes::default(),
            executable: Executable::File(0),
            vdso_hash: 0,
            settings: Settings::default(),
        }
    }

    fn mapping(start: u64, end: u64) -> MappingImage {
        MappingImage {
            start: RemoteAddr(start),
            end: RemoteAddr(end),
            prot: 3,
            kind: MappingKind::Private,
            flags: MappingFlags::default(),
            saved: 0,
            written: Vec::new(),
        }
    }

    #[test]
    fn mappings_that_cannot_be_are_refused() {
        assert!(
            image(vec![mapping(0x10000, 0x20000), mapping(0x20000, 0x21000)])
                .validate()
                .is_ok()
        );
        let bad = [
            vec![mapping(0x10000, 0x20000), mapping(0x1f000, 0x21000)],
            vec![mapping(0x10000, 0x10000)],
            vec![mapping(0x10001, 0x11000)],
            vec![mapping(0x20000, 0x10000)],
            vec![mapping(0x10000, u64::MAX - 4095)],
        ];
        for mappings in bad {
            assert!(image(mappings).validate().is_err());
        }
        let refused = |change: &dyn Fn(&mut MappingImage)| {
            let mut mapping = mapping(0x10000, 0x20000);
            change(&mut mapping);
            assert!(image(vec![mapping]).validate().is_err());
        };
        refused(&|m| m.kind = MappingKind::PrivateFile { file: 1, offset: 0 });
        // Such advice would poison memory, or drop it.
        refused(&|m| m.flags.advice = vec![libc::MADV_HWPOISON]);
        refused(&|m| m.flags.advice = vec![libc::MADV_DONTNEED]);
        refused(&|m| m.flags.huge_page = Some(0x20000));
        refused(&|m| m.flags.huge_page = Some(0));
        refused(&|m| m.flags.key = 16);
        refused(&|m| m.flags.guards = vec![(RemoteAddr(0x1f000), 0x2000)]);
        refused(&|m| m.flags.guards = vec![(RemoteAddr(0x1f000), u64::MAX)]);
        refused(&|m| m.written = vec![(RemoteAddr(0xf000), 0x1000)]);
    }

    #[test]
    fn images_come_back_from_json() {
        let mut before = mapping(0x10000, 0x20000);
        before.kind = MappingKind::External {
            key: "store".into(),
            offset: 4096,
            shared: true,
        };
        before.flags.advice = vec![libc::MADV_DONTFORK];
        let text = serde_json::to_string(&image(vec![before.clone(), mapping(0x20000, 0x21000)]));
        let after: MemoryImage = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(after.mappings[0].kind, before.kind);
        assert_eq!(after.mappings[0].flags, before.flags);
        assert_eq!(after.mappings[1].flags, MappingFlags::default());
    }
}
