//! Standard output and error that host processes share with their offload processes.
//!
//! Offload processes write where their host process does, and that is mostly where the supervisor's own output goes. Where
//! they have the same open file description, the restart must give all of them the same one again, or they would overwrite each
//! other in a file. Where a host process has redirected its own, they get that from it when it goes on.

use super::hosts::PausedHosts;
use crate::snapshot::{OutputFile, SharedOutput};
use rustix::fs::{FileType, fstat};
use snapify_offload::control::{EXTERNAL_STDERR, EXTERNAL_STDOUT};
use snapify_proc::{Declared, External, Pid, RemoteFd};
use snapify_sys::kcmp::{Kind, kcmp};
use std::os::fd::BorrowedFd;

/// The outputs of an application.
#[derive(Default)]
pub(super) struct Outputs {
    /// Where processes have them.
    declared: Vec<Declared>,
    /// Where they lead.
    pub outputs: Vec<SharedOutput>,
}

const STANDARD: [(&str, i32); 2] = [(EXTERNAL_STDOUT, 1), (EXTERNAL_STDERR, 2)];

impl Outputs {
    /// Finds those of the program with process id `root` and of its host processes. Others that have them too, by fork, need not be
    /// looked for.
    pub(super) fn find(root: i32, hosts: &PausedHosts<'_>) -> Self {
        let mut found = Self::default();
        let us = std::process::id().cast_signed();
        let pids = hosts.all().iter().map(|host| host.pid);
        let pids: Vec<i32> = std::iter::once(root)
            .chain(pids.filter(|pid| *pid != root))
            .collect();
        let ours: [BorrowedFd<'_>; 2] = [rustix::stdio::stdout(), rustix::stdio::stderr()];
        for ((key, number), fd) in STANDARD.into_iter().zip(ours) {
            // One for both, as often, has been found.
            if number == 2 && !found.outputs.is_empty() && same_description((us, 1), (us, 2)) {
                break;
            }
            for &pid in &pids {
                let same = |theirs: &i32| same_description((us, number), (pid, *theirs));
                let fds: Vec<i32> = (1..=2).filter(same).collect();
                if !fds.is_empty() {
                    found.add(pid, key.into(), &fds, regular(number, fd));
                    break;
                }
            }
        }
        found
    }

    fn add(&mut self, pid: i32, key: String, fds: &[i32], file: Option<OutputFile>) {
        self.declared.push(Declared {
            pid: Pid(pid),
            externals: vec![External {
                key: key.clone(),
                fds: fds.iter().copied().map(RemoteFd).collect(),
                mappings: Vec::new(),
            }],
            partners: Vec::new(),
        });
        self.outputs.push(SharedOutput { key, file });
    }

    /// Adds them to what agents have declared.
    pub(super) fn declare(&self, declared: &mut Vec<Declared>) {
        for output in &self.declared {
            match declared.iter_mut().find(|one| one.pid == output.pid) {
                Some(own) => own.externals.extend(output.externals.iter().cloned()),
                None => declared.push(output.clone()),
            }
        }
    }
}

/// Whether two descriptors of two processes lead to one open file description.
fn same_description((process, fd): (i32, i32), (other, other_fd): (i32, i32)) -> bool {
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
