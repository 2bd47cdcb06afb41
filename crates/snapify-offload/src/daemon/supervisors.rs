//! Connections of supervisors: one to the daemon of a card that belongs to one application, any number to that of a card
//! that applications share. Each sees its own application only, but for the memory that is left. The daemon ends when the
//! last one has gone.

use super::Daemon;
use crate::control::{CardInfo, CardToSupervisor, HostId, ProcessId, VERSION};
use rustix::net::{Shutdown, shutdown};
use snapify_fabric::Channel;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

/// Numbers the supervisors that have connected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SupervisorId(u64);

/// A connection of a host process: supervisors number theirs independently of each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostKey {
    pub supervisor: SupervisorId,
    pub host: HostId,
}

impl HostKey {
    /// The offload process that it calls `id`.
    pub fn process(self, id: ProcessId) -> ProcessKey {
        self.supervisor.process(id)
    }
}

impl SupervisorId {
    /// The offload process of this application with that id.
    pub fn process(self, id: ProcessId) -> ProcessKey {
        ProcessKey {
            supervisor: self,
            id,
        }
    }
}

/// An offload process. Ids alone are not enough: two restarts from one snapshot have the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ProcessKey {
    pub supervisor: SupervisorId,
    pub id: ProcessId,
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

/// A connected supervisor.
pub struct SupervisorConnection {
    pub channel: Channel,
    /// It wants no more, and waits for the end of what it had here.
    pub leaving: bool,
}

impl Daemon {
    /// Takes up with a supervisor, and tells it what card this is.
    pub(super) fn welcome(&mut self, channel: Channel) -> Result<(), snapify_fabric::ChannelError> {
        let ready = CardToSupervisor::Ready {
            version: VERSION,
            card: CardInfo {
                index: self.index,
                memory: self.memory,
            },
            pid: self.outer_pid,
            warnings: self.warnings.clone(),
        };
        channel.send_now(&ready, &[])?;
        let id = SupervisorId(self.next_supervisor);
        self.next_supervisor += 1;
        self.supervisors.insert(
            id,
            SupervisorConnection {
                channel,
                leaving: false,
            },
        );
        Ok(())
    }

    /// Another supervisor wants to share the card.
    pub(super) fn accept(&mut self) {
        let Some(listener) = &self.listener else {
            return;
        };
        let welcomed = listener.accept().and_then(|channel| self.welcome(channel));
        if let Err(error) = welcomed {
            tracing::warn!("a supervisor could not connect: {error}");
        }
    }

    /// Sends a supervisor an answer. It has asked for each, and reads them: one that does not is given up.
    pub(super) fn tell_supervisor(
        &mut self,
        supervisor: SupervisorId,
        answer: &CardToSupervisor,
        fds: &[OwnedFd],
    ) {
        let Some(connection) = self.supervisors.get(&supervisor) else {
            return;
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if connection.channel.send_now(answer, &fds).is_err() {
            self.leave(supervisor);
        }
    }

    /// A supervisor goes, or is gone: so are its host processes for this card, and their offload processes.
    pub(super) fn leave(&mut self, supervisor: SupervisorId) {
        let Some(connection) = self.supervisors.get_mut(&supervisor) else {
            return;
        };
        if std::mem::replace(&mut connection.leaving, true) {
            return;
        }
        let hosts = self.hosts.keys().copied();
        let hosts: Vec<_> = hosts.filter(|host| host.supervisor == supervisor).collect();
        for host in hosts {
            self.drop_host(host);
        }
        let processes = self.processes.keys().copied();
        let processes: Vec<_> = processes.filter(|id| id.supervisor == supervisor).collect();
        for id in processes {
            self.end(id);
        }
    }

    /// Parts with supervisors that wanted to leave and of whose processes nothing is left.
    pub(super) fn part(&mut self) {
        let processes = &self.processes;
        self.supervisors.retain(|supervisor, connection| {
            let stays =
                !connection.leaving || processes.keys().any(|id| id.supervisor == *supervisor);
            if !stays {
                // Copies of the descriptor, in savers or in the sandbox's outer process, are not to keep it open.
                let _ = shutdown(&connection.channel, Shutdown::Both);
            }
            stays
        });
    }
}
