//! What a mapping is, as far as it decides how it is saved.

use super::image::USER_END;
use super::{shared, vdso};
use crate::capture::CaptureContext;
use crate::error::Obstacle;
use crate::procfs::maps::{Mapping, VmFlags};
use rustix::fs::FileType;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a mapping is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// `[vsyscall]`: the same in all processes.
    Skip,
    /// Part of the vDSO group.
    Kernel,
    /// An agent's.
    External(String),
    /// Private anonymous memory.
    Private,
    /// Private mapping of a file that is gone.
    PrivateGone,
    /// A System V segment with this id.
    Segment(i32),
    /// Private mapping of a file with a name.
    PrivateFile,
    /// Shared memory or a shared mapping of a file that is gone.
    Shared,
    /// Shared mapping of a file with a name.
    SharedFile,
    /// Cannot be saved.
    Obstacle(Obstacle),
}

pub(super) fn classify(mapping: &Mapping, ctx: &CaptureContext<'_>) -> Class {
    let name = mapping.name.as_slice();
    if name == b"[vsyscall]" {
        return Class::Skip;
    }
    if vdso::is_part(name) {
        return Class::Kernel;
    }
    if let Some(external) = ctx
        .externals
        .iter()
        .find(|e| e.maps(mapping.start, mapping.bytes()))
    {
        return Class::External(external.key.clone());
    }
    if mapping.end.0 > USER_END {
        return Class::Obstacle(Obstacle::new(
            place(mapping),
            "it lies above the 47 bits of addresses that every processor has",
        ));
    }
    if let Some(why) = flag_obstacle(mapping) {
        return Class::Obstacle(Obstacle::new(place(mapping), why));
    }
    if let Some(id) = shared::segment_id(mapping) {
        return Class::Segment(id);
    }
    if name == b"/secretmem (deleted)" {
        return Class::Obstacle(Obstacle::new(
            place(mapping),
            "it is secret memory (memfd_secret), which nobody else may read",
        ));
    }
    if !mapping.is_file() {
        // Anonymous, perhaps named: [heap], [stack], [anon:...]. Everything else in brackets or without a file is a
        // special mapping of the kernel.
        let plain = name.is_empty()
            || name == b"[heap]"
            || name.starts_with(b"[stack")
            || name.starts_with(b"[anon:");
        return if plain && !mapping.shared {
            Class::Private
        } else {
            Class::Obstacle(Obstacle::new(
                place(mapping),
                "this kind of memory is not supported",
            ))
        };
    }
    if name.starts_with(b"[anon_shmem:") && mapping.shared {
        return Class::Shared;
    }
    if name.first() != Some(&b'/') {
        // anon_inode:[io_uring], anon_inode:[perf_event], socket:[...]
        return Class::Obstacle(Obstacle::new(
            place(mapping),
            "a mapping of such an object is not supported",
        ));
    }
    if name.starts_with(b"/[aio]") {
        return Class::Obstacle(Obstacle::new(
            place(mapping),
            "asynchronous I/O (io_setup) is not supported",
        ));
    }
    if name == b"/anon_hugepage (deleted)" && !mapping.shared {
        return Class::Private;
    }
    match (mapping.shared, file_type(mapping)) {
        (true, None) => Class::Shared,
        (false, None) => Class::PrivateGone,
        // Shared memory made of it is a file of its own. Shared, but of a descriptor that cannot write, the kernel takes it for private.
        (_, Some(FileType::CharacterDevice)) if name == b"/dev/zero" => Class::Private,
        (true, Some(FileType::RegularFile)) => Class::SharedFile,
        (false, Some(FileType::RegularFile)) => Class::PrivateFile,
        (_, Some(_)) => Class::Obstacle(Obstacle::new(
            place(mapping),
            "a mapping of a device is not supported",
        )),
    }
}

/// The type of the mapped file; `None` if it has no name any more. A file whose name really ends in ` (deleted)`
/// is told by its inode number.
fn file_type(mapping: &Mapping) -> Option<FileType> {
    let path = Path::new(OsStr::from_bytes(&mapping.name));
    match rustix::fs::stat(path) {
        Ok(stat) if !mapping.marked_deleted() || stat.st_ino == mapping.inode => {
            Some(FileType::from_raw_mode(stat.st_mode))
        }
        _ => None,
    }
}

/// What of the flags of a mapping stands in the way of saving it.
pub(super) fn flag_obstacle(mapping: &Mapping) -> Option<&'static str> {
    let flags = mapping.flags.unwrap_or_default();
    let any = |bits: &[VmFlags]| bits.iter().any(|&bit| flags.has(bit));
    if any(&[VmFlags::IO, VmFlags::PFN_MAP, VmFlags::MIXED_MAP]) {
        Some("device memory is not supported")
    } else if any(&[VmFlags::UFFD_MISSING, VmFlags::UFFD_MINOR]) {
        Some("it is watched with userfaultfd, which is not supported")
    } else if any(&[VmFlags::SHADOW_STACK]) {
        Some("shadow stacks (CET) are not supported")
    } else if any(&[VmFlags::SYNC]) {
        Some("MAP_SYNC is not supported")
    } else {
        None
    }
}

/// A mapping in words.
pub(super) fn place(mapping: &Mapping) -> String {
    let name = String::from_utf8_lossy(&mapping.name);
    format!("mapping {}-{} {name}", mapping.start, mapping.end)
        .trim_end()
        .to_owned()
}
