//! The host library's connection to the daemon of one card.

use crate::control::{CardInfo, ProcessId};
use crate::error::OffloadError;
use crate::wire::{CardReply, CardToHost, HostRequest, HostToCard};
use snapify_fabric::{Channel, ChannelError};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a card answered, with descriptors; or why not.
type Answer = Result<(CardReply, Vec<OwnedFd>), CallError>;

/// A request to a card failed.
#[derive(Debug)]
pub enum CallError {
    /// The card refuses, in its words.
    Refused(String),
    /// Its daemon is gone.
    Lost,
    /// The connection failed otherwise.
    Channel(ChannelError),
}

/// A card. Any thread may make requests; the watcher thread receives all that comes.
#[derive(Debug)]
pub struct Card {
    pub index: u32,
    channel: Channel,
    state: Mutex<State>,
    answered: Condvar,
}

#[derive(Debug)]
struct State {
    memory: u64,
    next: u64,
    /// Requests that wait for their answers, and answers that wait to be taken.
    waiting: HashMap<u64, Option<Answer>>,
    lost: bool,
    /// Processes that ended unasked: signal, exit status.
    died: HashMap<ProcessId, (Option<i32>, Option<i32>)>,
}

/// What a card told that concerns a process.
#[derive(Debug)]
pub enum Notice {
    /// Nothing for others to act on.
    Nothing,
    /// A process ended: signal, exit status.
    Died(ProcessId, Option<i32>, Option<i32>),
    /// A process signalled an event.
    Signal(ProcessId, [u64; 2]),
    /// The daemon is gone.
    Lost,
}

impl Card {
    pub fn new(info: CardInfo, channel: OwnedFd) -> Self {
        Self {
            index: info.index,
            channel: Channel::from_fd(channel),
            state: Mutex::new(State {
                memory: info.memory,
                next: 1,
                waiting: HashMap::new(),
                lost: false,
                died: HashMap::new(),
            }),
            answered: Condvar::new(),
        }
    }

    /// Its memory in bytes.
    pub fn memory(&self) -> u64 {
        self.lock().memory
    }

    /// After a restart: the card in this one's place has so much memory.
    pub fn set_memory(&self, memory: u64) {
        self.lock().memory = memory;
    }

    /// Whether its daemon is gone.
    pub fn is_lost(&self) -> bool {
        self.lock().lost
    }

    /// How a process ended on it, if it did unasked: signal, exit status.
    pub fn has_died(&self, id: ProcessId) -> Option<(Option<i32>, Option<i32>)> {
        self.lock().died.get(&id).copied()
    }

    /// A process of that name comes to this card again.
    pub fn forget_death(&self, id: ProcessId) {
        self.lock().died.remove(&id);
    }

    /// Bytes of its memory that nobody uses.
    pub fn free_memory(&self) -> Result<u64, CallError> {
        match self.call(HostRequest::Room, &[])? {
            (CardReply::Room { free, .. }, _) => Ok(free),
            (other, _) => Err(CallError::Refused(format!("it answered {other:?}"))),
        }
    }

    /// A failed request as an error of the library.
    pub fn explain(&self, error: CallError, operation: &str) -> OffloadError {
        let why = match error {
            CallError::Refused(why) => why,
            CallError::Lost => "the card's daemon is gone".into(),
            CallError::Channel(source) => {
                return OffloadError::Connection {
                    operation: format!("{operation} on card {}", self.index),
                    source: Arc::new(source),
                };
            }
        };
        OffloadError::Refused {
            card: self.index,
            operation: operation.into(),
            why,
        }
    }

    /// Descriptor number of the connection.
    pub fn fd(&self) -> i32 {
        self.channel.as_raw_fd()
    }

    /// Makes a request and waits for the answer.
    pub fn call(&self, body: HostRequest, fds: &[BorrowedFd<'_>]) -> Answer {
        let request = {
            let mut state = self.lock();
            if state.lost {
                return Err(CallError::Lost);
            }
            let request = state.next;
            state.next += 1;
            state.waiting.insert(request, None);
            request
        };
        if let Err(error) = self.channel.send(&HostToCard { request, body }, fds) {
            self.lock().waiting.remove(&request);
            return Err(match error {
                ChannelError::Closed => CallError::Lost,
                other => CallError::Channel(other),
            });
        }
        let mut state = self.lock();
        loop {
            match state.waiting.get_mut(&request).map(Option::take) {
                Some(Some(answer)) => {
                    state.waiting.remove(&request);
                    return answer;
                }
                Some(None) => {}
                None => return Err(CallError::Lost),
            }
            state = self
                .answered
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Receives one message; for the watcher, when there is one.
    pub fn receive(&self) -> Notice {
        match self.channel.recv::<CardToHost>() {
            Ok((CardToHost::Reply { request, result }, fds)) => {
                let answer = result.map(|reply| (reply, fds)).map_err(CallError::Refused);
                if let Some(place) = self.lock().waiting.get_mut(&request) {
                    *place = Some(answer);
                }
                self.answered.notify_all();
                Notice::Nothing
            }
            Ok((CardToHost::Signal { id, event }, _)) => Notice::Signal(id, event),
            Ok((CardToHost::Died { id, signal, status }, _)) => {
                self.lock().died.insert(id, (signal, status));
                Notice::Died(id, signal, status)
            }
            // Whatever else is wrong with the connection: nothing more can be learned from it.
            Err(_) => {
                let mut state = self.lock();
                state.lost = true;
                state.waiting.clear();
                self.answered.notify_all();
                Notice::Lost
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
