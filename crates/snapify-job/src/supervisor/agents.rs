//! Host libraries: they connect, are connected with the cards, and are told to pause later.

use super::Supervisor;
use crate::error::JobError;
use snapify_fabric::{Channel, ChannelError};
use snapify_offload::control::{
    CardInfo, HostId, HostToSupervisor, SupervisorToCard, SupervisorToHost, VERSION,
};
use std::os::fd::AsFd;

/// A connected host library.
pub(crate) struct Agent {
    /// Its process, as we see its id.
    pub pid: i32,
    /// The connection.
    pub channel: Channel,
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
            Ok(pid) => self.agents.push(Agent {
                pid,
                channel: stranger,
            }),
            Err(message) => {
                eprintln!("snapify: {message}");
                let _ = stranger.send_now(&SupervisorToHost::Refused { message }, &[]);
            }
        }
    }

    fn connect_to_cards(&mut self, host: &Channel) -> Result<i32, JobError> {
        let lost = |source| JobError::Connection {
            peer: "the host process".into(),
            source,
        };
        let pid = host.peer_credentials().map_err(lost)?.pid;
        let first = self.next_host;
        self.next_host += 1;
        let mut ends = Vec::new();
        let mut cards = Vec::new();
        for (number, card) in (0..).zip(&self.card_of) {
            let card = &self.cards[*card as usize];
            let (ours, theirs) = Channel::pair().map_err(lost)?;
            let handle = crate::processes::own_process(pid)?;
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
        Ok(pid)
    }

    /// A host library says something unasked: it goes away, or answers what a dead worker asked.
    pub(super) fn hear(&mut self, index: usize) {
        if let Err(ChannelError::Closed) = self.agents[index].channel.recv::<HostToSupervisor>() {
            self.agents.swap_remove(index);
        }
    }

    /// The host library of the program itself, if it has connected.
    pub(super) fn agent(&self) -> Option<&Agent> {
        let pid = self.program.pid();
        self.agents.iter().find(|agent| agent.pid == pid)
    }

    /// Takes over the connection of a restored host library.
    pub(crate) fn adopt_agent(&mut self, channel: Channel, next_host: u64) {
        self.agents.push(Agent {
            pid: self.program.pid(),
            channel,
        });
        self.next_host = next_host;
    }
}
