//! Processes on cards.

use crate::error::{Code, Failure, Result};
use crate::event::Event;
use crate::host::Host;
use snapify_offload::host::start_thread;
use snapify_offload::{DeathCause, OffloadError};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A process on a card.
pub struct Process {
    /// As the offload runtime has it.
    pub offload: Arc<snapify_offload::host::Process>,
    /// Signalled when it has ended.
    pub end: Arc<Event>,
    /// Handles of its functions by name.
    functions: Mutex<HashMap<String, u64>>,
    /// Registered libraries that were loaded because others need them.
    pub resident: Mutex<HashSet<String>>,
    /// Memory of destroyed buffers that functions go on using.
    orphans: Mutex<Vec<u64>>,
}

/// A function in a process.
pub struct Function {
    /// The handle of the process.
    pub process: u64,
    /// Its address there.
    pub address: u64,
    /// Its name, for messages.
    pub name: String,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// What its `main` returned.
    pub status: i8,
    /// The signal that killed it, or 0.
    pub signal: u32,
}

impl Process {
    /// Takes a started process.
    pub fn new(offload: Arc<snapify_offload::host::Process>) -> Result<Arc<Self>> {
        let end = Event::new();
        let (watched, tell) = (offload.clone(), end.clone());
        let watching = start_thread("snapify-end", move || {
            watched.wait_for_end(None);
            tell.fire(Ok(()));
        });
        if let Err(error) = watching {
            let _ = offload.destroy();
            let text = format!("cannot start a thread that watches an offload process: {error}");
            return Err(Failure::new(Code::ResourceExhausted, text));
        }
        Ok(Arc::new(Self {
            offload,
            end,
            functions: Mutex::default(),
            resident: Mutex::default(),
            orphans: Mutex::default(),
        }))
    }

    /// Handles of functions by name; 0 for those that there are not.
    pub fn functions(&self, host: &Host, own: u64, names: &[&str]) -> Result<Vec<u64>> {
        let mut known = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let wanted: Vec<&str> = names
            .iter()
            .copied()
            .filter(|name| !known.contains_key(*name))
            .collect();
        let found = self.offload.exported(&wanted)?;
        for (name, address) in wanted.iter().zip(found) {
            if let Some(address) = address {
                let function = Function {
                    process: own,
                    address,
                    name: (*name).to_owned(),
                };
                let handle = host.functions.add(Arc::new(function));
                known.insert((*name).to_owned(), handle);
            }
        }
        let handle = |name: &&str| known.get(*name).copied().unwrap_or(0);
        Ok(names.iter().map(handle).collect())
    }

    /// Forgets functions: a library was unloaded, and others may be found by their names from now on.
    pub fn forget_functions(&self) {
        let mut known = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        known.clear();
    }

    /// Memory for a buffer.
    pub fn allocate(&self, bytes: u64) -> Result<u64> {
        match self.offload.alloc(bytes) {
            Err(OffloadError::OutOfMemory { .. }) => {
                // Some that is kept for functions may not be in use any more.
                self.free_orphans(None)?;
                Ok(self.offload.alloc(bytes)?)
            }
            other => Ok(other?),
        }
    }

    /// Gives the memory of a buffer back, as soon as no function refers to it.
    pub fn free(&self, address: u64) -> Result<()> {
        self.free_orphans(Some(address))
    }

    fn free_orphans(&self, address: Option<u64>) -> Result<()> {
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        orphans.extend(address);
        let referred: HashSet<u64> = self.offload.referred(&orphans)?.into_iter().collect();
        let unused: Vec<u64> = orphans
            .extract_if(.., |address| !referred.contains(address))
            .collect();
        drop(orphans);
        for address in unused {
            self.offload.free(address)?;
        }
        Ok(())
    }

    /// Waits for the end, and kills if it does not come: see `COIProcessDestroy`. Nothing if it lives on.
    pub fn end(&self, timeout: Option<Duration>, force: bool) -> Result<Option<Ended>> {
        let at_once = timeout == Some(Duration::ZERO);
        if !at_once {
            // It may have ended already.
            let _ = self.offload.shut_down();
        }
        let mut cause = self.offload.wait_for_end(timeout);
        if cause.is_none() && force {
            self.offload.destroy()?;
            cause = self.offload.wait_for_end(None);
        }
        let Some(cause) = cause else {
            return Ok(None);
        };
        // Gives its memory here back, too.
        self.offload.destroy()?;
        Ok(Some(match cause {
            DeathCause::Ended {
                signal: Some(signal),
                ..
            } => Ended {
                status: 0,
                signal: signal.unsigned_abs(),
            },
            DeathCause::Ended { status, .. } => Ended {
                status: status.unwrap_or(0) as i8,
                signal: 0,
            },
            // The card is gone, or the host has ended it: it did not come to an end of its own.
            _ => Ended {
                status: 0,
                signal: libc::SIGKILL.unsigned_abs(),
            },
        }))
    }
}
