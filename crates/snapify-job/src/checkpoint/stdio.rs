//! Standard output and error that a host process shares with its offload processes.
//!
//! Cards write where the supervisor's own output goes. Where the host process still has the same open file
//! description, the restart must give both the same one again, or they would overwrite each other in a file.

use crate::snapshot::{OutputFile, SharedOutput};
use rustix::fs::{FileType, fstat};
use snapify_offload::control::{EXTERNAL_STDERR, EXTERNAL_STDOUT};
use snapify_proc::{External, RemoteFd};
use snapify_sys::kcmp::{Kind, kcmp};
use std::os::fd::BorrowedFd;

/// A shared output: where the host process has it, and where it leads.
pub(super) struct Shared {
    pub external: External,
    pub output: SharedOutput,
}

/// The outputs that process `host` shares with this one.
pub(super) fn shared(host: i32, has_cards: bool) -> Vec<Shared> {
    if !has_cards {
        return Vec::new();
    }
    let me = std::process::id().cast_signed();
    let mut found: Vec<Shared> = Vec::new();
    let mut taken = Vec::new();
    let ours: [(&str, i32, BorrowedFd<'_>); 2] = [
        (EXTERNAL_STDOUT, 1, rustix::stdio::stdout()),
        (EXTERNAL_STDERR, 2, rustix::stdio::stderr()),
    ];
    for (key, number, fd) in ours {
        let fds: Vec<i32> = (1..=2)
            .filter(|theirs| !taken.contains(theirs))
            .filter(|theirs| same_description(me, number, host, *theirs))
            .collect();
        if fds.is_empty() {
            continue;
        }
        taken.extend(&fds);
        found.push(Shared {
            external: External {
                key: key.into(),
                fds: fds.into_iter().map(RemoteFd).collect(),
                mappings: Vec::new(),
            },
            output: SharedOutput {
                key: key.into(),
                file: regular(number, fd),
            },
        });
    }
    found
}

/// Whether two descriptors of two processes lead to one open file description.
fn same_description(process: i32, fd: i32, other: i32, other_fd: i32) -> bool {
    let index = |fd: i32| u64::try_from(fd).unwrap_or(u64::MAX);
    kcmp(process, other, Kind::File, index(fd), index(other_fd))
        .is_ok_and(|order| order == std::cmp::Ordering::Equal)
}

/// The file behind one of our descriptors, if it is a regular one that a restart can open again.
fn regular(number: i32, fd: BorrowedFd<'_>) -> Option<OutputFile> {
    let found = fstat(fd).ok()?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return None;
    }
    let path = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    let there = rustix::fs::stat(&path).ok()?;
    if (there.st_dev, there.st_ino) != (found.st_dev, found.st_ino) {
        return None;
    }
    // One that was opened by somebody who may (root, say, before he became this user) cannot be opened again: the restart's
    // own output takes its place.
    rustix::fs::access(&path, rustix::fs::Access::WRITE_OK).ok()?;
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    let position = rustix::fs::tell(fd).ok()?;
    Some(OutputFile {
        path,
        position,
        flags: flags.bits(),
        bytes: u64::try_from(found.st_size).ok(),
    })
}
