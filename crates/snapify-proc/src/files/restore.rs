//! The second step of restoring descriptors: the new process has inherited all objects and moves
//! them to their numbers.

use super::prepare::{Prepared, Source, seal};
use super::{FilesImage, Object, locks};
use crate::error::ProcError;
use crate::ids::RemoteFd;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use rustix::fs::OFlags;
use std::os::fd::AsRawFd;

/// More than a socket's queue can hold, in bytes.
const GREATEST_QUEUE: u64 = 1 << 30;

/// Puts all descriptors of the process under construction in place and closes all others that it
/// has inherited. No later step may need an inherited descriptor.
///
/// # Errors
/// Those of the remote calls; a lock that another process has taken; content that does not fit.
pub fn restore(
    tracee: &mut Tracee<'_>,
    image: &FilesImage,
    prepared: Prepared,
    ctx: &mut RestoreContext<'_>,
) -> Result<(), ProcError> {
    for descriptor in &image.descriptors {
        let from = match &prepared.sources[descriptor.description] {
            Source::Own(fd) => fd.as_raw_fd(),
            Source::Context(fd) => fd.0,
            Source::OpenedThere => continue,
        };
        duplicate(tracee, from as u64, descriptor.fd, descriptor.close_on_exec)?;
    }
    close_others(tracee, image)?;
    open_there(tracee, image, &prepared)?;
    let mut done = vec![false; image.descriptions.len()];
    for descriptor in &image.descriptors {
        let again = std::mem::replace(&mut done[descriptor.description], true);
        if let Object::Epoll(epoll) = &image.descriptions[descriptor.description].object
            && !again
        {
            epoll.restore(
                tracee,
                descriptor.fd,
                |fd| is_stdio(image, fd),
                |text| ctx.warn(text),
            )?;
        }
    }
    for (pipe, new) in image.pipes.iter().zip(&prepared.pipes) {
        if let Some(object) = pipe.content {
            new.fill(&ctx.object_bytes(object, pipe.capacity as u64)?)?;
        }
    }
    seal(image, ctx)?;
    prepared.inet.finish(
        &image.inet,
        &|object| ctx.object_bytes(object, GREATEST_QUEUE),
        &|text| ctx.warn(text),
    )?;
    // With the last of our ends closed, the program's readers see the end of pipes whose writers
    // are gone.
    drop((prepared.sources, prepared.pipes));
    locks::restore(tracee, image)
}

fn duplicate(
    tracee: &mut Tracee<'_>,
    from: u64,
    to: RemoteFd,
    close_on_exec: bool,
) -> Result<(), ProcError> {
    let flags = if close_on_exec {
        libc::O_CLOEXEC as u64
    } else {
        0
    };
    tracee
        .syscall("dup3", libc::SYS_dup3, [from, to.0 as u64, flags, 0, 0, 0])
        .map(drop)
}

/// Closes everything between the numbers of the image and above them.
fn close_others(tracee: &mut Tracee<'_>, image: &FilesImage) -> Result<(), ProcError> {
    let mut next = 0;
    let ours = image
        .descriptors
        .iter()
        .filter(|d| !is_opened_there(image, d.description))
        .map(|d| d.fd.0 as u64);
    for fd in ours.chain([u64::from(u32::MAX) + 1]) {
        if next < fd {
            tracee.syscall(
                "close_range",
                libc::SYS_close_range,
                [next, fd - 1, 0, 0, 0, 0],
            )?;
        }
        next = fd + 1;
    }
    Ok(())
}

fn is_opened_there(image: &FilesImage, description: usize) -> bool {
    use super::regular::NamedType;
    matches!(&image.descriptions[description].object, Object::Named(file) if file.file_type == NamedType::OwnProc)
}

fn is_stdio(image: &FilesImage, fd: RemoteFd) -> bool {
    let at = image
        .descriptors
        .binary_search_by_key(&fd, |descriptor| descriptor.fd);
    at.is_ok_and(|at| {
        matches!(
            image.descriptions[image.descriptors[at].description].object,
            Object::Stdio(_)
        )
    })
}

/// Has the new process open what is about itself. All its other descriptors are in place, so that
/// what it opens gets a number that is free or its own.
fn open_there(
    tracee: &mut Tracee<'_>,
    image: &FilesImage,
    prepared: &Prepared,
) -> Result<(), ProcError> {
    for (index, description) in image.descriptions.iter().enumerate() {
        let Object::Named(file) = &description.object else {
            continue;
        };
        if !matches!(prepared.sources[index], Source::OpenedThere) {
            continue;
        }
        let numbers: Vec<_> = image
            .descriptors
            .iter()
            .filter(|d| d.description == index)
            .collect();
        let path = tracee.put_cstr(&file.identity.path)?;
        let flags = (file.open_flags(description.flags) | OFlags::CLOEXEC).bits();
        let at = libc::AT_FDCWD as u64;
        let opened = tracee
            .syscall(
                "openat",
                libc::SYS_openat,
                [at, path.0, flags.into(), 0, 0, 0],
            )
            .map_err(|error| match error {
                ProcError::RemoteSyscall { source, .. } => {
                    ProcError::file("open", &*file.identity.path)(source)
                }
                other => other,
            })?;
        tracee.syscall(
            "lseek",
            libc::SYS_lseek,
            [opened, file.offset as u64, libc::SEEK_SET as u64, 0, 0, 0],
        )?;
        let mut needed = false;
        for descriptor in numbers {
            if descriptor.fd.0 as u64 == opened {
                needed = true;
                let flags = if descriptor.close_on_exec {
                    libc::FD_CLOEXEC as u64
                } else {
                    0
                };
                tracee.syscall(
                    "fcntl",
                    libc::SYS_fcntl,
                    [opened, libc::F_SETFD as u64, flags, 0, 0, 0],
                )?;
            } else {
                duplicate(tracee, opened, descriptor.fd, descriptor.close_on_exec)?;
            }
        }
        if !needed {
            tracee.syscall("close", libc::SYS_close, [opened, 0, 0, 0, 0, 0])?;
        }
    }
    Ok(())
}
