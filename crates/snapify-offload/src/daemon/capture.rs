//! Saving an offload process: the engine saves the process, and while it stands still its local store is saved
//! beside it (paper 1, section 4.1). A forked copy of the daemon does it.

use super::Daemon;
use super::fork::{Worker, spawn};
use super::process::{unknown, words};
use super::sparse::data_ranges;
use super::supervisors::ProcessKey;
use crate::control::{CaptureDecision, CaptureEvent, ProcessId, ProcessState, Step};
use crate::engine::{
    AfterCapture, CaptureFiles, CaptureOrder, Engine, EngineError, External, PageFileSummary,
    Progress,
};
use crate::steps::Stopwatch;
use rustix::event::{PollFd, PollFlags, poll};
use snapify_fabric::{Channel, SharedFile};
use snapify_store::{PageSource, SpaceId};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The name that errors about the local store's page file give it.
const STORE_FILE: &str = "store.snap";

/// Progress is told in steps of at least so many bytes.
const PROGRESS_STEP: u64 = 16 << 20;

/// Statuses that a saver ends with.
mod status {
    /// Saved; the process goes on.
    pub const SAVED: u8 = 0;
    /// Saved, and the process was ended as the coordinator decided.
    pub const SAVED_AND_ENDED: u8 = 1;
    /// Not saved; the coordinator was told.
    pub const FAILED: u8 = 2;
}

/// A capture going on.
pub struct Capture {
    worker: Worker,
    /// Where the coordinator learns of the outcome, should the saver die without a word.
    completion: Channel,
}

impl Capture {
    /// Gives it up.
    pub fn abort(&self) {
        self.worker.kill();
    }
}

impl AsFd for Capture {
    /// Readable when it is over.
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.worker.as_fd()
    }
}

impl Daemon {
    /// Begins to save a paused process. Descriptors: completion channel, description, pages, and with `store` the local
    /// store.
    pub(super) fn capture(
        &mut self,
        id: ProcessKey,
        hold: bool,
        store: bool,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let process = self.processes.get_mut(&id).ok_or_else(|| unknown(id))?;
        if process.state != ProcessState::Paused {
            return Err(format!("offload process {id} is not paused"));
        }
        let store = if store {
            fds.pop().map(File::from)
        } else {
            None
        };
        let [completion, meta, pages]: [OwnedFd; 3] = fds
            .try_into()
            .map_err(|_| "a capture needs a channel and its files")?;
        let completion = Channel::from_fd(completion);
        let order = Order {
            id: id.id,
            pid: process.child.pid(),
            externals: &process.externals,
            store: &process.store,
            hold,
        };
        let engine = &*self.engine;
        let work = || order.carry_out(engine, &completion, meta.into(), pages.into(), store);
        let worker =
            spawn(work).map_err(|error| format!("cannot start another process: {error}"))?;
        process.state = ProcessState::Capturing;
        process.capture = Some(Capture { worker, completion });
        Ok(())
    }

    /// A capture is over.
    pub(super) fn finish_capture(&mut self, id: ProcessKey) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let Some(Capture { worker, completion }) = process.capture.take() else {
            return;
        };
        let outcome = worker.wait();
        if process.state == ProcessState::Capturing {
            process.state = ProcessState::Paused;
        }
        match outcome {
            Some(status::SAVED | status::FAILED) => {}
            // The application is not told of an end that it asked for itself (paper 1, section 3).
            Some(status::SAVED_AND_ENDED) => process.state = ProcessState::Ending,
            _ => {
                let message = "its saver died".to_owned();
                let failed = CaptureEvent::Failed { id: id.id, message };
                let _ = completion.send_now(&failed, &[]);
            }
        }
        if let Some(ended) = process.ended {
            self.bury(id, ended);
        }
    }
}

/// What a saver is to do.
struct Order<'a> {
    id: ProcessId,
    pid: i32,
    externals: &'a [External],
    store: &'a SharedFile,
    hold: bool,
}

impl Order<'_> {
    fn carry_out(
        &self,
        engine: &dyn Engine,
        completion: &Channel,
        meta: File,
        pages: File,
        mut store: Option<File>,
    ) -> u8 {
        let progress = Reporter {
            id: self.id,
            completion,
            untold: AtomicU64::new(0),
        };
        let mut saved_store = None;
        let mut asked = false;
        let mut stopwatch = Stopwatch::absolute();
        let mut steps = Vec::new();
        let mut decision = AfterCapture::Resume;
        let mut during = |pages: &PageFileSummary| -> Result<AfterCapture, EngineError> {
            stopwatch.lap("save process");
            if std::mem::replace(&mut asked, true) {
                return Err("the engine asked for the local store twice".into());
            }
            // Without a file for it, somebody else takes care of it.
            let summary = store
                .take()
                .map(|out| save_store(self.store, out, &progress))
                .transpose()?;
            saved_store = summary;
            progress.flush();
            if summary.is_some() {
                stopwatch.lap("save local store");
            }
            steps = stopwatch.take();
            if self.hold {
                completion.send(&self.done(*pages, summary, steps.clone()), &[])?;
                decision = await_decision(completion);
            }
            Ok(decision)
        };
        let order = CaptureOrder {
            pid: self.pid,
            externals: self.externals,
            files: CaptureFiles { meta, pages },
            during: &mut during,
            progress: &progress,
        };
        let outcome = engine.capture(order);
        let told = match outcome {
            Ok(_) if !asked => (
                self.failed("the engine did not save the local store".into()),
                status::FAILED,
            ),
            Ok(_) if self.hold => {
                return if decision == AfterCapture::Terminate {
                    status::SAVED_AND_ENDED
                } else {
                    status::SAVED
                };
            }
            Ok(pages) => (self.done(pages, saved_store, steps), status::SAVED),
            Err(error) => (self.failed(words(error)), status::FAILED),
        };
        // If the coordinator is gone nobody needs to know.
        let _ = completion.send(&told.0, &[]);
        told.1
    }

    fn done(
        &self,
        pages: PageFileSummary,
        store: Option<PageFileSummary>,
        steps: Vec<Step>,
    ) -> CaptureEvent {
        CaptureEvent::Done {
            id: self.id,
            pages,
            store,
            steps,
        }
    }

    fn failed(&self, message: String) -> CaptureEvent {
        CaptureEvent::Failed {
            id: self.id,
            message,
        }
    }
}

/// Waits for the coordinator's word on a process that stands still. Without one it goes on.
fn await_decision(completion: &Channel) -> AfterCapture {
    match completion.recv::<CaptureDecision>() {
        Ok((CaptureDecision::Terminate, _)) => AfterCapture::Terminate,
        Ok((CaptureDecision::Resume, _)) | Err(_) => AfterCapture::Resume,
    }
}

/// Saves what is in a local store, holes left out.
fn save_store(
    store: &SharedFile,
    out: File,
    progress: &dyn Progress,
) -> Result<PageFileSummary, EngineError> {
    let file = File::from(store.as_fd().try_clone_to_owned()?);
    let ranges = data_ranges(&file, store.bytes())?;
    Ok(snapify_store::write_pages(
        out,
        STORE_FILE,
        &ranges,
        &StoreSource(file),
        progress,
    )?)
}

struct StoreSource(File);

impl PageSource for StoreSource {
    fn read(&self, _: SpaceId, start: u64, buf: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, buf, start)
    }
}

/// Tells the coordinator how far it is; stops the work when the coordinator is gone.
struct Reporter<'a> {
    id: ProcessId,
    completion: &'a Channel,
    untold: AtomicU64,
}

impl Reporter<'_> {
    fn flush(&self) {
        let bytes = self.untold.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            // A coordinator that does not read misses figures, not results.
            let _ = self
                .completion
                .send_now(&CaptureEvent::Progress { id: self.id, bytes }, &[]);
        }
    }
}

impl Progress for Reporter<'_> {
    fn advance(&self, bytes: u64) {
        if self.untold.fetch_add(bytes, Ordering::Relaxed) + bytes >= PROGRESS_STEP {
            self.flush();
        }
    }

    fn cancelled(&self) -> bool {
        let mut fds = [PollFd::new(self.completion, PollFlags::empty())];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut fds, Some(&now)), Ok(1..)) && fds[0].revents().contains(PollFlags::HUP)
    }
}
