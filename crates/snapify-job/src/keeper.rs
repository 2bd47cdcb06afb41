//! What keeps account of a program's memory between two checkpoints.
//!
//! The kernel notes which pages of a program are written for as long as somebody has the userfaultfds open that it does so
//! for (see [`snapify_proc::Tracking`]). That is a *keeper*: a process that waits for nothing but the end of the program, and the next
//! checkpoint, which takes everything over and gives it back when it is done. There is never more than one copy: what a checkpoint
//! has taken, and then cannot give back because it is killed, is gone, and the next snapshot is a full one.
//!
//! A keeper is found by a socket in the user's runtime directory, `tracked/<pid>-<start time>`. It serves one checkpoint after the
//! other.

use crate::error::JobError;
use crate::identity::start_time;
use crate::processes::{own_process, wait_readable};
use crate::runtime_dir::RuntimeDir;
use nix::unistd::{ForkResult, fork, setsid};
use serde::{Deserialize, Serialize};
use snapify_fabric::{Channel, ChannelError, Listener, MAX_DESCRIPTORS};
use snapify_proc::Tracking;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Descriptors in one message.
const CHUNK: usize = MAX_DESCRIPTORS / 2;

/// A part of what is kept. The first descriptor of all is a file with what is no descriptor.
#[derive(Serialize, Deserialize)]
struct Part {
    /// Whether others follow.
    more: bool,
}

/// What is known of a program, and who keeps it otherwise.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) tracking: Tracking,
    keeper: Option<Channel>,
}

/// Takes what is known of the program with process id `pid` from its keeper; nothing if it has none.
pub(crate) fn take(pid: i32) -> Kept {
    match try_take(pid) {
        Ok(kept) => kept.unwrap_or_default(),
        Err(error) => {
            tracing::debug!("what was known of process {pid}: {error}");
            Kept::default()
        }
    }
}

fn try_take(pid: i32) -> Result<Option<Kept>, JobError> {
    let path = socket(pid)?;
    let Ok(keeper) = Channel::connect(&path) else {
        // A keeper that was killed leaves its socket.
        let _ = std::fs::remove_file(&path);
        return Ok(None);
    };
    let mut descriptors = receive(&keeper)?;
    if descriptors.is_empty() {
        return Ok(None);
    }
    let failed = |source| JobError::System {
        operation: "read what the keeper of the program has kept".into(),
        source,
    };
    let mut text = Vec::new();
    let mut file = File::from(descriptors.remove(0));
    file.rewind().map_err(failed)?;
    file.read_to_end(&mut text).map_err(failed)?;
    let tracking =
        Tracking::from_parts(&text, descriptors).map_err(|source| JobError::Process {
            member: "the keeper of the program".into(),
            source,
        })?;
    Ok(Some(Kept {
        tracking,
        keeper: Some(keeper),
    }))
}

/// Sends everything, in so many messages as it takes.
fn send(to: &Channel, kept: &[OwnedFd]) -> Result<(), JobError> {
    let chunks = kept.chunks(CHUNK);
    let last = chunks.len().saturating_sub(1);
    for (number, chunk) in chunks.enumerate() {
        let fds: Vec<_> = chunk.iter().map(AsFd::as_fd).collect();
        to.send(
            &Part {
                more: number < last,
            },
            &fds,
        )
        .map_err(lost)?;
    }
    Ok(())
}

fn receive(from: &Channel) -> Result<Vec<OwnedFd>, JobError> {
    let mut descriptors = Vec::new();
    loop {
        let (part, more) = from.recv::<Part>().map_err(lost)?;
        descriptors.extend(more);
        if !part.more {
            return Ok(descriptors);
        }
    }
}

fn lost(source: ChannelError) -> JobError {
    JobError::Connection {
        peer: "the keeper of the program".into(),
        source,
    }
}

/// Gives back what is known of the program with process id `pid`, if that is anything; to a new keeper if there was none. Called by
/// a worker, which has one thread.
pub(crate) fn keep(pid: i32, kept: Kept) {
    if !kept.tracking.is_useful() {
        return;
    }
    if let Err(error) = try_keep(pid, kept) {
        tracing::debug!("nobody keeps what is known of process {pid}: {error}");
    }
}

/// Gives what is known of a program that was just restarted to a keeper. Called by a supervisor, which has one thread.
pub(crate) fn keep_first(pid: i32, tracking: Tracking) {
    let keeper = None;
    keep(pid, Kept { tracking, keeper });
}

fn try_keep(pid: i32, Kept { tracking, keeper }: Kept) -> Result<(), JobError> {
    let system = |operation: &str| {
        let operation = operation.to_owned();
        move |source| JobError::System { operation, source }
    };
    let program = own_process(pid)?;
    let (text, uffds) = tracking.into_parts().map_err(|source| JobError::Process {
        member: "the program".into(),
        source,
    })?;
    let state = rustix::fs::memfd_create("snapify-tracking", rustix::fs::MemfdFlags::CLOEXEC);
    let mut state = state
        .map(File::from)
        .map_err(|errno| system("make a file in memory")(errno.into()))?;
    state
        .write_all(&text)
        .map_err(system("write to a file in memory"))?;
    drop(text);
    let mut kept: Vec<OwnedFd> = vec![state.into()];
    kept.extend(uffds);
    if let Some(keeper) = keeper {
        return send(&keeper, &kept);
    }
    let listener = Listener::bind(&socket(pid)?).map_err(|source| JobError::Connection {
        peer: "the next checkpoint".into(),
        source,
    })?;
    fork_keeper(listener, program, kept)
}

#[allow(unsafe_code)]
fn fork_keeper(listener: Listener, program: OwnedFd, kept: Vec<OwnedFd>) -> Result<(), JobError> {
    // SAFETY: a worker has one thread, so that the child may do whatever the parent may.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { .. }) => {
            // The socket is the keeper's now.
            std::mem::forget(listener);
            Ok(())
        }
        Ok(ForkResult::Child) => {
            let work = || {
                let _ = setsid();
                let _ = std::env::set_current_dir("/");
                let _ = snapify_sys::process::set_name(c"snapify-keeper");
                let mut ours = vec![listener.as_fd().as_raw_fd(), program.as_raw_fd()];
                ours.extend(kept.iter().map(AsRawFd::as_raw_fd));
                // SAFETY: what else this process has copies of belongs to a worker, whose code never runs here again:
                // the process ends by _exit.
                unsafe { close_others(ours) };
                serve(&listener, &program, kept);
            };
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            snapify_sys::process::exit_now(0)
        }
        Err(errno) => Err(JobError::System {
            operation: "fork a keeper".into(),
            source: errno.into(),
        }),
    }
}

/// Closes all descriptors but `ours`, and leaves nothing where standard streams are.
///
/// # Safety
/// Nothing that still lives may own one of the others.
#[allow(unsafe_code)]
pub(crate) unsafe fn close_others(mut ours: Vec<i32>) {
    use snapify_sys::process::{close_range, duplicate_to};
    // Whoever waits for the end of an output must not wait for the program's.
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for standard in 0..3 {
            // SAFETY: the caller's promise.
            let _ = unsafe { duplicate_to(null.as_raw_fd(), standard) };
        }
    }
    ours.sort_unstable();
    let mut next = 3;
    for fd in ours.into_iter().chain([i32::MAX]) {
        if fd > next {
            // SAFETY: the caller's promise.
            let _ = unsafe { close_range(next as u32, fd as u32 - 1) };
        }
        next = next.max(fd.saturating_add(1));
    }
}

/// Gives all to whoever asks, and keeps what comes back, until the program has ended or nothing comes back.
fn serve(listener: &Listener, program: &OwnedFd, mut kept: Vec<OwnedFd>) {
    let is_there = |fd: BorrowedFd<'_>| {
        let ready = wait_readable(&[fd, program.as_fd()], None);
        ready.is_ok_and(|ready| ready.get(1) != Some(&true))
    };
    while is_there(listener.as_fd()) {
        let Ok(client) = listener.accept() else {
            break;
        };
        if send(&client, &kept).is_err() {
            break;
        }
        kept.clear();
        if !is_there(client.as_fd()) {
            break;
        }
        match receive(&client) {
            Ok(back) => kept = back,
            Err(_) => break,
        }
    }
    let _ = std::fs::remove_file(listener.path());
}

/// Where the keeper of a program listens.
fn socket(pid: i32) -> Result<PathBuf, JobError> {
    let started = start_time(pid).ok_or(JobError::NoSuchProcess { pid })?;
    Ok(RuntimeDir::open()?
        .tracked()?
        .join(format!("{pid}-{started}")))
}
