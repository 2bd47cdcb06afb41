//! The captures of offload processes, which go on at their cards while the host process is captured here.

use super::pause::Pause;
use crate::error::JobError;
use crate::link::Link;
use crate::snapshot::{PAGES_FILE, PROCESS_FILE, STORE_FILE, offload_member};
use crate::timing::note_capture;
use snapify_fabric::Channel;
use snapify_offload::control::{
    CaptureDecision, CaptureEvent, CaptureProcess, HostToSupervisor, PausedProcess, ProcessId,
    SupervisorToHost,
};
use snapify_report::Recorder;
use snapify_store::{MemberDir, PageFileSummary, Progress, Staging};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The offload processes being captured.
#[derive(Default)]
pub(super) struct Captures {
    processes: Vec<Capture>,
}

struct Capture {
    process: PausedProcess,
    member: MemberDir,
    completion: Channel,
    summaries: Option<(PageFileSummary, PageFileSummary)>,
}

impl Captures {
    /// Has all offload processes of a paused application captured into `staging`. With `hold` they stand still until
    /// [`Captures::terminate`], or until the value is dropped.
    pub(super) fn begin(
        pause: &Pause<'_>,
        processes: &[PausedProcess],
        staging: &Staging,
        hold: bool,
    ) -> Result<Self, JobError> {
        let mut captures = Self::default();
        for process in processes {
            let lost = |source| JobError::Connection {
                peer: name(process),
                source,
            };
            let (ours, theirs) = Channel::pair().map_err(lost)?;
            let member = staging.member(&offload_member(process.id))?;
            let files: Vec<File> = [PROCESS_FILE, PAGES_FILE, STORE_FILE]
                .iter()
                .map(|file| member.create(file))
                .collect::<Result<_, _>>()?;
            let mut fds: Vec<BorrowedFd<'_>> = vec![theirs.as_fd()];
            fds.extend(files.iter().map(AsFd::as_fd));
            let order = CaptureProcess {
                id: process.id,
                hold,
            };
            pause.send(
                &SupervisorToHost::Capture {
                    processes: vec![order],
                },
                &fds,
            )?;
            match pause.receive()? {
                HostToSupervisor::CaptureStarted => {}
                other => return Err(pause.unexpected(other)),
            }
            captures.processes.push(Capture {
                process: process.clone(),
                member,
                completion: ours,
                summaries: None,
            });
        }
        Ok(captures)
    }

    /// Waits until all are captured.
    pub(super) fn finish(
        &mut self,
        link: &Link,
        host: &OwnedFd,
        pid: i32,
        recorder: &Recorder,
    ) -> Result<(), JobError> {
        for capture in &mut self.processes {
            let failed = |why| JobError::Member {
                member: name(&capture.process),
                why,
            };
            while capture.summaries.is_none() {
                super::await_message(&capture.completion, link, host, pid)?;
                let event = match capture.completion.recv::<CaptureEvent>() {
                    Ok((event, _)) => event,
                    Err(snapify_fabric::ChannelError::Closed) => {
                        return Err(failed("it or its card died during the capture".into()));
                    }
                    Err(error) => return Err(failed(error.to_string())),
                };
                match event {
                    CaptureEvent::Progress { bytes, .. } => link.advance(bytes),
                    CaptureEvent::Done {
                        pages,
                        store,
                        steps,
                        ..
                    } => {
                        note_capture(recorder, &capture.process, &steps, &pages, &store);
                        capture.summaries = Some((pages, store));
                    }
                    CaptureEvent::Failed { message, .. } => return Err(failed(message)),
                }
            }
            if let Some((pages, store)) = &capture.summaries {
                capture.member.record_file(PROCESS_FILE)?;
                capture.member.record_pages(PAGES_FILE, *pages)?;
                capture.member.record_pages(STORE_FILE, *store)?;
            }
        }
        Ok(())
    }

    /// Ends the offload processes, which stand still.
    pub(super) fn terminate(&self) {
        for capture in &self.processes {
            // One that is gone needs no ending.
            let _ = capture.completion.send(&CaptureDecision::Terminate, &[]);
        }
    }

    /// What was saved of a process.
    pub(super) fn summary(&self, id: ProcessId) -> Option<(&PageFileSummary, &PageFileSummary)> {
        let capture = self
            .processes
            .iter()
            .find(|capture| capture.process.id == id)?;
        capture
            .summaries
            .as_ref()
            .map(|(pages, store)| (pages, store))
    }
}

fn name(process: &PausedProcess) -> String {
    format!("offload process {} on card {}", process.id, process.card)
}
