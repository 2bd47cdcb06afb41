//! What holds for an address space as a whole and is shown by no mapping: that new mappings are locked, that all of them take part
//! in page merging, and which protection keys are in use.

use super::image::MemoryImage;
use crate::capture::CaptureContext;
use crate::error::ProcError;
use crate::procfs::text;
use crate::remote::Tracee;
use serde::{Deserialize, Serialize};
use snapify_store::PAGE_SIZE;

const PR_SET_MEMORY_MERGE: u64 = 67;
const PR_GET_MEMORY_MERGE: u64 = 68;
/// Protection keys that x86 has. Key 0 is that of all memory without another.
const KEYS: u32 = 16;

/// Settings of an address space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How new mappings are locked, if they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_new: Option<LockNew>,
    /// Whether all memory that can be is merged with equal pages (`PR_SET_MEMORY_MERGE`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge: bool,
    /// Protection keys that are allocated (pkey_alloc(2)).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<u32>,
}

/// mlockall(2) for what is mapped later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockNew {
    /// `MCL_FUTURE`
    AtOnce,
    /// `MCL_FUTURE | MCL_ONFAULT`
    WhenTouched,
}

impl Settings {
    /// Whether every key is one that can be allocated.
    pub(super) fn is_sound(&self) -> bool {
        self.keys.iter().all(|&key| key > 0 && key < KEYS)
    }
}

/// Reads the settings of a frozen process.
///
/// # Errors
/// If it is killed.
pub(super) fn capture(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
) -> Result<Settings, ProcError> {
    let args = [PR_GET_MEMORY_MERGE, 0, 0, 0, 0, 0];
    // EINVAL before Linux 6.4.
    let merge = match tracee.syscall("prctl(PR_GET_MEMORY_MERGE)", libc::SYS_prctl, args) {
        Ok(merge) => merge != 0,
        Err(e) if e.errno() == Some(libc::EINVAL) => false,
        Err(e) => return Err(e),
    };
    Ok(Settings {
        lock_new: lock_new(tracee, ctx)?,
        merge,
        keys: keys(tracee)?,
    })
}

/// The flags of mlockall(2) are shown nowhere: a mapping is made and looked at.
fn lock_new(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
) -> Result<Option<LockNew>, ProcError> {
    let before = locked(ctx)?;
    // The scratch memory would be locked as well.
    if before == 0 {
        return Ok(None);
    }
    let args = [
        0,
        PAGE_SIZE,
        libc::PROT_READ as u64,
        (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64,
        u64::MAX,
        0,
    ];
    let page = tracee.syscall("mmap", libc::SYS_mmap, args)?;
    let result = look_at(tracee, ctx, page, before);
    tracee.syscall("munmap", libc::SYS_munmap, [page, PAGE_SIZE, 0, 0, 0, 0])?;
    result
}

fn look_at(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
    page: u64,
    before: u64,
) -> Result<Option<LockNew>, ProcError> {
    if locked(ctx)? <= before {
        return Ok(None);
    }
    // What is locked at once is there at once.
    let scratch = tracee.scratch().addr;
    let args = [page, PAGE_SIZE, scratch.0, 0, 0, 0];
    tracee.syscall("mincore", libc::SYS_mincore, args)?;
    Ok(Some(match tracee.get::<u8>(scratch)? & 1 {
        0 => LockNew::WhenTouched,
        _ => LockNew::AtOnce,
    }))
}

/// Kilobytes of locked memory now.
fn locked(ctx: &CaptureContext<'_>) -> Result<u64, ProcError> {
    let status = ctx.proc.read("status")?;
    let line = text::lines(&status).find_map(|line| line.strip_prefix(b"VmLck:"));
    let number = line.and_then(|rest| text::words(rest).next());
    Ok(number
        .and_then(|number| text::unsigned(number, 10))
        .unwrap_or(0))
}

/// Which protection keys are allocated: only those can be given to memory. The key that the kernel takes for memory that can
/// only be executed does not count as one.
fn keys(tracee: &mut Tracee<'_>) -> Result<Vec<u32>, ProcError> {
    let scratch = tracee.scratch();
    let page = scratch.addr.offset(scratch.len - PAGE_SIZE);
    let mut is_allocated = |key: u32| {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let args = [page.0, PAGE_SIZE, prot, u64::from(key), 0, 0];
        match tracee.syscall("pkey_mprotect", libc::SYS_pkey_mprotect, args) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.errno(), Some(libc::EINVAL | libc::ENOSYS)) => Ok(false),
            Err(e) => Err(e),
        }
    };
    let mut keys = Vec::new();
    // Without the hardware not even key 0 is known.
    if is_allocated(0)? {
        for key in 1..KEYS {
            if is_allocated(key)? {
                keys.push(key);
            }
        }
        is_allocated(0)?;
    }
    Ok(keys)
}

/// Before anything is mapped: allocates the protection keys, also such as were freed while memory had them.
///
/// # Errors
/// If this machine has no such keys.
pub(super) fn prepare(tracee: &mut Tracee<'_>, image: &MemoryImage) -> Result<(), ProcError> {
    let in_use = |key: u32| {
        image.settings.keys.contains(&key) || image.mappings.iter().any(|m| m.flags.key == key)
    };
    let Some(last) = (1..KEYS).rfind(|&key| in_use(key)) else {
        return Ok(());
    };
    let mut free = Vec::new();
    loop {
        // The lowest free key. What the calling thread may do with it is in its registers, which are set at the end.
        let key = tracee.syscall("pkey_alloc", libc::SYS_pkey_alloc, [0; 6])? as u32;
        if !in_use(key) {
            free.push(key);
        }
        if key >= last {
            break;
        }
    }
    free.into_iter().try_for_each(|key| release(tracee, key))
}

fn release(tracee: &mut Tracee<'_>, key: u32) -> Result<(), ProcError> {
    let args = [u64::from(key), 0, 0, 0, 0, 0];
    tracee.syscall("pkey_free", libc::SYS_pkey_free, args)?;
    Ok(())
}

/// When the last mapping has its key: frees those that only memory has.
///
/// # Errors
/// If the process is killed.
pub(super) fn free_keys(tracee: &mut Tracee<'_>, image: &MemoryImage) -> Result<(), ProcError> {
    for key in 1..KEYS {
        let mapped = image.mappings.iter().any(|m| m.flags.key == key);
        if mapped && !image.settings.keys.contains(&key) {
            release(tracee, key)?;
        }
    }
    Ok(())
}

/// When everything is mapped, locked and filled. Returns what could not be done.
///
/// # Errors
/// If the process is killed.
pub(super) fn finish(
    tracee: &mut Tracee<'_>,
    settings: &Settings,
    warnings: &mut Vec<String>,
) -> Result<(), ProcError> {
    let mut attempt = |what: &str, name, number, args| match tracee.syscall(name, number, args) {
        Ok(_) => Ok(()),
        Err(e) if e.errno().is_some() => {
            warnings.push(format!("{what}: {e}"));
            Ok(())
        }
        Err(e) => Err(e),
    };
    if settings.merge {
        let args = [PR_SET_MEMORY_MERGE, 1, 0, 0, 0, 0];
        let what = "equal pages are not merged any more";
        attempt(what, "prctl(PR_SET_MEMORY_MERGE)", libc::SYS_prctl, args)?;
    }
    let flags = match settings.lock_new {
        None => return Ok(()),
        Some(LockNew::AtOnce) => libc::MCL_FUTURE,
        Some(LockNew::WhenTouched) => libc::MCL_FUTURE | libc::MCL_ONFAULT,
    };
    let args = [flags as u64, 0, 0, 0, 0, 0];
    let what = "memory mapped from now on is not locked";
    attempt(what, "mlockall", libc::SYS_mlockall, args)
}
