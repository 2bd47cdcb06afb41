//! The second step of restoring descriptors: the new processes have inherited all objects and move
//! them to their numbers.

use super::prepare::{Prepared, Source, complete_removed};
use super::regular::NamedFile;
use super::{Descriptor, FilesImage, Object, has_flag, input_signals, locks, terminal};
use crate::error::ProcError;
use crate::ids::RemoteFd;
use crate::image::{ProcessImage, TreeImage};
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};

/// More than a socket's queue can hold, in bytes.
const GREATEST_QUEUE: u64 = 1 << 30;

/// Puts all descriptors of a process under construction in place that are the same for all, and closes all others that it
/// has inherited. No later step may need an inherited descriptor.
///
/// # Errors
/// Those of the remote calls.
pub(crate) fn restore(
    tracee: &mut Tracee<'_>,
    table: &[Descriptor],
    prepared: &Prepared,
) -> Result<(), ProcError> {
    for descriptor in table {
        let from = match &prepared.sources[descriptor.description] {
            Source::Own(fd) => fd.as_raw_fd(),
            Source::Context(fd) => fd.0,
            Source::OpenedThere => continue,
        };
        duplicate(tracee, from as u64, descriptor.fd, descriptor.close_on_exec)?;
    }
    let placed = |d: &&Descriptor| !matches!(prepared.sources[d.description], Source::OpenedThere);
    close_others(tracee, table.iter().filter(placed).map(|d| d.fd))
}

/// What comes when all processes have the descriptors that they share with others: what is about processes, what tells
/// descriptors by their numbers, contents, seals and locks.
///
/// # Errors
/// Those of the remote calls; a lock that another process has taken; content that does not fit.
pub(crate) fn finish(
    tracees: &mut [Tracee<'_>],
    image: &TreeImage,
    prepared: Prepared,
    ctx: &mut RestoreContext<'_>,
) -> Result<(), ProcError> {
    let files = &image.files;
    open_there(tracees, image, &prepared)?;
    for description in &files.descriptions {
        let Object::Epoll(epoll) = &description.object else {
            continue;
        };
        let Some(holder) =
            holders(image, description).find(|(_, process, _)| process.pid() == epoll.process)
        else {
            return Err(ProcError::BadImage(format!(
                "process {} has not the epoll instance that is told by its descriptors",
                epoll.process
            )));
        };
        let (index, process, fd) = holder;
        epoll.restore(
            &mut tracees[index],
            fd,
            |fd| is_stdio(files, &process.descriptors, fd),
            |text| ctx.warn(text),
        )?;
    }
    for (pipe, new) in files.pipes.iter().zip(&prepared.pipes) {
        if let Some(object) = pipe.content {
            let content = ctx.object_bytes(object, pipe.capacity as u64)?;
            new.fill(&content, &pipe.packets)?;
        }
    }
    prepared.fill_unix(files, ctx)?;
    complete_removed(files, ctx)?;
    prepared.inet.finish(
        &files.inet,
        &|object| ctx.object_bytes(object, GREATEST_QUEUE),
        &|text| ctx.warn(text),
    )?;
    for (description, source) in files.descriptions.iter().zip(&prepared.sources) {
        let has_signals = description.input_signals.is_some()
            || description.write_hint != 0
            || has_flag(description.flags, libc::O_ASYNC);
        if has_signals && let Some((index, _, fd)) = holders(image, description).next() {
            input_signals::restore(&mut tracees[index], fd, description, ctx)?;
        }
        // Nothing that the restart does to files may follow, for the program would be told of it.
        if let (Object::Inotify(inotify), Source::Own(fd)) = (&description.object, source) {
            inotify.watch(fd.as_fd(), |text| ctx.warn(text))?;
        }
    }
    prepared.terminals.finish(&files.terminals)?;
    // With the last of our ends closed, the program's readers see the end of pipes and terminals whose writers
    // are gone.
    drop((prepared.sources, prepared.pipes, prepared.terminals));
    let mut first: HashMap<usize, i32> = HashMap::new();
    for process in &image.processes {
        for descriptor in &process.descriptors {
            first.entry(descriptor.description).or_insert(process.pid());
        }
    }
    for (tracee, process) in tracees.iter_mut().zip(&image.processes) {
        let is_first = |description| first.get(&description) == Some(&process.pid());
        locks::restore(tracee, files, &process.descriptors, is_first, ctx)?;
    }
    Ok(())
}

/// Everyone who has a description: index of the process, the process, and its first number for it.
fn holders<'a>(
    image: &'a TreeImage,
    description: &'a super::Description,
) -> impl Iterator<Item = (usize, &'a ProcessImage, RemoteFd)> {
    let descriptions = &image.files.descriptions;
    let is_it = move |d: &&Descriptor| std::ptr::eq(&descriptions[d.description], description);
    let processes = image.processes.iter().enumerate();
    processes.filter_map(move |(index, process)| {
        let descriptor = process.descriptors.iter().find(is_it)?;
        Some((index, process, descriptor.fd))
    })
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

/// Closes everything between these numbers, which are ascending, and above them.
fn close_others(
    tracee: &mut Tracee<'_>,
    keep: impl Iterator<Item = RemoteFd>,
) -> Result<(), ProcError> {
    let mut next = 0;
    for fd in keep.map(|fd| fd.0 as u64).chain([u64::from(u32::MAX) + 1]) {
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

fn is_stdio(files: &FilesImage, table: &[Descriptor], fd: RemoteFd) -> bool {
    let at = table.binary_search_by_key(&fd, |descriptor| descriptor.fd);
    at.is_ok_and(|at| {
        matches!(
            files.descriptions[table[at].description].object,
            Object::Stdio(_)
        )
    })
}

/// Has the first process that can open what is about a process, and all others take it from there. All its other
/// descriptors are in place, so that what is opened gets a number that is free or its own.
fn open_there(
    tracees: &mut [Tracee<'_>],
    image: &TreeImage,
    prepared: &Prepared,
) -> Result<(), ProcError> {
    for (index, description) in image.files.descriptions.iter().enumerate() {
        if !matches!(prepared.sources[index], Source::OpenedThere) {
            continue;
        }
        let mut holders: Vec<(usize, &ProcessImage, RemoteFd)> =
            holders(image, description).collect();
        if let Object::Terminal(end) = &description.object {
            // It is the controlling terminal of those in its session only.
            let session = image.files.terminals[end.terminal].session;
            holders.sort_by_key(|(_, process, _)| process.kin.session != session);
        }
        let mut origin: Option<(i32, RemoteFd)> = None;
        for (at, process, first) in holders {
            let numbers: Vec<&Descriptor> = process
                .descriptors
                .iter()
                .filter(|d| d.description == index)
                .collect();
            let tracee = &mut tracees[at];
            let made = match (origin, &description.object) {
                (Some((pid, fd)), _) => fetch(tracee, pid, fd)?,
                (None, Object::Named(file)) => open(tracee, file, description.flags)?,
                (None, Object::PidFd(pidfd)) => pidfd.open(tracee, description.flags)?,
                (None, Object::Terminal(_)) => terminal::open_own(tracee, description.flags)?,
                (None, _) => continue,
            };
            place(tracee, made, &numbers)?;
            origin.get_or_insert((process.pid(), first));
        }
    }
    Ok(())
}

/// Opens a file in the process, at any number.
fn open(tracee: &mut Tracee<'_>, file: &NamedFile, flags: u32) -> Result<u64, ProcError> {
    let path = tracee.put_cstr(&file.identity.path)?;
    let flags = (file.open_flags(flags) | OFlags::CLOEXEC).bits();
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
    // Some files, as those of namespaces, have no offset.
    if file.offset != 0 {
        let args = [opened, file.offset as u64, libc::SEEK_SET as u64, 0, 0, 0];
        tracee.syscall("lseek", libc::SYS_lseek, args)?;
    }
    Ok(opened)
}

/// Takes a description over from another process of the tree (pidfd_getfd(2)), at any number.
pub(super) fn fetch(tracee: &mut Tracee<'_>, from: i32, fd: RemoteFd) -> Result<u64, ProcError> {
    let pidfd = tracee.syscall(
        "pidfd_open",
        libc::SYS_pidfd_open,
        [from as u64, 0, 0, 0, 0, 0],
    )?;
    let fetched = tracee.syscall(
        "pidfd_getfd",
        libc::SYS_pidfd_getfd,
        [pidfd, fd.0 as u64, 0, 0, 0, 0],
    );
    tracee.syscall("close", libc::SYS_close, [pidfd, 0, 0, 0, 0, 0])?;
    fetched
}

/// Moves what has got any number to those that it is to have.
fn place(tracee: &mut Tracee<'_>, made: u64, numbers: &[&Descriptor]) -> Result<(), ProcError> {
    let mut needed = false;
    for descriptor in numbers {
        if descriptor.fd.0 as u64 == made {
            needed = true;
            let flags = if descriptor.close_on_exec {
                libc::FD_CLOEXEC as u64
            } else {
                0
            };
            tracee.syscall(
                "fcntl",
                libc::SYS_fcntl,
                [made, libc::F_SETFD as u64, flags, 0, 0, 0],
            )?;
        } else {
            duplicate(tracee, made, descriptor.fd, descriptor.close_on_exec)?;
        }
    }
    if !needed {
        tracee.syscall("close", libc::SYS_close, [made, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}
