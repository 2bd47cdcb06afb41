//! What an application looks like from outside.

use super::Supervisor;
use crate::protocol::{ApplicationStatus, CardStatus, OffloadProcessStatus};
use crate::swap::Registry;
use snapify_offload::control::{CardToSupervisor, ProcessState, SupervisorToCard};

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
            });
        }
        ApplicationStatus {
            pid: self.program.pid(),
            supervisor: std::process::id().cast_signed(),
            program: self.origin.program.clone(),
            state: state.into(),
            restarted_from: self.origin.restarted_from.clone(),
            cards,
            processes,
        }
    }
}
