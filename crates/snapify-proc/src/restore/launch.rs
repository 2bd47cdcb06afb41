//! A new program under an init of ours.

use crate::error::ProcError;
use rustix::pipe::{PipeFlags, pipe_with};
use snapify_sys::clone::{Fork, fork as fork_raw};
use snapify_sys::process;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program to be launched in fresh user, PID and mount namespaces.
#[derive(Debug)]
pub struct LaunchSpec {
    /// The file to execute (not searched for in `PATH`).
    pub program: PathBuf,
    /// What it is called in its own arguments; the path of the file if `None`.
    pub name: Option<OsString>,
    /// Its arguments, without its name.
    pub args: Vec<OsString>,
    /// Its environment; the caller's if `None`.
    pub env: Option<Vec<(OsString, OsString)>>,
    /// Its working directory; the caller's if `None`.
    pub directory: Option<PathBuf>,
    /// Descriptors it gets, and at which numbers. Standard input, output and error are the caller's unless they are
    /// among these; all others are closed.
    pub fds: Vec<(OwnedFd, i32)>,
    /// Resource limits: `RLIMIT_*`, soft and hard value.
    pub limits: Vec<(u32, u64, u64)>,
    /// What its init is called in process lists.
    pub init_name: String,
}

/// A child that waits before its exec.
pub(super) struct Waiting {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) go: OwnedFd,
    pub(super) failure: OwnedFd,
}

/// Forks the child; it executes the program when told to.
#[allow(unsafe_code)]
pub(super) fn fork(spec: &LaunchSpec) -> Result<Waiting, ProcError> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(ProcError::system("make a pipe"));
    let (go_read, go) = pipe()?;
    let (failure, failure_write) = pipe()?;
    // SAFETY: this process has one thread.
    match unsafe { fork_raw(0, None) } {
        Ok(Fork::Parent { pid, pidfd }) => Ok(Waiting {
            pid,
            pidfd,
            go,
            failure,
        }),
        Ok(Fork::Child) => {
            drop((go, failure));
            let error = become_program(spec, go_read);
            let _ = File::from(failure_write)
                .write_all(&error.raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes());
            process::exit_now(127)
        }
        Err(source) => Err(ProcError::System {
            what: format!("fork for {}", spec.program.display()),
            source,
        }),
    }
}

impl Waiting {
    /// Lets the child execute its program.
    ///
    /// # Errors
    /// If that fails there.
    pub(super) fn start(self, program: &Path) -> Result<(), ProcError> {
        File::from(self.go)
            .write_all(&[1])
            .map_err(ProcError::file("execute", program))?;
        let mut answer = Vec::new();
        File::from(self.failure)
            .read_to_end(&mut answer)
            .map_err(ProcError::file("execute", program))?;
        match answer.try_into() {
            // Closed by exec.
            Err(_) => Ok(()),
            Ok(code) => Err(ProcError::file("execute", program)(
                io::Error::from_raw_os_error(i32::from_ne_bytes(code)),
            )),
        }
    }
}

/// Returns only with an error.
fn become_program(spec: &LaunchSpec, go: OwnedFd) -> io::Error {
    match prepare(spec, go) {
        Ok(mut command) => command.exec(),
        Err(e) => e,
    }
}

#[allow(unsafe_code)]
fn prepare(spec: &LaunchSpec, go: OwnedFd) -> io::Result<Command> {
    use rustix::process::{Resource, Rlimit, setpgid, setrlimit};
    // Out of reach of a terminal's signals, but in the caller's session: the scheduler shares processors out among
    // sessions (sched(7), autogroup), and processes that wait for each other belong together.
    setpgid(None, None)?;
    if File::from(go).read(&mut [0])? == 0 {
        // The init is gone.
        process::exit_now(1);
    }
    // First all to numbers where none is in the way of another, then each to its place.
    let above = spec.fds.iter().map(|(_, to)| *to).max().unwrap_or(2).max(2) + 1;
    let mut moved = Vec::new();
    for (fd, to) in &spec.fds {
        moved.push((process::duplicate_above(fd.as_fd(), above)?, *to));
    }
    process::close_all_on_exec(3)?;
    for (from, to) in moved {
        // SAFETY: this process is about to execute another program; only that one uses these numbers.
        unsafe { process::duplicate_to(from, to)? };
    }
    for &(resource, soft, hard) in &spec.limits {
        let resource = match resource {
            libc::RLIMIT_AS => Resource::As,
            libc::RLIMIT_DATA => Resource::Data,
            libc::RLIMIT_STACK => Resource::Stack,
            libc::RLIMIT_NOFILE => Resource::Nofile,
            libc::RLIMIT_CORE => Resource::Core,
            libc::RLIMIT_MEMLOCK => Resource::Memlock,
            libc::RLIMIT_FSIZE => Resource::Fsize,
            libc::RLIMIT_CPU => Resource::Cpu,
            libc::RLIMIT_NPROC => Resource::Nproc,
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        let value = |limit| (limit != libc::RLIM_INFINITY).then_some(limit);
        setrlimit(
            resource,
            Rlimit {
                current: value(soft),
                maximum: value(hard),
            },
        )?;
    }
    let mut command = Command::new(&spec.program);
    if let Some(name) = &spec.name {
        command.arg0(name);
    }
    command.args(&spec.args);
    if let Some(env) = &spec.env {
        command.env_clear().envs(env.iter().map(|(k, v)| (k, v)));
    }
    if let Some(directory) = &spec.directory {
        command.current_dir(directory);
    }
    Ok(command)
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiting({}, {})", self.pid, self.pidfd.as_raw_fd())
    }
}
