//! Rebuilding an offload process on this card: its local store is filled by a forked copy of the daemon while
//! the engine rebuilds the process.

use super::Daemon;
use super::duplicate;
use super::fork::spawn;
use super::process::{OffloadProcess, words};
use crate::control::{
    CardToSupervisor, EXTERNAL_CONTROL, EXTERNAL_STDERR, EXTERNAL_STDOUT, EXTERNAL_STORE,
    PausedProcess, ProcessId, ProcessState, Step,
};
use crate::engine::{Progress, RestoreOrder};
use crate::steps::now;
use snapify_fabric::{Channel, SharedFile};
use snapify_store::{PageFile, PageSink, SpaceId};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name that errors about the local store's page file give it.
const STORE_FILE: &str = "store.snap";

/// Progress is told in steps of at least so many bytes.
const PROGRESS_STEP: u64 = 16 << 20;

impl Daemon {
    /// Rebuilds a process, stopped. Descriptors: description, pages, local store's page file, standard output and
    /// error. Returns its local store, too.
    pub(super) fn restore(
        &mut self,
        id: ProcessId,
        fds: Vec<OwnedFd>,
    ) -> Result<(PausedProcess, OwnedFd), String> {
        if self.processes.contains_key(&id) {
            return Err(format!("there is an offload process {id} already"));
        }
        let [meta, pages, saved_store, stdout, stderr]: [OwnedFd; 5] = fds
            .try_into()
            .map_err(|_| "a restore needs three files and two outputs")?;
        // Not `new_store`: what was set aside is among what was saved, or is set aside again by the host library.
        let store = SharedFile::create_in(&self.scratch, crate::layout::STORE_BYTES)
            .map_err(|error| error.to_string())?;
        let (ours, theirs) = Channel::pair().map_err(|error| error.to_string())?;
        let externals = vec![
            (EXTERNAL_CONTROL.to_owned(), theirs.into()),
            (EXTERNAL_STORE.to_owned(), duplicate(&store)?),
            (EXTERNAL_STDOUT.to_owned(), stdout),
            (EXTERNAL_STDERR.to_owned(), stderr),
        ];
        let (mut complaint, complain) =
            io::pipe().map_err(|error| format!("cannot make a pipe: {error}"))?;
        let reporter = Reporter {
            id,
            service: &self.service,
            untold: AtomicU64::new(0),
        };
        let memory = self.memory;
        let begin = now();
        let filler =
            spawn(
                || match fill_store(&store, File::from(saved_store), &reporter, memory) {
                    // That it is done shows in its status; when, only it can tell.
                    Ok(()) => {
                        let _ = (&complain).write_all(now().to_string().as_bytes());
                        0
                    }
                    Err(why) => {
                        let _ = (&complain).write_all(why.as_bytes());
                        1
                    }
                },
            )
            .map_err(|error| format!("cannot start another process: {error}"))?;
        drop(complain);
        let order = RestoreOrder {
            meta: meta.into(),
            pages: pages.into(),
            externals,
            init_name: format!("snapify-card{}", self.index),
            progress: &reporter,
        };
        let restored = self.engine.restore(order).map_err(words);
        let rebuilt = now();
        if restored.is_err() {
            filler.kill();
        }
        let mut why = String::new();
        let _ = complaint.read_to_string(&mut why);
        let filled = filler.wait() == Some(0);
        reporter.flush();
        let mut child = restored?;
        if !filled {
            child.kill();
            return Err(if why.is_empty() {
                "the filling of the local store died".into()
            } else {
                why
            });
        }
        let theirs = duplicate(&store)?;
        let process = OffloadProcess {
            child,
            control: Some(ours),
            store,
            host: None,
            state: ProcessState::Restored,
            pending: None,
            externals: Vec::new(),
            capture: None,
            ended: None,
            complaint: None,
        };
        self.processes.insert(id, process);
        let mut told = self.describe(id).ok_or("the process vanished")?;
        let step = |name: &str, end| Step {
            name: name.into(),
            begin,
            end,
        };
        told.steps = vec![
            step("restore process", rebuilt),
            step("fill local store", why.parse().unwrap_or(rebuilt)),
        ];
        Ok((told, theirs))
    }
}

/// Fills a fresh local store.
fn fill_store(
    store: &SharedFile,
    saved: File,
    progress: &dyn Progress,
    memory: u64,
) -> Result<(), String> {
    let pages = PageFile::open(saved, STORE_FILE.into()).map_err(|error| error.to_string())?;
    let stored = pages.pages().saturating_mul(snapify_store::PAGE_SIZE);
    if stored > memory {
        return Err(format!(
            "the local store takes {stored} bytes and the card has {memory}"
        ));
    }
    let file = store
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| error.to_string())?;
    let sink = StoreSink {
        file: file.into(),
        bytes: store.bytes(),
    };
    pages.fill(&sink, progress).map_err(|error| match error_number(&error) {
        Some(libc::ENOSPC) => format!("the card's memory ({memory} bytes) is too small for the local store ({stored} bytes)"),
        _ => error.to_string(),
    })
}

fn error_number(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(number) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
        {
            return Some(number);
        }
        cause = error.source();
    }
    None
}

struct StoreSink {
    file: File,
    bytes: u64,
}

impl PageSink for StoreSink {
    fn write(&self, space: SpaceId, start: u64, data: &[u8]) -> io::Result<()> {
        let end = start.checked_add(data.len() as u64);
        if space != SpaceId(0) || end.is_none_or(|end| end > self.bytes) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it lies outside the local store",
            ));
        }
        self.file.write_all_at(data, start)
    }
}

/// Tells the supervisor how far it is.
struct Reporter<'a> {
    id: ProcessId,
    service: &'a Channel,
    untold: AtomicU64,
}

impl Reporter<'_> {
    fn flush(&self) {
        let bytes = self.untold.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            // A supervisor that does not read misses figures, not results.
            let _ = self.service.send_now(
                &CardToSupervisor::RestoreProgress { id: self.id, bytes },
                &[],
            );
        }
    }
}

impl Progress for Reporter<'_> {
    fn advance(&self, bytes: u64) {
        if self.untold.fetch_add(bytes, Ordering::Relaxed) + bytes >= PROGRESS_STEP {
            self.flush();
        }
    }
}
