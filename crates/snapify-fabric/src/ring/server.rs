//! The server's side of a ring.

use super::{CLOSED, HEAD, Head, Patience, RingError, SEQUENCE, Shared, Spin, WRAP, reached};
use crate::window::Mapping;
use std::sync::Arc;

/// Serves requests in order; for one thread.
#[derive(Debug)]
pub struct RingServer {
    shared: Shared,
    spin: Spin,
    patience: Patience,
    /// Sequence number of the next request.
    next: u32,
    /// Where its record lies.
    offset: u64,
    /// The record being served, if any.
    serving: Option<Head>,
    payload: Vec<u8>,
}

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// What is wanted.
    pub kind: u32,
    /// A number that belongs to it.
    pub argument: u64,
    /// Bytes that belong to it: a copy, which the client cannot change any more.
    pub payload: &'a [u8],
}

impl RingServer {
    /// Makes the server's side of a ring: memory that holds only zeros, but for what the client's side may have
    /// written into it.
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
            next: 1,
            offset: 0,
            serving: None,
            payload: Vec::new(),
        })
    }

    /// Waits for the next request. The one before must have been completed.
    ///
    /// # Errors
    /// [`RingError::Closed`], [`RingError::Damaged`].
    pub fn receive(&mut self) -> Result<Request<'_>, RingError> {
        assert!(self.serving.is_none(), "a request was not completed");
        let next = self.next;
        let value = self
            .shared
            .requests()
            .wait(self.spin, &self.patience, |value| reached(value, next));
        if value & CLOSED != 0 {
            return Err(RingError::Closed);
        }
        let head = self.locate()?;
        self.payload.resize(head.length as usize, 0);
        self.shared
            .window
            .read(self.shared.record(self.offset) + HEAD, &mut self.payload)?;
        self.serving = Some(head);
        Ok(Request {
            kind: head.kind,
            argument: head.argument,
            payload: &self.payload,
        })
    }

    /// Goes to the next record and checks its head.
    fn locate(&mut self) -> Result<Head, RingError> {
        for _ in 0..2 {
            if self.offset + HEAD > self.shared.room {
                self.offset = 0;
            }
            let head = self.shared.read_head(self.offset)?;
            if head.kind == WRAP {
                self.offset = 0;
                continue;
            }
            let capacity = u64::from(head.capacity);
            let fits = capacity >= HEAD
                && capacity <= self.shared.room - self.offset
                && u64::from(head.length) <= capacity - HEAD;
            if !fits {
                break;
            }
            return Ok(head);
        }
        Err(RingError::Damaged(format!(
            "the record at offset {:#x} makes no sense",
            self.offset
        )))
    }

    /// Answers the request being served. `answer` must not be longer than the client allowed.
    ///
    /// # Errors
    /// [`RingError::TooLarge`] (nothing is answered then).
    pub fn complete(&mut self, status: u32, answer: &[u8]) -> Result<(), RingError> {
        let Some(head) = self.serving else {
            panic!("there is no request to complete");
        };
        if answer.len() as u64 > u64::from(head.capacity) - HEAD {
            return Err(RingError::TooLarge {
                bytes: answer.len(),
            });
        }
        self.shared
            .window
            .write(self.shared.record(self.offset) + HEAD, answer)?;
        let answered = Head {
            length: answer.len() as u32,
            status,
            ..head
        };
        self.shared.write_head(self.offset, answered)?;
        self.serving = None;
        self.offset += u64::from(head.capacity);
        self.next = self.next.wrapping_add(1) & SEQUENCE;
        self.shared.answers().advance();
        Ok(())
    }
}
