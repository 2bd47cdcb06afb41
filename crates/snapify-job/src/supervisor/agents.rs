//! Host libraries: they connect, are connected with the cards, and are told to pause later.

use super::Supervisor;
use crate::checkpoint::HostAgent;
use crate::error::JobError;
use crate::swap::Registry;
use snapify_fabric::{Channel, ChannelError};
use snapify_offload::control::{
    CardInfo, HostId, HostToSupervisor, SupervisorToCard, SupervisorToHost, VERSION,
};
use std::os::fd::{AsFd, OwnedFd};

/// A connected host library.
pub(crate) struct Agent {
    /// Its process, as we see its id.
    pub pid: i32,
    /// The connection.
    pub channel: Channel,
    /// Readable when the process has ended, though children of it may hold the connection.
    pub handle: OwnedFd,
    /// Its number among those that connect to this supervisor.
    pub number: u64,
    /// Inode numbers of the sockets that it has, but for its end of the connection.
    pub card_sockets: Vec<u64>,
    /// It has ended, or closed the connection.
    pub is_gone: bool,
}

/// The inode number of a socket.
pub(crate) fn inode(socket: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(socket).ok().map(|stat| stat.st_ino)
}

/// Names the connection of a host process for the card that it knows by `number`: two of its numbers may be served by
/// one card, which tells the connections apart by these names.
pub(crate) fn host_id(host: u64, number: u32) -> HostId {
    HostId(host << 32 | u64::from(number))
}

impl Supervisor {
    /// Takes the greeting of a host library and answers with its connections to the cards.
    pub(super) fn greet(&mut self, stranger: Channel) {
        let version = match stranger.recv::<HostToSupervisor>() {
            Ok((HostToSupervisor::Hello { version, .. }, _)) => version,
            _ => return,
        };
        let outcome = if version == VERSION {
            self.connect_to_cards(&stranger)
                .map_err(|error| error.to_string())
        } else {
            Err(format!(
                "the OpenMP plugin speaks version {version} of the protocol and its supervisor version {VERSION}; \
                 they must be of one installation"
            ))
        };
        match outcome {
            Ok(greeted) => {
                self.agents.push(greeted.with(stranger));
                self.note_news();
            }
            Err(message) => {
                eprintln!("snapify: {message}");
                let _ = stranger.send_now(&SupervisorToHost::Refused { message }, &[]);
            }
        }
    }

    fn connect_to_cards(&mut self, host: &Channel) -> Result<Greeted, JobError> {
        let lost = |source| JobError::Connection {
            peer: "the host process".into(),
            source,
        };
        let pid = host.peer_credentials().map_err(lost)?.pid;
        let first = self.next_host;
        self.next_host += 1;
        let handle = crate::processes::own_process(pid)?;
        let mut ends = Vec::new();
        let mut cards = Vec::new();
        for (number, card) in (0..).zip(&self.card_of) {
            let card = &self.cards[*card as usize];
            let (ours, theirs) = Channel::pair().map_err(lost)?;
            let id = host_id(first, number);
            card.request(
                &SupervisorToCard::Host { host: id },
                &[theirs.as_fd(), handle.as_fd()],
            )?;
            ends.push(ours);
            cards.push(CardInfo {
                index: number,
                memory: card.info.memory,
            });
        }
        let fds: Vec<_> = ends.iter().map(AsFd::as_fd).collect();
        host.send(
            &SupervisorToHost::Welcome {
                version: VERSION,
                cards,
            },
            &fds,
        )
        .map_err(lost)?;
        Ok(Greeted {
            pid,
            handle,
            number: first,
            card_sockets: ends.iter().filter_map(inode).collect(),
        })
    }

    /// A host library says something unasked: it goes away, or answers what a dead worker asked.
    pub(super) fn hear(&mut self, index: usize) {
        let agent = &mut self.agents[index];
        if let Err(ChannelError::Closed) = agent.channel.recv::<HostToSupervisor>() {
            agent.is_gone = true;
        }
    }

    /// Forgets those that are gone. The cards have ended what they had there; of what was swapped out the image goes, too.
    pub(super) fn forget_gone(&mut self) {
        let gone = |agent: &Agent| agent.is_gone;
        let pids: Vec<i32> = self
            .agents
            .iter()
            .filter(|one| gone(one))
            .map(|one| one.pid)
            .collect();
        if pids.is_empty() {
            return;
        }
        self.agents.retain(|agent| !gone(agent));
        let registry = Registry::of(self.house.folder.path());
        for swapped in registry.all() {
            if swapped.host.is_some_and(|host| pids.contains(&host)) {
                registry.remove(&swapped);
            }
        }
        self.note_news();
    }

    /// The host libraries, that of the program itself first.
    pub(super) fn host_agents(&self) -> Vec<HostAgent<'_>> {
        let program = self.program.pid();
        let mut agents: Vec<_> = self.agents.iter().filter(|agent| !agent.is_gone).collect();
        agents.sort_by_key(|agent| (agent.pid != program, agent.number));
        let agents = agents.into_iter().map(|agent| HostAgent {
            pid: agent.pid,
            channel: &agent.channel,
        });
        agents.collect()
    }

    /// Takes over the connections of restored host libraries.
    pub(crate) fn adopt_agents(&mut self, agents: Vec<Agent>, next_host: u64) {
        self.agents = agents;
        self.next_host = next_host;
    }
}

/// A host library that has its connections to the cards.
struct Greeted {
    pid: i32,
    handle: OwnedFd,
    number: u64,
    card_sockets: Vec<u64>,
}

impl Greeted {
    fn with(self, channel: Channel) -> Agent {
        Agent {
            pid: self.pid,
            channel,
            handle: self.handle,
            number: self.number,
            card_sockets: self.card_sockets,
            is_gone: false,
        }
    }
}
