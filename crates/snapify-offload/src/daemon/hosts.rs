//! Connections of host processes.

use super::Daemon;
use super::process::{Launch, Pending, unknown};
use super::supervisors::{HostKey, ProcessKey};
use crate::control::ProcessState;
use crate::wire::{CardReply, CardToHost, CardToSink, HostRequest, HostToCard};
use snapify_fabric::{Channel, ChannelError};
use std::os::fd::{AsFd, OwnedFd};

/// A connected host process.
pub struct HostConnection {
    pub channel: Channel,
    /// Readable when the host process has ended, though copies of it may hold the connection.
    pub pidfd: Option<OwnedFd>,
}

impl Daemon {
    /// Sends a host process a message. One that does not read its messages is given up: the daemon must not
    /// wait for it.
    pub(super) fn tell(&mut self, host: HostKey, message: &CardToHost, fds: &[OwnedFd]) {
        let Some(connection) = self.hosts.get(&host) else {
            return;
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if connection.channel.send_now(message, &fds).is_err() {
            self.drop_host(host);
        }
    }

    /// Takes a request of a host process.
    pub(super) fn serve_host(&mut self, host: HostKey) {
        let Some(connection) = self.hosts.get(&host) else {
            return;
        };
        let (HostToCard { request, body }, fds) = match connection.channel.recv() {
            Ok(message) => message,
            Err(error) => {
                if !matches!(error, ChannelError::Closed) {
                    tracing::warn!("host process {}: {error}", host.host.0);
                }
                self.drop_host(host);
                return;
            }
        };
        let outcome = self.act(host, request, body, fds);
        if let Some(result) = outcome.transpose() {
            self.tell(host, &CardToHost::Reply { request, result }, &[]);
        }
    }

    /// Does what a host process asks. Nothing, if the answer comes later.
    fn act(
        &mut self,
        host: HostKey,
        request: u64,
        body: HostRequest,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<CardReply>, String> {
        match body {
            HostRequest::Launch { id, env, program } => {
                let id = host.process(id);
                self.launch(host, request, id, Launch { env, program, fds })?;
            }
            HostRequest::Shutdown { id } => {
                let id = host.process(id);
                self.owned(host, id)?;
                self.tell_sink(id, CardToSink::Shutdown)?;
                return Ok(Some(CardReply::ShuttingDown));
            }
            HostRequest::Destroy { id, swapped_out } => {
                let id = host.process(id);
                self.absent.remove(&id);
                if !self.processes.contains_key(&id) {
                    // It has ended already, and its host was told.
                    return Ok(Some(CardReply::Destroyed));
                }
                self.owned(host, id)?;
                self.answer(id, Err("the process is being destroyed".into()), &[]);
                if let Some(process) = self.processes.get_mut(&id) {
                    if swapped_out {
                        self.absent.insert(id, (host, process.store_bytes()));
                    }
                    process.pending = Some(Pending::Host(request));
                }
                self.end(id);
            }
            HostRequest::Pause { id } => {
                let id = host.process(id);
                self.owned(host, id)?;
                self.ask(id, request, CardToSink::Pause, &[])?;
            }
            HostRequest::Resume { id } => {
                let id = host.process(id);
                self.owned(host, id)?;
                self.start_restored(id)?;
                self.ask(id, request, CardToSink::Resume, &fds)?;
            }
            HostRequest::Capture {
                id,
                hold,
                store,
                form,
            } => {
                let id = host.process(id);
                self.owned(host, id)?;
                self.capture(id, hold, (store, form), fds)?;
                return Ok(Some(CardReply::CaptureStarted));
            }
            HostRequest::Room => {
                return Ok(Some(CardReply::Room {
                    memory: self.memory,
                    free: self.free_memory(),
                }));
            }
            HostRequest::Restore { id, bytes, store } => {
                self.restore_for(host, request, host.process(id), (bytes, store), fds)?;
            }
        }
        Ok(None)
    }

    /// Makes sure that a process is this host process's, and not ending.
    fn owned(&self, host: HostKey, id: ProcessKey) -> Result<(), String> {
        match self.processes.get(&id) {
            Some(process)
                if process.host == Some(host) && process.state != ProcessState::Ending =>
            {
                Ok(())
            }
            _ => Err(unknown(id)),
        }
    }

    /// A host process is gone: so are its offload processes.
    pub(super) fn drop_host(&mut self, host: HostKey) {
        self.hosts.remove(&host);
        self.absent.retain(|_, (owner, _)| *owner != host);
        let theirs: Vec<_> = self
            .processes
            .iter()
            .filter(|(_, process)| process.host == Some(host))
            .map(|(&id, _)| id)
            .collect();
        for id in theirs {
            if let Some(process) = self.processes.get_mut(&id) {
                process.host = None;
                process.pending = None;
            }
            self.end(id);
        }
    }
}
