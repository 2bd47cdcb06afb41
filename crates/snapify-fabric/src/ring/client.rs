//! The client's side of a ring.

use super::{
    CLOSED, HEAD, HEADER, Head, MAX_PAYLOAD, Patience, RingError, SEQUENCE, Shared, Spin, count,
    place, reached, record_bytes,
};
use crate::window::Mapping;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sends requests and takes answers; for any number of threads.
#[derive(Debug)]
pub struct RingClient {
    pub(super) shared: Shared,
    spin: Spin,
    patience: Patience,
    state: Mutex<State>,
}

/// A request that was submitted. Must be given to [`RingClient::take`] or [`RingClient::abandon`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Ticket(u32);

/// The server's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The server's verdict; its meaning is theirs.
    pub status: u32,
    /// The answer's bytes.
    pub payload: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    /// Sequence number of the last request.
    last: u32,
    /// Where the next record goes.
    tail: u64,
    /// Records that still take room, oldest first, in sequence.
    records: VecDeque<Record>,
    /// Answers whose records had to make room before anybody asked for them.
    kept: HashMap<u32, Reply>,
    /// Strings to be used again, so that a request allocates nothing.
    spare: Vec<String>,
}

#[derive(Debug)]
struct Record {
    sequence: u32,
    /// Where the room starts that it takes: at `offset`, or at the gap before it.
    start: u64,
    offset: u64,
    bytes: u64,
    /// Whether somebody will ask for the answer.
    wanted: bool,
    /// What the request is called in messages.
    label: String,
}

impl RingClient {
    /// Makes the client's side of the ring of `bytes` bytes at `start` in the window: memory that holds only
    /// zeros, but for what the server's side may have written into it.
    ///
    /// # Errors
    /// If the ring does not lie in the window or is shorter than [`MIN_BYTES`](super::MIN_BYTES).
    pub fn new(
        window: Arc<Mapping>,
        start: u64,
        bytes: u64,
        spin: Spin,
    ) -> Result<Self, RingError> {
        let shared = Shared::new(window, start, bytes)?;
        Ok(Self {
            shared,
            spin,
            patience: Patience::default(),
            state: Mutex::default(),
        })
    }

    /// Submits a request, unless the ring is full: then there is no ticket and
    /// [`wait_for_room`](Self::wait_for_room) helps. `answer` is the most bytes that the answer may have, `label` what
    /// [`unfinished`](Self::unfinished) calls it.
    ///
    /// # Errors
    /// [`RingError::Closed`], [`RingError::TooLarge`].
    pub fn submit(
        &self,
        kind: u32,
        argument: u64,
        payload: &[u8],
        answer: usize,
        label: &str,
    ) -> Result<Option<Ticket>, RingError> {
        let room = payload.len().max(answer);
        if room > MAX_PAYLOAD {
            return Err(RingError::TooLarge { bytes: room });
        }
        let bytes = record_bytes(room as u64);
        let mut state = self.lock();
        let completed = self.shared.word(place::COMPLETED).load(Ordering::Acquire);
        if completed & CLOSED != 0 {
            return Err(RingError::Closed);
        }
        state.release(completed);
        let Some((offset, start)) = self.place(&mut state, bytes, completed)? else {
            return Ok(None);
        };
        let head = Head {
            kind,
            length: payload.len() as u32,
            capacity: bytes as u32,
            status: 0,
            argument,
        };
        self.shared.write_head(offset, head)?;
        self.shared
            .window
            .write(self.shared.record(offset) + HEAD, payload)?;
        let sequence = state.last.wrapping_add(1) & SEQUENCE;
        state.last = sequence;
        state.tail = offset + bytes;
        let mut named = state.spare.pop().unwrap_or_default();
        named.push_str(label);
        state.records.push_back(Record {
            sequence,
            start,
            offset,
            bytes,
            wanted: true,
            label: named,
        });
        self.shared.requests().advance();
        Ok(Some(Ticket(sequence)))
    }

    /// Waits until the answer is there.
    ///
    /// # Errors
    /// [`RingError::Closed`] if the ring was closed before.
    pub fn wait(&self, ticket: Ticket) -> Result<(), RingError> {
        let value = self
            .shared
            .answers()
            .wait(self.spin, &self.patience, |value| reached(value, ticket.0));
        if reached(value, ticket.0) {
            Ok(())
        } else {
            Err(RingError::Closed)
        }
    }

    /// Whether the answer is there.
    #[must_use]
    pub fn is_done(&self, ticket: Ticket) -> bool {
        reached(
            self.shared.word(place::COMPLETED).load(Ordering::Acquire),
            ticket.0,
        )
    }

    /// Waits until the oldest request is answered, so that there may be room for another.
    ///
    /// # Errors
    /// [`RingError::Closed`].
    pub fn wait_for_room(&self) -> Result<(), RingError> {
        let oldest = {
            let mut state = self.lock();
            let completed = self.shared.word(place::COMPLETED).load(Ordering::Acquire);
            let mut unfinished = state
                .records
                .iter()
                .filter(|record| !reached(completed, record.sequence));
            let oldest = unfinished.next().map(|record| record.sequence);
            state.release(completed);
            oldest
        };
        oldest.map_or(Ok(()), |sequence| self.wait(Ticket(sequence)))
    }

    /// Takes the answer. Waits for it if need be.
    ///
    /// # Errors
    /// [`RingError::Closed`] if there will be none; [`RingError::Damaged`] if it makes no sense.
    pub fn take(&self, ticket: Ticket) -> Result<Reply, RingError> {
        self.wait(ticket)?;
        let mut state = self.lock();
        if let Some(reply) = state.kept.remove(&ticket.0) {
            return Ok(reply);
        }
        let found = state.find(ticket);
        let Some(record) = found else {
            return Err(RingError::Damaged("an answer was asked for twice".into()));
        };
        record.wanted = false;
        let (offset, bytes) = (record.offset, record.bytes);
        let reply = self.read_reply(offset, bytes);
        let completed = self.shared.word(place::COMPLETED).load(Ordering::Acquire);
        state.release(completed);
        reply
    }

    /// Says that nobody will ask for the answer.
    pub fn abandon(&self, ticket: Ticket) {
        let mut state = self.lock();
        if state.kept.remove(&ticket.0).is_none()
            && let Some(record) = state.find(ticket)
        {
            record.wanted = false;
        }
    }

    /// What the oldest unanswered request is called: the one that the server works on, if it does.
    #[must_use]
    pub fn unfinished(&self) -> Option<String> {
        let state = self.lock();
        let completed = self.shared.word(place::COMPLETED).load(Ordering::Acquire);
        let mut records = state.records.iter();
        records
            .find(|record| !reached(completed, record.sequence))
            .map(|record| record.label.clone())
    }

    /// Whether all requests have been answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        let completed = self.shared.word(place::COMPLETED).load(Ordering::Acquire);
        state.last == count(completed)
    }

    /// Offset in the window of the word on which threads of this side sleep.
    #[must_use]
    pub fn sleeping_place(&self) -> u64 {
        self.shared.start + place::COMPLETED
    }

    /// Offset in the window of the ring, and its length in bytes.
    #[must_use]
    pub fn extent(&self) -> (u64, u64) {
        (self.shared.start, HEADER + self.shared.room)
    }

    /// Closes the ring: all waiting on both sides ends, no request is taken any more.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Finds room for a record: where it starts, and where the room starts that it takes (which has a gap
    /// before it if the record goes to the start of the ring: the server reads the mark there, so it must
    /// not be overwritten before). When room is short, answers that nobody has asked for yet are moved out.
    fn place(
        &self,
        state: &mut State,
        bytes: u64,
        completed: u32,
    ) -> Result<Option<(u64, u64)>, RingError> {
        loop {
            let tail = state.tail;
            let head = state.records.front().map(|record| record.start);
            let (fits, wraps) = match head {
                // Also `tail == head` with records in it: full.
                Some(head) if tail <= head => (bytes <= head - tail, false),
                Some(head) => (bytes <= self.shared.room - tail, bytes <= head),
                None => (bytes <= self.shared.room - tail, bytes <= tail),
            };
            if fits {
                return Ok(Some((tail, tail)));
            }
            if wraps && tail < self.shared.room {
                self.shared.write_head(tail, Head::wrap())?;
                return Ok(Some((0, tail)));
            }
            if wraps {
                return Ok(Some((0, 0)));
            }
            match state.records.front() {
                Some(front) if reached(completed, front.sequence) => {
                    let (sequence, offset, bytes) = (front.sequence, front.offset, front.bytes);
                    let reply = self.read_reply(offset, bytes)?;
                    state.kept.insert(sequence, reply);
                    state.pop();
                    state.release(completed);
                }
                _ => return Ok(None),
            }
        }
    }

    fn read_reply(&self, offset: u64, bytes: u64) -> Result<Reply, RingError> {
        let head = self.shared.read_head(offset)?;
        if u64::from(head.length) > bytes - HEAD {
            return Err(RingError::Damaged(format!(
                "an answer claims {} bytes in a record of {bytes}",
                head.length
            )));
        }
        let mut payload = vec![0; head.length as usize];
        self.shared
            .window
            .read(self.shared.record(offset) + HEAD, &mut payload)?;
        Ok(Reply {
            status: head.status,
            payload,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find(&mut self, ticket: Ticket) -> Option<&mut Record> {
        let first = self.records.front()?.sequence;
        let index = ticket.0.wrapping_sub(first) & SEQUENCE;
        self.records.get_mut(index as usize)
    }

    /// Gives up the records that are answered and that nobody wants.
    fn release(&mut self, completed: u32) {
        while let Some(front) = self.records.front()
            && !front.wanted
            && reached(completed, front.sequence)
        {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(mut record) = self.records.pop_front()
            && self.spare.len() < 8
        {
            record.label.clear();
            self.spare.push(record.label);
        }
    }
}
