//! Saving an offload process: the engine saves the process, and while it stands still its local store is saved
//! beside it (paper 1, section 4.1). A forked copy of the daemon does it.

use super::Daemon;
use super::fork::{Worker, spawn};
use super::process::{unknown, words};
use super::sparse::data_ranges;
use super::supervisors::ProcessKey;
use crate::control::{CaptureDecision, CaptureEvent, ProcessId, ProcessState, SaveForm, Step};
use crate::engine::{
    AfterCapture, CaptureFiles, CaptureOrder, Engine, EngineError, External, PageFileSummary,
    Progress,
};
use crate::steps::Stopwatch;
use rustix::event::{PollFd, PollFlags, poll};
use snapify_fabric::{Channel, SharedFile};
use snapify_store::{PageFile, PageSource, PageWrite, SpaceId};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
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
    /// Begins to save a paused process. Descriptors: completion channel, description, pages, with `store` the local
    /// store, and the parents that `form` tells of.
    pub(super) fn capture(
        &mut self,
        id: ProcessKey,
        hold: bool,
        (store, form): (bool, SaveForm),
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let process = self.processes.get_mut(&id).ok_or_else(|| unknown(id))?;
        if process.state != ProcessState::Paused {
            return Err(format!("offload process {id} is not paused"));
        }
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or("a capture needs a channel and its files");
        let completion = Channel::from_fd(next()?);
        let (meta, pages) = (next()?.into(), next()?.into());
        let store = store.then(&mut next).transpose()?.map(File::from);
        let mut parents: Vec<File> = fds.map(File::from).collect();
        if Some(parents.len()) != form.parent_pages.checked_add(form.parent_store) {
            return Err("a capture needs as many files as its form tells".into());
        }
        let parent_store = parents.split_off(form.parent_pages);
        let files = Files {
            engine: CaptureFiles {
                meta,
                pages,
                parent: parents,
            },
            store,
            parent_store,
        };
        let order = Order {
            id: id.id,
            pid: process.child.pid(),
            externals: &process.externals,
            store: &process.store,
            hold,
            form,
        };
        let engine = &*self.engine;
        let work = || order.carry_out(engine, &completion, files);
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
    form: SaveForm,
}

/// Where it goes, and what it builds on.
struct Files {
    engine: CaptureFiles,
    store: Option<File>,
    parent_store: Vec<File>,
}

impl Order<'_> {
    fn carry_out(&self, engine: &dyn Engine, completion: &Channel, files: Files) -> u8 {
        let Files {
            engine: files,
            mut store,
            mut parent_store,
        } = files;
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
                .map(|out| self.save_store(out, std::mem::take(&mut parent_store), &progress))
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
            files,
            form: self.form,
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

    /// Saves what is in the local store, holes left out; of what was saved before as `parent`, only what differs.
    fn save_store(
        &self,
        out: File,
        parent: Vec<File>,
        progress: &dyn Progress,
    ) -> Result<PageFileSummary, EngineError> {
        let file = File::from(self.store.as_fd().try_clone_to_owned()?);
        let ranges = data_ranges(&file, self.store.bytes())?;
        let source = StoreSource(file);
        let parent = match parent.is_empty() {
            true => None,
            false => Some(PageFile::open_chain(parent, Path::new(STORE_FILE))?),
        };
        let gone = parent.as_ref().map(|parent| parent.outside(&ranges));
        let gone = gone.unwrap_or_default();
        let mut write = match &parent {
            Some(parent) => PageWrite::compared(parent, &ranges).gone(&gone),
            None => PageWrite::full(&ranges),
        };
        if let Some(seed) = self.form.hash_seed {
            write = write.hashes(seed);
        }
        let write = write.options(&self.form.write);
        Ok(write.write(out, STORE_FILE, &source, progress)?)
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
