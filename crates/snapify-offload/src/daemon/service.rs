//! Requests of supervisors.

use super::Daemon;
use super::hosts::HostConnection;
use super::process::unknown;
use super::supervisors::{HostKey, ProcessKey, SupervisorId};
use crate::control::{CardToSupervisor, ProcessState, ProcessStatus, SupervisorToCard};
use snapify_fabric::{Channel, ChannelError};
use std::os::fd::OwnedFd;

impl Daemon {
    /// Takes a request of a supervisor.
    pub(super) fn serve_supervisor(&mut self, supervisor: SupervisorId) {
        let connection = self.supervisors.get(&supervisor);
        let Some(connection) = connection.filter(|connection| !connection.leaving) else {
            return;
        };
        let (request, fds) = match connection.channel.recv() {
            Ok(message) => message,
            Err(error) => {
                if !matches!(error, ChannelError::Closed) {
                    tracing::warn!("a supervisor: {error}");
                }
                self.leave(supervisor);
                return;
            }
        };
        let leaves = matches!(request, SupervisorToCard::Shutdown);
        let answer = self
            .obey(supervisor, request, fds)
            .unwrap_or_else(|message| Some(CardToSupervisor::Failed { message }));
        if let Some(answer) = answer {
            self.tell_supervisor(supervisor, &answer, &[]);
        }
        if leaves {
            self.leave(supervisor);
        }
    }

    /// Does what a supervisor asks. Nothing, if the answer comes later.
    fn obey(
        &mut self,
        supervisor: SupervisorId,
        request: SupervisorToCard,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<CardToSupervisor>, String> {
        let key = |host| HostKey { supervisor, host };
        match request {
            SupervisorToCard::Host { host } => self.connect(key(host), fds)?,
            SupervisorToCard::Restore { id, bytes, pages } => {
                self.restore(supervisor.process(id), bytes, pages, fds)?;
                return Ok(None);
            }
            SupervisorToCard::Adopt { host, ids } => {
                let ids: Vec<_> = ids.into_iter().map(|id| supervisor.process(id)).collect();
                self.adopt(key(host), &ids)?;
            }
            SupervisorToCard::Start { id } => {
                let id = supervisor.process(id);
                let process = self.processes.get(&id).ok_or_else(|| unknown(id))?;
                if process.state != ProcessState::Restored {
                    return Err(format!("offload process {id} runs already"));
                }
                self.start_restored(id)?;
            }
            SupervisorToCard::Discard { id } => {
                let id = supervisor.process(id);
                if !self.processes.contains_key(&id) {
                    return Err(unknown(id));
                }
                self.end(id);
            }
            SupervisorToCard::Status => return Ok(Some(self.status(supervisor))),
            SupervisorToCard::Shutdown => {}
        }
        Ok(Some(CardToSupervisor::Accepted))
    }

    fn connect(&mut self, host: HostKey, fds: Vec<OwnedFd>) -> Result<(), String> {
        if self.hosts.contains_key(&host) {
            return Err(format!("host process {} is connected already", host.host.0));
        }
        let mut fds = fds.into_iter();
        let channel = Channel::from_fd(fds.next().ok_or("a host process needs a connection")?);
        let pidfd = fds.next();
        self.hosts.insert(host, HostConnection { channel, pidfd });
        Ok(())
    }

    fn adopt(&mut self, host: HostKey, ids: &[ProcessKey]) -> Result<(), String> {
        if !self.hosts.contains_key(&host) {
            return Err(format!("there is no host process {}", host.host.0));
        }
        let orphan = |id: &ProcessKey| {
            self.processes
                .get(id)
                .is_some_and(|process| process.host.is_none())
        };
        if let Some(&id) = ids.iter().find(|id| !orphan(id)) {
            return Err(unknown(id));
        }
        for id in ids {
            if let Some(process) = self.processes.get_mut(id) {
                process.host = Some(host);
            }
        }
        Ok(())
    }

    fn status(&self, supervisor: SupervisorId) -> CardToSupervisor {
        let status =
            |(&id, process): (&ProcessKey, &super::process::OffloadProcess)| ProcessStatus {
                id: id.id,
                pid: process.child.pid(),
                host: process.host.map(|host| host.host),
                yours: id.supervisor == supervisor,
                store_bytes: process.store_bytes(),
                state: process.state,
            };
        let absent = |(id, (host, store_bytes)): (&ProcessKey, &(HostKey, u64))| ProcessStatus {
            id: id.id,
            pid: 0,
            host: Some(host.host),
            yours: id.supervisor == supervisor,
            store_bytes: *store_bytes,
            state: ProcessState::SwappedOut,
        };
        // One that is just coming back is here.
        let away = self.absent.iter();
        let away = away.filter(|(id, _)| !self.processes.contains_key(id));
        CardToSupervisor::Status {
            processes: self
                .processes
                .iter()
                .map(status)
                .chain(away.map(absent))
                .collect(),
            free: self.free_memory(),
        }
    }
}
