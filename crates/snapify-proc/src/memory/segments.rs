//! Attaching System V segments at restore. shmat(2) maps a segment as a whole; what a program has unmapped, moved or
//! protected since is done again afterwards.

use super::gaps::Used;
use super::image::{MappingImage, MappingKind, MemoryImage};
use crate::error::ProcError;
use crate::ipc::IpcImage;
use crate::remote::Tracee;
use std::collections::BTreeMap;

/// One call of shmat(2), as far as the mappings still tell: those that begin at the same place if the segment did.
#[derive(Default)]
struct Attachment<'a> {
    pieces: Vec<&'a MappingImage>,
    may_write: bool,
    may_execute: bool,
}

/// Attaches all segments, before anything else is mapped.
///
/// # Errors
/// If the kernel refuses, or there is no room.
pub(super) fn attach(
    tracee: &mut Tracee<'_>,
    image: &MemoryImage,
    ipc: &IpcImage,
    used: &Used,
) -> Result<(), ProcError> {
    let mut attachments: BTreeMap<(i32, i128), Attachment<'_>> = BTreeMap::new();
    for mapping in &image.mappings {
        let MappingKind::Segment {
            segment,
            offset,
            may_write,
        } = mapping.kind
        else {
            continue;
        };
        let begin = i128::from(mapping.start.0) - i128::from(offset);
        let attachment = attachments.entry((segment, begin)).or_default();
        attachment.pieces.push(mapping);
        attachment.may_write |= may_write;
        attachment.may_execute |= mapping.prot & libc::PROT_EXEC != 0;
    }
    for ((id, _), attachment) in attachments {
        let segment = ipc.segment(id).ok_or_else(|| {
            ProcError::BadImage(format!("it has no segment {id} that it has attached"))
        })?;
        let page = segment.huge_page.unwrap_or(snapify_store::PAGE_SIZE);
        let bytes = segment.bytes.checked_next_multiple_of(page);
        let bytes =
            bytes.ok_or_else(|| ProcError::BadImage(format!("segment {id} is too long")))?;
        attachment.make(tracee, id, (bytes, page), used)?;
    }
    Ok(())
}

impl Attachment<'_> {
    fn make(
        &self,
        tracee: &mut Tracee<'_>,
        id: i32,
        (bytes, page): (u64, u64),
        used: &Used,
    ) -> Result<(), ProcError> {
        let flag = |on: bool, bit: i32| if on { bit as u64 } else { 0 };
        let flags =
            flag(!self.may_write, libc::SHM_RDONLY) | flag(self.may_execute, libc::SHM_EXEC);
        let mut shmat = |at: u64| {
            tracee
                .syscall("shmat", libc::SYS_shmat, [id as u64, at, flags, 0, 0, 0])
                .map(drop)
        };
        if let [whole] = self.pieces.as_slice()
            && whole.kind.offset() == Some(0)
            && whole.bytes() == bytes
        {
            shmat(whole.start.0)?;
        } else {
            // Somewhere else, from where the pieces are moved to their places.
            let room = used.gaps(bytes.saturating_add(page));
            let mut places = room.map(|at| at.next_multiple_of(page)).take(64);
            let at = loop {
                let at = places.next().ok_or_else(|| {
                    ProcError::BadImage(format!("it leaves no room to attach segment {id}"))
                })?;
                match shmat(at) {
                    Ok(()) => break at,
                    // Below vm.mmap_min_addr.
                    Err(e) if matches!(e.errno(), Some(libc::EPERM | libc::EINVAL)) => {}
                    Err(e) => return Err(e),
                }
            };
            for piece in &self.pieces {
                let from = at + piece.kind.offset().unwrap_or(0);
                let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
                let size = piece.bytes();
                tracee.syscall(
                    "mremap of a segment",
                    libc::SYS_mremap,
                    [from, size, size, flags, piece.start.0, 0],
                )?;
            }
            tracee.syscall("munmap", libc::SYS_munmap, [at, bytes, 0, 0, 0, 0])?;
        }
        let given = libc::PROT_READ
            | if self.may_write { libc::PROT_WRITE } else { 0 }
            | if self.may_execute { libc::PROT_EXEC } else { 0 };
        for piece in self.pieces.iter().filter(|piece| piece.prot != given) {
            let args = [piece.start.0, piece.bytes(), piece.prot as u64, 0, 0, 0];
            tracee.syscall("mprotect", libc::SYS_mprotect, args)?;
        }
        Ok(())
    }
}
