//! The process that gives back the room of old snapshots which newer ones build on, as whoever takes them sees it.
//!
//! Cleaning may write as much as the program's memory. It goes on beside the next snapshots, and may be interrupted at any
//! moment.

use crate::error::JobError;
use crate::layout::Layout;
use crate::processes::wait_readable;
use crate::signals::Signals;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a cleaner that was told to stop may take.
const STOPPING: Duration = Duration::from_secs(5);

/// Whoever sees to it that a snapshot directory is cleaned.
#[derive(Default)]
pub(super) struct Cleaner {
    running: Option<(Child, OwnedFd)>,
}

impl Cleaner {
    /// Starts cleaning `dir`, unless that is going on.
    pub(super) fn start(
        &mut self,
        dir: &Path,
        keep: u32,
        signals: &Signals,
    ) -> Result<(), JobError> {
        if self.running.is_some() {
            return Ok(());
        }
        let snapify = Layout::find()?.snapify;
        let failed = |source| JobError::Start {
            program: snapify.display().to_string(),
            source,
        };
        let mut command = Command::new(&snapify);
        signals.spare(&mut command);
        let mut child = command
            .args(["clean", "--json", "--keep", &keep.to_string(), "--"])
            .arg(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(handle) => {
                self.running = Some((child, handle));
                Ok(())
            }
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(errno.into()))
            }
        }
    }

    /// Readable when cleaning is over.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|(_, handle)| handle.as_fd())
    }

    /// If cleaning is over: what went wrong, if anything did.
    pub(super) fn hear(&mut self) -> Option<String> {
        let (child, _) = self.running.as_mut()?;
        let status = child.try_wait().ok()??;
        let mut why = String::new();
        if let Some(stderr) = &mut child.stderr {
            // It has said at most a few lines, or its pipe would have kept it.
            let _ = stderr.read_to_string(&mut why);
        }
        self.running = None;
        let why = why.trim().trim_start_matches("snapify: ").to_owned();
        (!status.success()).then(|| match why.is_empty() {
            true => format!("what cleans died: {status}"),
            false => why,
        })
    }

    /// Ends cleaning, which the next cleaner begins again.
    pub(super) fn stop(&mut self) {
        let Some((mut child, handle)) = self.running.take() else {
            return;
        };
        for signal in [Signal::TERM, Signal::KILL] {
            let _ = pidfd_send_signal(&handle, signal);
            let ready = wait_readable(&[handle.as_fd()], Some(STOPPING));
            if ready.is_ok_and(|ready| ready.contains(&true)) {
                let _ = child.wait();
                return;
            }
        }
    }
}
