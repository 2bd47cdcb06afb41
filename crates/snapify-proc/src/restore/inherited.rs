//! Descriptors that the processes under construction inherit from their init.

use super::RestorePlan;
use super::context::RestoreContext;
use crate::error::{Obstacle, ProcError};
use crate::ids::{Pid, RemoteFd};
use crate::image::{Backing, ObjectImage, TreeImage};
use crate::memory::{huge, named};
use crate::path::ImagePath;
use crate::scratch;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use snapify_sys::area::Area;
use snapify_sys::process;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Puts the caller's descriptors and fresh files for all objects above the numbers of the image.
///
/// # Errors
/// If there are not enough numbers, or a file cannot be made.
pub(super) fn gather<'a>(
    plan: &RestorePlan<'_>,
    image: &'a TreeImage,
) -> Result<RestoreContext<'a>, ProcError> {
    let numbers = image.processes.iter().flat_map(|p| &p.descriptors);
    let made = image.files.descriptions.len() + image.objects.len() + plan.externals.len();
    let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let first = first_number(numbers.map(|d| d.fd.0), 2 * made as u64 + 64, limit);
    let needed = u64::from(first.cast_unsigned()) + made as u64 + 3;
    if needed > limit {
        return Err(too_few_numbers(image, needed, limit));
    }
    let mut externals = HashMap::new();
    for (key, fd) in &plan.externals {
        externals.insert(key.clone(), above(fd.as_fd(), first)?);
    }
    let stdio = match &plan.stdio {
        Some([input, output, error]) => [
            above(input.as_fd(), first)?,
            above(output.as_fd(), first)?,
            above(error.as_fd(), first)?,
        ],
        None => [inherit(0, first)?, inherit(1, first)?, inherit(2, first)?],
    };
    scratch::make(image).map_err(|(path, source)| ProcError::file("make", path)(source))?;
    let mut objects = HashMap::new();
    let mut areas = HashMap::new();
    for object in &image.objects {
        if let Backing::Segment { .. } = object.backing {
            continue;
        }
        let file = fresh_file(object)?;
        let fd = above(file.as_fd(), first)?;
        // Files of huge pages cannot be written to but by way of memory.
        if let Backing::HugePages { .. } = object.backing {
            let area = Area::of_file(file.as_fd(), object.bytes)
                .map_err(ProcError::system(format!("map {}", object.what)))?;
            areas.insert(object.space, area);
        }
        objects.insert(object.space, (fd, File::from(file)));
    }
    Ok(RestoreContext {
        image,
        externals,
        objects,
        areas,
        removed_directories: RefCell::default(),
        stdio,
        first_inherited: RemoteFd(first),
        warnings: RefCell::default(),
    })
}

/// From which number on there are `room` numbers that no process of the image uses: above all of them, or if the limit leaves
/// too few there, in the largest gap. If there is no room at all, above.
fn first_number(used: impl Iterator<Item = i32>, room: u64, limit: u64) -> i32 {
    const LOWEST: i32 = 16;
    let mut used: Vec<i32> = used.filter(|&number| number >= LOWEST).collect();
    used.sort_unstable();
    used.dedup();
    let above = used.last().map_or(LOWEST, |last| last.saturating_add(1));
    if above as u64 + room <= limit {
        return above;
    }
    let starts = [LOWEST]
        .into_iter()
        .chain(used.iter().map(|n| n.saturating_add(1)));
    let gaps = starts.zip(&used).map(|(start, &end)| (end - start, start));
    match gaps.max() {
        Some((size, start)) if size as u64 >= room => start,
        _ => above,
    }
}

fn too_few_numbers(image: &TreeImage, needed: u64, limit: u64) -> ProcError {
    let why = format!(
        "the program's descriptors and the restart's take numbers up to {needed}, but the limit here is {limit}"
    );
    let obstacle = Obstacle::new("limit of open files", why).with_hint("raise it with ulimit -n");
    ProcError::Unsupported {
        pid: Pid(image.root().pid()),
        obstacles: vec![obstacle],
    }
}

/// The duplicate is not owned by anything here: it lives until this process closes everything that it does not need.
fn above(fd: BorrowedFd<'_>, first: i32) -> Result<RemoteFd, ProcError> {
    let what = || format!("duplicate descriptor {} above {first}", fd.as_raw_fd());
    process::duplicate_above(fd, first)
        .map(RemoteFd)
        .map_err(|source| ProcError::System {
            what: what(),
            source,
        })
}

/// One of our own standard descriptors; /dev/null if it is closed.
#[allow(unsafe_code)]
fn inherit(number: i32, first: i32) -> Result<RemoteFd, ProcError> {
    // SAFETY: only passed to fcntl, which answers EBADF if it is closed.
    let fd = unsafe { process::borrow(number) };
    match above(fd, first) {
        Err(e) if e.errno() == Some(libc::EBADF) => {
            let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
                .map_err(ProcError::file("open", "/dev/null"))?;
            above(null.as_fd(), first)
        }
        other => other,
    }
}

/// A file of the right length: POSIX shared memory by its name, others without one in the directory where the old one was, or in memory.
fn fresh_file(object: &ObjectImage) -> Result<OwnedFd, ProcError> {
    let in_directory = object.directory.as_ref().and_then(|directory| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(
            directory.as_path(),
            flags,
            Mode::from_raw_mode(object.mode & 0o7777),
        )
        .ok()
    });
    let by_name = |path: &ImagePath| {
        named::make(path, object.mode).map_err(ProcError::file("make", path.as_path()))
    };
    let file = match (&object.named, in_directory) {
        (Some(path), _) => by_name(path)?,
        (None, Some(file)) => file,
        (None, None) => memory_file(object).map_err(ProcError::system(format!(
            "make a file in memory for {}",
            object.what
        )))?,
    };
    rustix::fs::ftruncate(&file, object.bytes).map_err(ProcError::system(format!(
        "make a file of {} bytes for {}",
        object.bytes, object.what
    )))?;
    Ok(file)
}

/// A file in memory. What was such a file itself keeps its name; its seals come when its content is complete.
fn memory_file(object: &ObjectImage) -> rustix::io::Result<OwnedFd> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if let Backing::HugePages { page_bytes } = object.backing {
        flags |= MemfdFlags::from_bits_retain(huge::memfd_flags(page_bytes));
    }
    let name = memory_name(&object.what);
    let executable = flags | MemfdFlags::from_bits_retain(libc::MFD_EXEC);
    let file = match rustix::fs::memfd_create(name, executable) {
        // Before Linux 6.3, or forbidden by vm.memfd_noexec.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::ACCESS) => {
            rustix::fs::memfd_create(name, flags)?
        }
        other => other?,
    };
    // Not only for show: a seal against execution seals all else too if the file is executable at that time.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(object.mode & 0o7777))?;
    Ok(file)
}

/// The name for a file in memory that takes the place of `what`.
fn memory_name(what: &str) -> &str {
    let own = what
        .strip_prefix("/memfd:")
        .map(|name| name.strip_suffix(" (deleted)").unwrap_or(name));
    own.unwrap_or("snapify-object")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_above_or_between() {
        let first = |used: &[i32], room, limit| first_number(used.iter().copied(), room, limit);
        assert_eq!(first(&[], 100, 1024), 16);
        assert_eq!(first(&[0, 1, 2, 40], 100, 1024), 41);
        assert_eq!(first(&[0, 1, 2, 40, 1023], 100, 1024), 41);
        assert_eq!(first(&[0, 1, 2, 800, 1023], 100, 1024), 16);
        assert_eq!(first(&[i32::MAX], 100, 1024), 16);
        let all: Vec<i32> = (0..1024).collect();
        assert_eq!(first(&all, 100, 1024), 1024);
    }
}
