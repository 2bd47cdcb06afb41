//! The process that copies snapshots to shared storage, as whoever takes them sees it.
//!
//! Nothing here waits for it: storage that stalls keeps it, perhaps beyond any signal's reach, and nobody else.

use crate::copy::CopyEvent;
use crate::error::JobError;
use crate::layout::Layout;
use crate::processes::wait_readable;
use crate::signals::Signals;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The wait after a first failure; it doubles from one to the next.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(300);

/// A copy of which nothing is heard for so long has stalled.
const STALLED: Duration = Duration::from_secs(60);

/// How long a copier that was told to stop may take.
const STOPPING: Duration = Duration::from_secs(5);

/// Whoever sees to it that snapshots are copied.
pub(super) struct Copier {
    layout: Layout,
    arguments: Vec<String>,
    /// Where copies go.
    pub(super) to: PathBuf,
    running: Option<Running>,
    /// Whether there is a snapshot that no copier has been started for.
    wanted: bool,
    retry: Option<Instant>,
    failures: u32,
}

struct Running {
    child: Child,
    handle: OwnedFd,
    output: ChildStdout,
    unread: Vec<u8>,
    /// When it was last heard of.
    heard: Instant,
    stalled: bool,
    ended_well: bool,
    failure: Option<String>,
}

/// What has become of copying.
#[derive(Debug)]
pub(super) enum News {
    /// Said by the copier.
    Said(CopyEvent),
    /// It has failed, and is tried again after this time.
    Failed { message: String, retry: Duration },
    /// Nothing has been heard of it for this time.
    Stalled(Duration),
}

impl Copier {
    pub(super) fn new(
        schedule: &super::Schedule,
        from: &std::path::Path,
    ) -> Result<Option<Self>, JobError> {
        let Some(shared) = &schedule.shared else {
            return Ok(None);
        };
        let to = std::path::absolute(shared).map_err(|source| JobError::File {
            operation: "use",
            path: shared.clone(),
            source,
        })?;
        let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let mut arguments = vec![
            "copy".into(),
            "--json".into(),
            "--for-parent".into(),
            std::process::id().to_string(),
            "--keep".into(),
            schedule.keep.to_string(),
        ];
        if let Some(rate) = schedule.rate {
            arguments.extend(["--rate".into(), rate.to_string()]);
        }
        arguments.extend(["--".into(), text(from), text(&to)]);
        Ok(Some(Self {
            layout: Layout::find()?,
            arguments,
            to,
            running: None,
            // To find out what is there, and to go on with what was interrupted.
            wanted: true,
            retry: None,
            failures: 0,
        }))
    }

    /// There is a new snapshot.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Forgets failures.
    pub(super) fn retry_now(&mut self) {
        self.failures = 0;
        self.retry = None;
    }

    /// Whether every snapshot that it was told of is copied.
    pub(super) fn is_done(&self) -> bool {
        self.running.is_none() && !self.wanted
    }

    /// Whether the last try failed, or has stalled.
    pub(super) fn is_stuck(&self) -> bool {
        self.failures > 0 || self.running.as_ref().is_some_and(|running| running.stalled)
    }

    /// Starts a copy if one is due.
    pub(super) fn start(&mut self, signals: &Signals) -> Option<News> {
        let now = Instant::now();
        if self.running.is_some() || !self.wanted || self.retry.is_some_and(|retry| retry > now) {
            return None;
        }
        self.retry = None;
        match self.spawn(signals) {
            Ok(running) => {
                self.wanted = false;
                self.running = Some(running);
                None
            }
            Err(error) => Some(self.failed(error.to_string())),
        }
    }

    fn spawn(&self, signals: &Signals) -> Result<Running, JobError> {
        let failed = |source| JobError::Start {
            program: self.layout.snapify.display().to_string(),
            source,
        };
        let mut command = Command::new(&self.layout.snapify);
        signals.spare(&mut command);
        let mut child = command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // What a terminal sends is not meant for it.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let mut ready = || -> std::io::Result<_> {
            let output = child.stdout.take().ok_or(ErrorKind::BrokenPipe)?;
            rustix::io::ioctl_fionbio(&output, true)?;
            let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
            Ok((output, handle))
        };
        match ready() {
            Ok((output, handle)) => Ok(Running {
                child,
                handle,
                output,
                unread: Vec::new(),
                heard: Instant::now(),
                stalled: false,
                ended_well: false,
                failure: None,
            }),
            Err(source) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(source))
            }
        }
    }

    /// Readable when the copier has said something, or has ended.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.running.as_ref().map(|running| running.output.as_fd())
    }

    /// When something has to be done for it, unless it is heard of before.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.running {
            Some(running) if running.stalled => None,
            Some(running) => Some(running.heard + STALLED),
            None if self.wanted => Some(self.retry.unwrap_or_else(Instant::now)),
            None => None,
        }
    }

    /// What it has said since, and whether it has ended or stalled.
    pub(super) fn hear(&mut self) -> Vec<News> {
        let Some(running) = &mut self.running else {
            return Vec::new();
        };
        let mut news = Vec::new();
        let ended = running.read(&mut news);
        if !ended {
            let silence = running.heard.elapsed();
            if silence >= STALLED && !running.stalled {
                running.stalled = true;
                news.push(News::Stalled(silence));
            }
            return news;
        }
        // Its output is closed only when it ends, so that there is no waiting.
        let status = running.child.wait();
        let failure = running.failure.take();
        let ended_well = running.ended_well || status.as_ref().is_ok_and(|status| status.success());
        self.running = None;
        if ended_well {
            self.failures = 0;
        } else {
            let message = failure.unwrap_or_else(|| match status {
                Ok(status) => format!("the process that copies died: {status}"),
                Err(error) => format!("the process that copies cannot be waited for: {error}"),
            });
            news.push(self.failed(message));
        }
        news
    }

    fn failed(&mut self, message: String) -> News {
        let retry = FIRST_RETRY
            .saturating_mul(1 << self.failures.min(16))
            .min(LAST_RETRY);
        self.failures += 1;
        self.wanted = true;
        self.retry = Some(Instant::now() + retry);
        News::Failed { message, retry }
    }

    /// Ends a copy that is being made; the next copier goes on with it. One that storage holds is left to its fate.
    pub(super) fn stop(&mut self) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        for (signal, time) in [(Signal::TERM, STOPPING), (Signal::KILL, STOPPING)] {
            let _ = pidfd_send_signal(&running.handle, signal);
            let ready = wait_readable(&[running.handle.as_fd()], Some(time));
            if ready.is_ok_and(|ready| ready.contains(&true)) {
                let _ = running.child.wait();
                return;
            }
        }
        tracing::warn!(
            pid = running.child.id(),
            "the process that copies does not end"
        );
    }
}

impl Running {
    /// Reads what there is; whether that was the end.
    fn read(&mut self, news: &mut Vec<News>) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.output.read(&mut buffer) {
                Ok(0) => return true,
                Ok(read) => {
                    self.heard = Instant::now();
                    self.stalled = false;
                    self.unread.extend_from_slice(&buffer[..read]);
                    self.lines(news);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
    }

    fn lines(&mut self, news: &mut Vec<News>) {
        while let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(CopyEvent::Failed { message }) => self.failure = Some(message),
                Ok(event) => {
                    self.ended_well |= matches!(event, CopyEvent::Copied { .. });
                    news.push(News::Said(event));
                }
                Err(error) => tracing::warn!(%error, "a line of the copier's is not understood"),
            }
        }
    }
}
