//! Requests of the supervisor.

use super::hosts::HostConnection;
use super::process::unknown;
use super::{Daemon, DaemonError};
use crate::control::{
    CardToSupervisor, HostId, ProcessId, ProcessState, ProcessStatus, SupervisorToCard,
};
use snapify_fabric::{Channel, ChannelError};
use std::os::fd::{AsFd, OwnedFd};

impl Daemon {
    /// Takes a request of the supervisor.
    pub(super) fn serve_supervisor(&mut self) -> Result<(), DaemonError> {
        let (request, fds) = match self.service.recv() {
            Ok(message) => message,
            Err(ChannelError::Closed) => {
                self.stopping = true;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let (answer, fds) = match self.obey(request, fds) {
            Ok(answer) => answer,
            Err(message) => (CardToSupervisor::Failed { message }, None),
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        match self.service.send(&answer, &fds) {
            Err(ChannelError::Closed) => self.stopping = true,
            other => other?,
        }
        Ok(())
    }

    fn obey(
        &mut self,
        request: SupervisorToCard,
        fds: Vec<OwnedFd>,
    ) -> Result<(CardToSupervisor, Option<OwnedFd>), String> {
        match request {
            SupervisorToCard::Host { host } => self.connect(host, fds)?,
            SupervisorToCard::Restore { id } => {
                let (process, store) = self.restore(id, fds)?;
                return Ok((CardToSupervisor::Restored { process }, Some(store)));
            }
            SupervisorToCard::Adopt { host, ids } => self.adopt(host, &ids)?,
            SupervisorToCard::Start { id } => {
                let process = self.processes.get(&id).ok_or_else(|| unknown(id))?;
                if process.state != ProcessState::Restored {
                    return Err(format!("offload process {id} runs already"));
                }
                self.start_restored(id)?;
            }
            SupervisorToCard::Discard { id } => {
                if !self.processes.contains_key(&id) {
                    return Err(unknown(id));
                }
                self.end(id);
            }
            SupervisorToCard::Status => return Ok((self.status(), None)),
            SupervisorToCard::Shutdown => self.stopping = true,
        }
        Ok((CardToSupervisor::Accepted, None))
    }

    fn connect(&mut self, host: HostId, fds: Vec<OwnedFd>) -> Result<(), String> {
        if self.hosts.contains_key(&host) {
            return Err(format!("host process {} is connected already", host.0));
        }
        let mut fds = fds.into_iter();
        let channel = Channel::from_fd(fds.next().ok_or("a host process needs a connection")?);
        let pidfd = fds.next();
        self.hosts.insert(host, HostConnection { channel, pidfd });
        Ok(())
    }

    fn adopt(&mut self, host: HostId, ids: &[ProcessId]) -> Result<(), String> {
        if !self.hosts.contains_key(&host) {
            return Err(format!("there is no host process {}", host.0));
        }
        let orphan = |id: &ProcessId| {
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

    fn status(&self) -> CardToSupervisor {
        let status =
            |(&id, process): (&ProcessId, &super::process::OffloadProcess)| ProcessStatus {
                id,
                pid: process.child.pid(),
                host: process.host,
                store_bytes: process.store_bytes(),
                state: process.state,
            };
        CardToSupervisor::Status {
            processes: self.processes.iter().map(status).collect(),
            free: self.free_memory(),
        }
    }
}
