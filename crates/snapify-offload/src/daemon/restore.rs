//! Rebuilding an offload process on this card: its local store is filled by a forked copy of the daemon while
//! the engine rebuilds the process.

use super::Daemon;
use super::duplicate;
use super::fill::{Filling, Origin};
use super::process::{OffloadProcess, Pending, unknown, words};
use super::supervisors::{HostKey, ProcessKey};
use crate::control::{
    CardToSupervisor, EXTERNAL_CONTROL, EXTERNAL_STDERR, EXTERNAL_STDOUT, EXTERNAL_STORE,
    ProcessState, Step,
};
use crate::engine::RestoreOrder;
use crate::steps::now;
use crate::wire::{CardReply, CardToHost, StoreForm};
use snapify_fabric::{Channel, SharedFile};
use std::fs::File;
use std::os::fd::OwnedFd;

/// What a process is rebuilt from.
struct Files {
    /// The engine's description.
    meta: File,
    /// The pages: from the newest file to a full one.
    pages: Vec<File>,
    store: Origin,
    /// Standard output and error.
    outputs: [OwnedFd; 2],
}

impl Daemon {
    /// For its supervisor: rebuilds a process, stopped, whose local store had `bytes` set aside. Descriptors: description, as
    /// many files of `pages`, those of the local store, standard output and error. The answer follows when its local store is filled.
    pub(super) fn restore(
        &mut self,
        id: ProcessKey,
        bytes: u64,
        pages: usize,
        mut fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let wrong = "a restore needs a description, pages, a local store and two outputs";
        // Two ends, and one store's file at least.
        if pages == 0 || pages > fds.len().saturating_sub(4) {
            return Err(wrong.into());
        }
        let outputs = fds.split_off(fds.len() - 2).try_into();
        let outputs: [OwnedFd; 2] = outputs.map_err(|_| wrong)?;
        let store = fds.split_off(1 + pages);
        let mut fds = fds.into_iter().map(File::from);
        let files = Files {
            meta: fds.next().ok_or(wrong)?,
            pages: fds.collect(),
            store: Origin::Pages(store.into_iter().map(File::from).collect()),
            outputs,
        };
        self.expect_room(id, bytes)?;
        let mut process = self.rebuild(id, files)?;
        process.pending = Some(Pending::Supervisor);
        self.processes.insert(id, process);
        Ok(())
    }

    /// For a host process: rebuilds a process of its own, stopped. The answer follows when its local store is filled.
    pub(super) fn restore_for(
        &mut self,
        host: HostKey,
        request: u64,
        id: ProcessKey,
        (bytes, form): (u64, StoreForm),
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let [meta, pages, store, stdout, stderr]: [OwnedFd; 5] = fds
            .try_into()
            .map_err(|_| "a restore needs three files and two outputs")?;
        let store = File::from(store);
        let files = Files {
            meta: meta.into(),
            pages: vec![pages.into()],
            store: match form {
                StoreForm::Pages => Origin::Pages(vec![store]),
                StoreForm::Store => Origin::Store(store),
            },
            outputs: [stdout, stderr],
        };
        self.expect_room(id, bytes)?;
        let mut process = self.rebuild(id, files)?;
        process.host = Some(host);
        process.pending = Some(Pending::Host(request));
        self.processes.insert(id, process);
        Ok(())
    }

    fn expect_room(&self, id: ProcessKey, bytes: u64) -> Result<(), String> {
        let free = self.free_memory();
        if bytes > free {
            return Err(format!(
                "it has {free} bytes of memory left, and offload process {id} needs {bytes}"
            ));
        }
        Ok(())
    }

    /// The local store of a process that is being rebuilt is filled, or cannot be.
    pub(super) fn finish_filling(&mut self, id: ProcessKey) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let Some(filling) = process.filling.take() else {
            return;
        };
        let began = filling.began;
        let filled = filling.finish();
        if process.state == ProcessState::Ending {
            return;
        }
        match filled.and_then(|filled| Ok((filled, duplicate(&process.store)?))) {
            Ok((filled, store)) => {
                let reply = CardReply::Restored {
                    pid: process.child.pid(),
                    steps: steps_of(began, process.rebuilt, filled),
                };
                self.answer(id, Ok(reply), &[store]);
            }
            Err(why) => self.forget_unstarted(id, Err(why)),
        }
    }

    /// Ends a rebuilt process that does not run yet: its end is not told by anybody. `answer` is for the request that waits
    /// for it.
    pub(super) fn forget_unstarted(&mut self, id: ProcessKey, answer: Result<CardReply, String>) {
        let Some(process) = self.processes.remove(&id) else {
            return;
        };
        let OffloadProcess {
            mut child,
            store,
            host,
            pending,
            filling,
            ..
        } = process;
        child.kill();
        // Nothing of it is left, and its memory is free, before anybody is told.
        drop((child, store));
        if let Some(filling) = filling {
            filling.abort();
            let _ = filling.finish();
        }
        match (pending, host) {
            (Some(Pending::Host(request)), Some(host)) => {
                let result = answer;
                self.tell(host, &CardToHost::Reply { request, result }, &[]);
            }
            (Some(Pending::Supervisor), _) => {
                let why = answer.err();
                let message = why.unwrap_or_else(|| format!("offload process {id} was ended"));
                self.tell_supervisor(id.supervisor, &CardToSupervisor::Failed { message }, &[]);
            }
            _ => {}
        }
    }

    /// Lets a rebuilt process run, if it is one that does not yet. Its gate is closed, as it was when it was saved; its
    /// host process resumes it.
    pub(super) fn start_restored(&mut self, id: ProcessKey) -> Result<(), String> {
        let process = self.processes.get_mut(&id).ok_or_else(|| unknown(id))?;
        if process.state == ProcessState::Restored {
            process.child.start().map_err(words)?;
            process.state = ProcessState::Paused;
        }
        Ok(())
    }

    /// Has the engine rebuild a process while its local store is being filled.
    fn rebuild(&self, id: ProcessKey, files: Files) -> Result<OffloadProcess, String> {
        if self.processes.contains_key(&id) {
            return Err(format!("there is an offload process {id} already"));
        }
        let Files {
            meta,
            pages,
            store: origin,
            outputs: [stdout, stderr],
        } = files;
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
        let filling = Filling::begin(&store, origin, self.memory)?;
        let order = RestoreOrder {
            meta,
            pages,
            externals,
            init_name: format!("snapify-card{}", self.index),
            progress: &(),
        };
        let child = match self.engine.restore(order) {
            Ok(child) => child,
            Err(error) => {
                filling.abort();
                // What stands in the way of the filling may be what stands in the way of both.
                let _ = filling.finish();
                return Err(words(error));
            }
        };
        Ok(OffloadProcess {
            child,
            control: Some(ours),
            store,
            host: None,
            state: ProcessState::Restored,
            pending: None,
            externals: Vec::new(),
            capture: None,
            filling: Some(filling),
            rebuilt: now(),
            ended: None,
            complaint: None,
        })
    }
}

/// The two parts of a restore, which go on at the same time.
fn steps_of(begin: u64, rebuilt: u64, filled: u64) -> Vec<Step> {
    let step = |name: &str, end| Step {
        name: name.into(),
        begin,
        end,
    };
    vec![
        step("restore process", rebuilt),
        step("fill local store", filled),
    ]
}
