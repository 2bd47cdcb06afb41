//! The process that takes snapshots of a program which `snapify run` or `snapify restart` runs.

use super::Schedule;
use crate::checkpoint::{Increments, Live};
use crate::error::JobError;
use crate::layout::Layout;
use crate::processes::wait_readable;
use crate::signals::{Arrived, Signals};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use snapify_proc::Outside;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

/// What can be found wrong with a schedule before there is a program.
pub(crate) struct Prepared {
    schedule: Schedule,
    log: Option<File>,
}

impl Prepared {
    /// Opens the log.
    ///
    /// # Errors
    /// If that cannot be done.
    pub(crate) fn new(schedule: &Schedule) -> Result<Self, JobError> {
        let open = |path: &PathBuf| {
            let mut options = OpenOptions::new();
            let file = options.append(true).create(true).open(path);
            file.map_err(|source| JobError::File {
                operation: "open",
                path: path.clone(),
                source,
            })
        };
        Ok(Self {
            log: schedule.log.as_ref().map(open).transpose()?,
            schedule: schedule.clone(),
        })
    }
}

/// The process, as the supervisor sees it.
pub(crate) struct WatcherProcess {
    child: Child,
    handle: OwnedFd,
}

impl WatcherProcess {
    /// Has snapshots taken of process `pid`, of which this process is the supervisor.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub(crate) fn start(
        layout: &Layout,
        signals: &Signals,
        pid: i32,
        prepared: Prepared,
    ) -> Result<Self, JobError> {
        let schedule = prepared.schedule;
        let mut command = Command::new(&layout.snapify);
        signals.spare(&mut command);
        command
            .arg("watch")
            .args(["--for-parent", &std::process::id().to_string()])
            .args(["--every", &format!("{}ms", schedule.every.as_millis())])
            .args(["--keep", &schedule.keep.to_string()])
            .arg(format!("--live={}", schedule.live.name()));
        if let Some(mtbf) = schedule.mtbf {
            command.args(["--mtbf", &format!("{}ms", mtbf.as_millis())]);
        }
        command.args(manner(&schedule));
        if let Some(shared) = schedule.shared {
            command.arg("--shared").arg(shared);
        }
        if let Some(rate) = schedule.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        if schedule.outside == Outside::CloseTcp {
            command.arg("--tcp=close");
        }
        match prepared.log {
            Some(log) => command.arg("--json").stdout(log),
            None => command.stdout(Stdio::null()),
        };
        let failed = |source| JobError::Start {
            program: layout.snapify.display().to_string(),
            source,
        };
        let mut child = command
            .arg("--")
            .arg(pid.to_string())
            .arg(schedule.dir)
            .stdin(Stdio::null())
            // What a terminal sends is meant for the program, which may go on.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(handle) => Ok(Self { child, handle }),
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(errno.into()))
            }
        }
    }

    /// The program has ended. If it did so as it was meant to, its snapshots are not needed; if not, the last of them is
    /// still copied to shared storage, unless a signal comes.
    pub(crate) fn finish(mut self, status: ExitStatus, signals: &mut Signals) {
        let stop = |handle: &OwnedFd| {
            let _ = pidfd_send_signal(handle, Signal::TERM);
        };
        if status.success() {
            stop(&self.handle);
        }
        while let Ok(ready) = wait_readable(&[self.handle.as_fd(), signals.as_fd()], None) {
            if ready.first() == Some(&true) {
                break;
            }
            if signals.take().iter().any(Arrived::calls_off) {
                stop(&self.handle);
            }
        }
        let _ = self.child.wait();
    }

    /// It has ended: as it should, because it saw the end of the program first, or too early.
    pub(crate) fn reap(mut self) {
        match self.child.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!(
                "snapify: warning: no more snapshots are taken: what took them has ended ({status})"
            ),
            Err(error) => {
                tracing::warn!(%error, "cannot wait for the process that takes snapshots")
            }
        }
    }
}

/// How snapshots follow each other and are written, as it is given on the command line.
fn manner(schedule: &Schedule) -> Vec<String> {
    let mut arguments = Vec::new();
    match schedule.increments {
        Increments::Auto => {}
        Increments::Full => arguments.push("--full".into()),
        Increments::Always => arguments.push("--incremental".into()),
    }
    let write = &schedule.write;
    let mut option = |name: &str, value: Option<String>| {
        arguments.extend(value.map(|value| format!("--{name}={value}")));
    };
    option("full-every", schedule.full_every.map(|n| n.to_string()));
    option("codec", Some(write.compression.to_string()));
    option("workers", write.workers.map(|n| n.to_string()));
    option("queue", write.queue.map(|n| n.to_string()));
    option("segment", write.write_bytes.map(|n| n.to_string()));
    arguments
}

/// Readable when it has ended.
impl AsFd for WatcherProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Live {
    /// As it is given on the command line.
    fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Auto => "auto",
            Self::Always => "always",
        }
    }
}
