//! Making the mappings of an image in a process that has nothing but a trampoline and its vDSO.

use super::gaps::Used;
use super::image::{MappingFlags, MappingImage, MappingKind, MemoryImage, USER_END};
use super::vdso::{self, Part};
use super::{huge, segments, settings};
use crate::error::ProcError;
use crate::ids::{RemoteAddr, RemoteFd};
use crate::procfs::maps::Mapping;
use crate::remote::{SCRATCH_BYTES, SYSCALL, Scratch, Tracee};
use crate::reopen;
use crate::restore::RestoreContext;
use snapify_store::PAGE_SIZE;
use std::path::Path;

const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXEC: u64 = libc::PROT_EXEC as u64;
const ANONYMOUS: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
const MAP_DROPPABLE: u64 = 0x08;
const MADV_GUARD_INSTALL: u64 = 102;
const SYS_MSEAL: i64 = 462;
const PR_SET_VMA: u64 = 0x5356_4d41;
const PR_SET_VMA_ANON_NAME: u64 = 0;
const NO_FD: u64 = u64::MAX;
/// `ldtilecfg (%rdi)`, `tilezero %tmm0`: what a thread executes before it can be given AMX tiles.
const TILE_CODE: [u8; 10] = [0xc4, 0xe2, 0x78, 0x49, 0x07, 0xc4, 0xe2, 0x7b, 0x49, 0xc0];
const TILE_CODE_AT: usize = 64;
/// One page of code, then scratch memory.
const TRAMPOLINE_BYTES: u64 = PAGE_SIZE + SCRATCH_BYTES;

/// The code page and the scratch memory through which a process is built; unmapped at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trampoline {
    start: RemoteAddr,
}

impl Trampoline {
    /// Where [`TILE_CODE`] is.
    pub(crate) fn tile_code(self) -> RemoteAddr {
        self.start.offset(TILE_CODE_AT as u64)
    }

    /// Lets another process that has the same memory use it.
    pub(crate) fn use_in(self, tracee: &mut Tracee<'_>) {
        tracee.set_instruction(self.start);
        tracee.set_scratch(Scratch {
            addr: self.start.offset(PAGE_SIZE),
            len: SCRATCH_BYTES,
        });
    }

    /// Unmaps it from under the call itself, which ends before another instruction would be fetched.
    pub(crate) fn remove(self, tracee: &mut Tracee<'_>) -> Result<(), ProcError> {
        tracee.syscall(
            "munmap",
            libc::SYS_munmap,
            [self.start.0, TRAMPOLINE_BYTES, 0, 0, 0, 0],
        )?;
        Ok(())
    }
}

/// Empties the address space of a process and makes the mappings of the image in it, with no contents yet.
/// `maps` are its mappings now. Those in `kept` (start and end, ascending) are mappings of the image, and stay as they are.
///
/// # Errors
/// If the kernel refuses one of them.
pub(crate) fn build(
    tracee: &mut Tracee<'_>,
    image: &MemoryImage,
    maps: &[Mapping],
    kept: &[(u64, u64)],
    ctx: &RestoreContext<'_>,
) -> Result<Trampoline, ProcError> {
    let now = maps.iter().map(|m| (m.start.0, m.end.0));
    let used = Used::new(now.chain(image.mappings.iter().map(|m| (m.start.0, m.end.0))));
    let trampoline = trampoline(tracee, &used)?;
    let group = vdso::parts(maps);
    let (vdso_start, vdso_end) = match (group.first(), group.last()) {
        (Some(first), Some(last)) => (first.start, last.end),
        _ => (0, 0),
    };
    let mut stay = kept.to_vec();
    stay.push((trampoline.start.0, trampoline.start.0 + TRAMPOLINE_BYTES));
    stay.push((vdso_start, vdso_end));
    unmap_all_but(tracee, stay)?;
    move_vdso(tracee, &group, &vdso::image_parts(image), &used, trampoline)?;

    settings::prepare(tracee, image)?;
    let (start, end) = (trampoline.start.0, trampoline.start.0 + TRAMPOLINE_BYTES);
    segments::attach(tracee, image, &ctx.image.ipc, &used.and(start, end))?;
    let mut open = OpenFile::default();
    let is_kept = |m: &MappingImage| kept.binary_search(&(m.start.0, m.end.0)).is_ok();
    let missing = image
        .mappings
        .iter()
        .filter(|m| !m.is_kernel() && !is_kept(m));
    for mapping in missing {
        map(tracee, image, mapping, ctx, &mut open)?;
        advise(tracee, mapping)?;
        blank(tracee, mapping)?;
    }
    open.close(tracee)?;
    Ok(trampoline)
}

/// Fills pages that hide those of a file with zeros: a page file leaves zeros out.
fn blank(tracee: &Tracee<'_>, mapping: &MappingImage) -> Result<(), ProcError> {
    static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];
    for &(start, bytes) in &mapping.written {
        let mut at = 0;
        while at < bytes {
            let n = (bytes - at).min(ZEROS.len() as u64);
            tracee.write(start.offset(at), &ZEROS[..n as usize])?;
            at += n;
        }
    }
    Ok(())
}

fn trampoline(tracee: &mut Tracee<'_>, used: &Used) -> Result<Trampoline, ProcError> {
    for start in used.gaps(TRAMPOLINE_BYTES).take(64) {
        // In one piece, so that it takes one mapping only: the image may have as many as there can be (vm.max_map_count).
        let map = |prot| [start, TRAMPOLINE_BYTES, prot, ANONYMOUS, NO_FD, 0];
        let whole = tracee.syscall("mmap", libc::SYS_mmap, map(READ | WRITE | EXEC));
        let forbidden = |e: &ProcError| matches!(e.errno(), Some(libc::EACCES));
        let (mapped, in_pieces) = match whole {
            // By SELinux, which lets no memory be written and executed.
            Err(e) if forbidden(&e) => {
                let args = map(READ | WRITE);
                (tracee.syscall("mmap", libc::SYS_mmap, args), true)
            }
            other => (other, false),
        };
        match mapped {
            Ok(_) => {
                let start = RemoteAddr(start);
                let mut code = [0_u8; TILE_CODE_AT + TILE_CODE.len()];
                code[..SYSCALL.len()].copy_from_slice(&SYSCALL);
                code[TILE_CODE_AT..].copy_from_slice(&TILE_CODE);
                tracee.write(start, &code)?;
                if in_pieces {
                    let args = [start.0, PAGE_SIZE, READ | EXEC, 0, 0, 0];
                    tracee.syscall("mprotect", libc::SYS_mprotect, args)?;
                }
                let trampoline = Trampoline { start };
                trampoline.use_in(tracee);
                return Ok(trampoline);
            }
            // Below vm.mmap_min_addr, or mapped since the list was read.
            Err(e) if matches!(e.errno(), Some(libc::EPERM | libc::EEXIST | libc::EINVAL)) => {}
            Err(e) => return Err(e),
        }
    }
    Err(ProcError::BadImage(
        "it leaves no room in the address space to build it".into(),
    ))
}

fn unmap_all_but(tracee: &mut Tracee<'_>, mut keep: Vec<(u64, u64)>) -> Result<(), ProcError> {
    keep.sort_unstable();
    let mut at = 0;
    for (start, end) in keep.into_iter().chain([(USER_END, USER_END)]) {
        if start > at {
            tracee.syscall("munmap", libc::SYS_munmap, [at, start - at, 0, 0, 0, 0])?;
        }
        at = at.max(end);
    }
    Ok(())
}

/// Moves the vDSO group to where the image has it. Its parts are moved one by one by the same distance; if the old and the
/// new place overlap, by way of a third.
fn move_vdso(
    tracee: &mut Tracee<'_>,
    here: &[Part],
    wanted: &[Part],
    used: &Used,
    trampoline: Trampoline,
) -> Result<(), ProcError> {
    let (Some(first), Some(last)) = (here.first(), here.last()) else {
        return Ok(());
    };
    let (start, end) = (first.start, last.end);
    let Some(target) = wanted.first().map(|part| part.start) else {
        tracee.syscall("munmap", libc::SYS_munmap, [start, end - start, 0, 0, 0, 0])?;
        return Ok(());
    };
    if target == start {
        return Ok(());
    }
    let shift = |tracee: &mut Tracee<'_>, from: u64, to: u64| {
        for part in here {
            let (at, bytes) = (from + (part.start - start), part.end - part.start);
            let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
            let new = to + (part.start - start);
            tracee.syscall(
                "mremap of the vDSO",
                libc::SYS_mremap,
                [at, bytes, bytes, flags, new, 0],
            )?;
        }
        Ok::<(), ProcError>(())
    };
    let bytes = end - start;
    if target < end && start < target + bytes {
        let beside = |at: &u64| {
            *at >= trampoline.start.0 + TRAMPOLINE_BYTES || *at + bytes <= trampoline.start.0
        };
        let third = used
            .gaps(bytes + TRAMPOLINE_BYTES)
            .map(|at| at + TRAMPOLINE_BYTES)
            .find(beside);
        let third = third
            .ok_or_else(|| ProcError::BadImage("it leaves no room to move the vDSO".into()))?;
        shift(tracee, start, third)?;
        shift(tracee, third, target)
    } else {
        shift(tracee, start, target)
    }
}

/// The file that was opened last: mappings of one file follow each other.
#[derive(Default)]
struct OpenFile(Option<(Opened, u64)>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Opened {
    /// A file of the image, and whether for writing.
    File(usize, bool),
    /// An object, for reading.
    Object(RemoteFd),
}

impl OpenFile {
    fn get(
        &mut self,
        tracee: &mut Tracee<'_>,
        image: &MemoryImage,
        file: usize,
        write: bool,
    ) -> Result<u64, ProcError> {
        let path = image.files[file].identity.path.as_path();
        self.open(tracee, Opened::File(file, write), path, write)
    }

    fn get_object(&mut self, tracee: &mut Tracee<'_>, object: RemoteFd) -> Result<u64, ProcError> {
        let path = format!("/proc/self/fd/{object}");
        self.open(tracee, Opened::Object(object), path.as_ref(), false)
    }

    fn open(
        &mut self,
        tracee: &mut Tracee<'_>,
        what: Opened,
        path: &Path,
        write: bool,
    ) -> Result<u64, ProcError> {
        if let Some((opened, fd)) = self.0
            && opened == what
        {
            return Ok(fd);
        }
        self.close(tracee)?;
        let fd = open_remote(tracee, path, write)?;
        self.0 = Some((what, fd));
        Ok(fd)
    }

    fn close(&mut self, tracee: &mut Tracee<'_>) -> Result<(), ProcError> {
        if let Some((_, fd)) = self.0.take() {
            tracee.syscall("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
        }
        Ok(())
    }
}

/// Opens a file in the tracee.
pub(super) fn open_remote(
    tracee: &mut Tracee<'_>,
    path: &Path,
    write: bool,
) -> Result<u64, ProcError> {
    let name = tracee.put_cstr(path)?;
    let mode = if write { libc::O_RDWR } else { libc::O_RDONLY };
    let flags = (mode | libc::O_CLOEXEC) as u64;
    let args = [libc::AT_FDCWD as u64, name.0, flags, 0, 0, 0];
    let is_denied = |error: &ProcError| error.errno() == Some(libc::EACCES);
    reopen::as_owner(path, is_denied, || {
        tracee.syscall("openat", libc::SYS_openat, args)
    })
    .map_err(|e| match e {
        ProcError::RemoteSyscall { source, .. } => ProcError::file("open", path)(source),
        other => other,
    })
}

/// Whether the mapping must be writable until it is filled, or was so when it was accounted for.
fn write_first(mapping: &MappingImage) -> bool {
    mapping.kind.is_private()
        && mapping.prot & libc::PROT_WRITE == 0
        && (mapping.saved > 0 || mapping.flags.accounted)
}

/// The protection of a mapping until it is filled.
pub(super) fn first_protection(mapping: &MappingImage) -> u64 {
    mapping.prot as u64 | if write_first(mapping) { WRITE } else { 0 }
}

fn map(
    tracee: &mut Tracee<'_>,
    image: &MemoryImage,
    mapping: &MappingImage,
    ctx: &RestoreContext<'_>,
    open: &mut OpenFile,
) -> Result<(), ProcError> {
    let MappingFlags {
        grows_down,
        no_reserve,
        droppable,
        ..
    } = mapping.flags;
    let private = libc::MAP_PRIVATE as u64;
    let shared = libc::MAP_SHARED as u64;
    let (sharing, fd, offset) = match &mapping.kind {
        MappingKind::Private => {
            let sharing = if droppable { MAP_DROPPABLE } else { private };
            let huge = mapping.flags.huge_page.map_or(0, huge::map_flags);
            (sharing | huge | libc::MAP_ANONYMOUS as u64, NO_FD, 0)
        }
        MappingKind::PrivateFile { file, offset } => {
            (private, open.get(tracee, image, *file, false)?, *offset)
        }
        MappingKind::SharedFile {
            file,
            offset,
            may_write,
        } => (shared, open.get(tracee, image, *file, *may_write)?, *offset),
        MappingKind::Shared {
            object,
            offset,
            may_write: true,
        } => (shared, ctx.object(*object)?.0 as u64, *offset),
        // By a description that cannot be written to: no mapping that might be made writable may be in the way of
        // a seal against writing.
        MappingKind::Shared { object, offset, .. } => (
            shared,
            open.get_object(tracee, ctx.object(*object)?)?,
            *offset,
        ),
        MappingKind::PrivateObject { object, offset } => {
            (private, ctx.object(*object)?.0 as u64, *offset)
        }
        MappingKind::External {
            key,
            offset,
            shared: is_shared,
        } => (
            if *is_shared { shared } else { private },
            ctx.external(key)?.0 as u64,
            *offset,
        ),
        MappingKind::Kernel { .. } | MappingKind::Segment { .. } => return Ok(()),
    };
    let flag = |on: bool, bit: i32| if on { bit as u64 } else { 0 };
    let flags = sharing
        | libc::MAP_FIXED_NOREPLACE as u64
        | flag(grows_down, libc::MAP_GROWSDOWN)
        | flag(no_reserve, libc::MAP_NORESERVE);
    let prot = first_protection(mapping);
    let args = [mapping.start.0, mapping.bytes(), prot, flags, fd, offset];
    tracee
        .syscall("mmap", libc::SYS_mmap, args)
        .map_err(|e| match e {
            ProcError::RemoteSyscall { source, .. } => ProcError::System {
                what: format!("map {}-{} of the image", mapping.start, mapping.end),
                source,
            },
            other => other,
        })?;
    Ok(())
}

fn advise(tracee: &mut Tracee<'_>, mapping: &MappingImage) -> Result<(), ProcError> {
    for &advice in &mapping.flags.advice {
        let args = [mapping.start.0, mapping.bytes(), advice as u64, 0, 0, 0];
        match tracee.syscall("madvise", libc::SYS_madvise, args) {
            Ok(_) => {}
            // A kernel without huge pages or KSM, where the advice means nothing.
            Err(e) if e.errno() == Some(libc::EINVAL) => {
                tracing::debug!("advice {advice} is not known here")
            }
            Err(e) => return Err(e),
        }
    }
    if let Some(name) = &mapping.flags.name {
        let at = tracee.put_cstr(name)?;
        let args = [
            PR_SET_VMA,
            PR_SET_VMA_ANON_NAME,
            mapping.start.0,
            mapping.bytes(),
            at.0,
            0,
        ];
        match tracee.syscall("prctl(PR_SET_VMA)", libc::SYS_prctl, args) {
            Ok(_) => {}
            // A kernel without names for memory, which are for people.
            Err(e) if e.errno() == Some(libc::EINVAL) => {
                tracing::debug!("memory {} is not called {name} any more", mapping.start)
            }
            Err(e) => return Err(e),
        }
    }
    for &(start, bytes) in &mapping.flags.guards {
        tracee.syscall(
            "madvise",
            libc::SYS_madvise,
            [start.0, bytes, MADV_GUARD_INSTALL, 0, 0, 0],
        )?;
    }
    Ok(())
}

/// After the contents: protection that would have been in the way, and locks. Returns what could not be done
/// and does not matter to the program's results.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn finish(
    tracee: &mut Tracee<'_>,
    image: &MemoryImage,
) -> Result<Vec<String>, ProcError> {
    let mut warnings = Vec::new();
    let protected = |m: &&MappingImage| write_first(m) || m.flags.key != 0;
    for mapping in image.mappings.iter().filter(protected) {
        let (start, bytes, prot) = (mapping.start.0, mapping.bytes(), mapping.prot as u64);
        match mapping.flags.key {
            0 => tracee.syscall(
                "mprotect",
                libc::SYS_mprotect,
                [start, bytes, prot, 0, 0, 0],
            )?,
            key => tracee.syscall(
                "pkey_mprotect",
                libc::SYS_pkey_mprotect,
                [start, bytes, prot, u64::from(key), 0, 0],
            )?,
        };
    }
    settings::free_keys(tracee, image)?;
    for mapping in image
        .mappings
        .iter()
        .filter(|m| m.flags.locked && !m.is_kernel())
    {
        let on_fault = u64::from(mapping.flags.locked_on_fault);
        let args = [mapping.start.0, mapping.bytes(), on_fault, 0, 0, 0];
        if let Err(e) = tracee.syscall("mlock2", libc::SYS_mlock2, args) {
            if e.errno().is_none() {
                return Err(e);
            }
            warnings.push(format!(
                "memory {}-{} is not locked any more: {e}",
                mapping.start, mapping.end
            ));
        }
    }
    for mapping in image
        .mappings
        .iter()
        .filter(|m| m.flags.sealed && !m.is_kernel())
    {
        tracee.syscall(
            "mseal",
            SYS_MSEAL,
            [mapping.start.0, mapping.bytes(), 0, 0, 0, 0],
        )?;
    }
    settings::finish(tracee, &image.settings, &mut warnings)?;
    Ok(warnings)
}
