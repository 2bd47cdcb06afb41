//! The captures of offload processes, which go on at their cards while the host process is captured here.

use super::hosts::PausedHosts;
use super::increment::Sequence;
use crate::error::JobError;
use crate::link::Link;
use crate::snapshot::{PAGES_FILE, PROCESS_FILE, STORE_FILE, offload_member};
use crate::timing::{note_capture, offload_process};
use snapify_fabric::Channel;
use snapify_offload::control::{
    CaptureDecision, CaptureEvent, CaptureProcess, HostToSupervisor, PausedProcess, ProcessId,
    SaveForm, Step, SupervisorToHost,
};
use snapify_report::Recorder;
use snapify_store::{MemberDir, PageFile, PageFileSummary, Progress, Staging, WriteOptions};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// The offload processes being captured.
#[derive(Default)]
pub(super) struct Captures {
    processes: Vec<Capture>,
}

struct Capture {
    /// The number of its host process.
    host: usize,
    process: PausedProcess,
    member: MemberDir,
    /// Tells how far it is; nothing if the process is swapped out, and its image only has to be copied.
    completion: Option<Channel>,
    summaries: Option<(PageFileSummary, PageFileSummary)>,
}

impl Captures {
    /// Has all offload processes of a paused application captured into `staging`. With `hold` they stand still until
    /// [`Captures::terminate`], or until the value is dropped.
    pub(super) fn begin(
        hosts: &PausedHosts<'_>,
        staging: &Staging,
        hold: bool,
        (sequence, write): (Sequence, WriteOptions),
    ) -> Result<Self, JobError> {
        let mut captures = Self::default();
        for (host, process) in hosts.processes() {
            let pause = &hosts.all()[host].pause;
            let lost = |source| JobError::Connection {
                peer: name(process),
                source,
            };
            let member = staging.member(&offload_member(process.id))?;
            if let Some(image) = &process.swapped_out {
                let summaries = copy_image(image, &member)?;
                captures.processes.push(Capture {
                    host,
                    process: process.clone(),
                    member,
                    completion: None,
                    summaries: Some(summaries),
                });
                continue;
            }
            let (ours, theirs) = Channel::pair().map_err(lost)?;
            let files: Vec<File> = [PROCESS_FILE, PAGES_FILE, STORE_FILE]
                .iter()
                .map(|file| member.create(file))
                .collect::<Result<_, _>>()?;
            let mut fds: Vec<BorrowedFd<'_>> = vec![theirs.as_fd()];
            fds.extend(files.iter().map(AsFd::as_fd));
            let (form, parents) = form(&member, sequence, write)?;
            fds.extend(parents.iter().map(AsFd::as_fd));
            let order = CaptureProcess {
                id: process.id,
                hold,
                form,
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
                host,
                process: process.clone(),
                member,
                completion: Some(ours),
                summaries: None,
            });
        }
        Ok(captures)
    }

    /// Waits until all are captured.
    pub(super) fn finish(
        &mut self,
        hosts: &PausedHosts<'_>,
        link: &Link,
        recorder: &Recorder,
    ) -> Result<(), JobError> {
        for capture in &mut self.processes {
            if capture.summaries.is_none()
                && let Some(completion) = &capture.completion
            {
                let name = name(&capture.process);
                let host = &hosts.all()[capture.host];
                let (host, pid) = (&host.handle, host.pid);
                let Captured {
                    pages,
                    store,
                    steps,
                } = await_capture(completion, &name, link, host, pid)?;
                let card = capture.process.card;
                let process = offload_process(&capture.process);
                note_capture(recorder, card, process, &steps, &pages, &store);
                capture.summaries = Some((pages, store));
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
            if let Some(completion) = &capture.completion {
                // One that is gone needs no ending.
                let _ = completion.send(&CaptureDecision::Terminate, &[]);
            }
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

/// What a capture has saved, and what it took.
pub(crate) struct Captured {
    pub pages: PageFileSummary,
    pub store: PageFileSummary,
    pub steps: Vec<Step>,
}

/// How the memory of an offload process is saved, and the files that it builds on. Nobody follows its changes: what was saved before
/// has hashes of its pages, and what has another now is saved.
fn form(
    member: &MemberDir,
    sequence: Sequence,
    write: WriteOptions,
) -> Result<(SaveForm, Vec<File>), JobError> {
    let parent = |name: &str| -> Result<Vec<File>, JobError> {
        let pages = member.parent_pages(name)?;
        let of_use = |pages: &PageFile| {
            pages.hash_seed().is_some() && (pages.files() as u64) < u64::from(sequence.full_every)
        };
        match sequence.builds_on_others() && pages.is_some_and(|pages| of_use(&pages)) {
            true => Ok(member.parent_files(name)?),
            false => Ok(Vec::new()),
        }
    };
    let (mut files, store) = (parent(PAGES_FILE)?, parent(STORE_FILE)?);
    let form = SaveForm {
        write,
        hash_seed: sequence.builds_on_others().then(super::increment::random),
        parent_pages: files.len(),
        parent_store: store.len(),
    };
    files.extend(store);
    Ok((form, files))
}

/// Waits until a capture is done. `member` is what errors call
/// the process.
///
/// # Errors
/// If it fails, whoever asked for it has gone, or the host process ends.
pub(crate) fn await_capture(
    completion: &Channel,
    member: &str,
    link: &Link,
    host: &OwnedFd,
    pid: i32,
) -> Result<Captured, JobError> {
    let failed = |why| JobError::Member {
        member: member.to_owned(),
        why,
    };
    loop {
        super::await_message(completion, link, host, pid)?;
        match completion.recv::<CaptureEvent>() {
            Ok((CaptureEvent::Progress { bytes, .. }, _)) => link.advance(bytes),
            Ok((
                CaptureEvent::Done {
                    pages,
                    store,
                    steps,
                    ..
                },
                _,
            )) => {
                let missing = || failed("its local store was not saved".into());
                return Ok(Captured {
                    pages,
                    store: store.ok_or_else(missing)?,
                    steps,
                });
            }
            Ok((CaptureEvent::Failed { message, .. }, _)) => return Err(failed(message)),
            Err(snapify_fabric::ChannelError::Closed) => {
                return Err(failed("it or its card died during the capture".into()));
            }
            Err(error) => return Err(failed(error.to_string())),
        }
    }
}

/// Makes the image of a process that is swapped out a member of the snapshot.
fn copy_image(
    image: &Path,
    member: &MemberDir,
) -> Result<(PageFileSummary, PageFileSummary), JobError> {
    let copy = |name: &str| {
        let path = image.join(name);
        let failed = |source| JobError::File {
            operation: "copy",
            path: path.clone(),
            source,
        };
        let mut from = File::open(&path).map_err(failed)?;
        let mut to = member.create(name)?;
        std::io::copy(&mut from, &mut to).map_err(failed)?;
        Ok::<_, JobError>((from, path.clone()))
    };
    let pages = |name: &str| {
        let (file, path) = copy(name)?;
        Ok::<_, JobError>(*PageFile::open(file, path)?.summary())
    };
    copy(PROCESS_FILE)?;
    Ok((pages(PAGES_FILE)?, pages(STORE_FILE)?))
}

fn name(process: &PausedProcess) -> String {
    format!("offload process {} on card {}", process.id, process.card)
}
