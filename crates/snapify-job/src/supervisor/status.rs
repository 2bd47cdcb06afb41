//! What an application looks like from outside.

use super::{Supervisor, inode};
use crate::protocol::{ApplicationStatus, CardStatus, OffloadProcessStatus};
use crate::swap::Registry;
use snapify_offload::control::{CardToSupervisor, HostId, ProcessState, SupervisorToCard};

/// The state of a process that is on no card.
const SWAPPED_OUT: &str = "swapped-out";

impl Supervisor {
    /// What runs, and where. `state` is what the application as a whole is doing.
    pub(super) fn status(&self, state: &str) -> ApplicationStatus {
        let mut cards = Vec::new();
        let mut processes = Vec::new();
        for (index, card) in self.cards.iter().enumerate() {
            let mut status = CardStatus {
                index: card.info.index,
                pid: card.pid(),
                memory: card.info.memory,
                used: 0,
                free: 0,
                shared: card.shared,
                state: "dead".into(),
            };
            if !self.is_lost(index)
                && let Ok((
                    CardToSupervisor::Status {
                        processes: found,
                        free,
                    },
                    _,
                )) = card.request(&SupervisorToCard::Status, &[])
            {
                status.state = "up".into();
                status.free = free;
                for process in found {
                    let away = process.state == ProcessState::SwappedOut;
                    if !away {
                        status.used += process.store_bytes;
                    }
                    if !process.yours {
                        continue;
                    }
                    let state = serde_json::to_value(process.state).ok();
                    processes.push(OffloadProcessStatus {
                        id: process.id.to_string(),
                        card: card.info.index,
                        pid: if away {
                            0
                        } else {
                            crate::processes::descendant(card.pid(), process.pid).unwrap_or(0)
                        },
                        store_bytes: process.store_bytes,
                        state: state
                            .and_then(|state| Some(state.as_str()?.to_owned()))
                            .unwrap_or_default(),
                        swapped_to: None,
                        host: process.host.and_then(|host| self.host_pid(host)),
                    });
                }
            }
            cards.push(status);
        }
        // One that is on a card is there, whatever its last card remembers.
        let on_cards: Vec<String> = processes
            .iter()
            .filter(|process| process.state != SWAPPED_OUT)
            .map(|process| process.id.clone())
            .collect();
        processes.retain(|process| process.state != SWAPPED_OUT || !on_cards.contains(&process.id));
        for swapped in Registry::of(self.house.folder.path()).all() {
            let id = swapped.id.to_string();
            if on_cards.contains(&id) {
                continue;
            }
            // Where its image is only the notes tell.
            processes.retain(|process| process.id != id);
            processes.push(OffloadProcessStatus {
                id,
                card: swapped.card,
                pid: 0,
                store_bytes: swapped.store_bytes,
                state: SWAPPED_OUT.into(),
                swapped_to: Some(swapped.dir),
                host: swapped.host,
            });
        }
        ApplicationStatus {
            pid: self.program.pid(),
            supervisor: std::process::id().cast_signed(),
            program: self.origin.program.clone(),
            state: state.into(),
            restarted_from: self.origin.restarted_from.clone(),
            hosts: self.host_agents().iter().map(|agent| agent.pid).collect(),
            cards,
            processes,
        }
    }

    /// The process behind a connection that a card has.
    fn host_pid(&self, host: HostId) -> Option<i32> {
        let found = self
            .agents
            .iter()
            .find(|agent| agent.number == host.0 >> 32);
        found.map(|agent| agent.pid)
    }

    /// Inode numbers of the sockets that host libraries have: their connections to this process and to the cards.
    pub(super) fn host_sockets(&self) -> Vec<u64> {
        let ours: Vec<u64> = self
            .agents
            .iter()
            .filter_map(|agent| inode(&agent.channel))
            .collect();
        // Without the kernel's list those of restored ones are known at least.
        let all = snapify_sys::unix_diag::all().unwrap_or_default();
        let peers = all.iter().filter(|socket| ours.contains(&socket.inode));
        let cards = self.agents.iter().flat_map(|agent| &agent.card_sockets);
        peers
            .filter_map(|socket| socket.peer)
            .chain(cards.copied())
            .collect()
    }
}
