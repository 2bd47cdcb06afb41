//! The watcher: the thread of the host library that listens to the cards.

use super::card::{Card, Notice};
use super::{Process, Runtime};
use crate::error::DeathCause;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::sync::{Arc, Weak};

/// Takes what the cards say, until all are gone.
pub fn watch(cards: &[Arc<Card>], runtime: &Weak<Runtime>) {
    loop {
        let living: Vec<_> = cards.iter().filter(|card| !card.is_lost()).collect();
        if living.is_empty() {
            return;
        }
        let mut fds: Vec<_> = living
            .iter()
            .map(|card| PollFd::new(&***card, PollFlags::IN))
            .collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory for the moment.
            Err(_) => std::thread::yield_now(),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (card, _) in living.iter().zip(ready).filter(|(_, ready)| *ready) {
            let notice = card.receive();
            let Some(runtime) = runtime.upgrade() else {
                return;
            };
            note(&runtime, card, &notice);
        }
    }
}

/// Acts on what a card said.
fn note(runtime: &Runtime, card: &Arc<Card>, notice: &Notice) {
    match *notice {
        Notice::Nothing => {}
        Notice::Died(id, signal, status) => {
            // One that is not on the list yet is the concern of whoever makes it.
            let elsewhere = |process: &Arc<Process>| process.id() == id && !process.is_on(card);
            if !runtime.processes().iter().any(elsewhere) {
                runtime.note_death(id, signal, status);
            }
        }
        Notice::Signal(id, event) => {
            if let Some(handler) = runtime.signals.get() {
                handler(id, event);
            }
        }
        Notice::Lost => {
            for process in runtime
                .processes()
                .iter()
                .filter(|process| process.is_on(card))
            {
                process.die(DeathCause::CardLost);
            }
        }
    }
}
