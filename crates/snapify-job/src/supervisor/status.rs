//! What an application looks like from outside.

use super::Supervisor;
use crate::protocol::{ApplicationStatus, CardStatus, OffloadProcessStatus};
use crate::swap::Registry;
use snapify_offload::control::{CardToSupervisor, SupervisorToCard};

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
                    status.used += process.store_bytes;
                    let state = serde_json::to_value(process.state).ok();
                    processes.push(OffloadProcessStatus {
                        id: process.id.to_string(),
                        card: card.info.index,
                        pid: crate::processes::descendant(card.pid(), process.pid).unwrap_or(0),
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
        for swapped in Registry::of(self.house.folder.path()).all() {
            let id = swapped.id.to_string();
            // One that is just coming back is where it comes to.
            if processes.iter().all(|process| process.id != id) {
                processes.push(OffloadProcessStatus {
                    id,
                    card: swapped.card,
                    pid: 0,
                    store_bytes: swapped.store_bytes,
                    state: "swapped-out".into(),
                    swapped_to: Some(swapped.dir),
                });
            }
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
