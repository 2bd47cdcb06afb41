//! Pipelines: each an in-order queue of run functions with a server thread in the offload process.

use super::event::Event;
use super::{Process, Result};
use crate::layout::{MAX_PIPELINES, RING_BYTES, pipeline_ring};
use crate::wire::{command, pipeline};
use snapify_fabric::ring::{RingClient, Spin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// The pipelines of a process.
#[derive(Debug)]
pub struct Pipelines {
    rings: [OnceLock<RingClient>; MAX_PIPELINES],
    /// How many of them exist.
    count: AtomicUsize,
    /// Those with nothing to do, the last one used last: its thread, and the threads that its OpenMP runtime
    /// keeps for it, are warm.
    free: Mutex<Vec<usize>>,
    /// Somebody may be waiting for a free one.
    freed: Condvar,
    /// Which one an asynchronous function joins when none is free.
    next: AtomicUsize,
}

impl Default for Pipelines {
    fn default() -> Self {
        Self {
            rings: [const { OnceLock::new() }; MAX_PIPELINES],
            count: AtomicUsize::new(0),
            free: Mutex::default(),
            freed: Condvar::new(),
            next: AtomicUsize::new(0),
        }
    }
}

impl Pipelines {
    /// Wakes those who wait for a free pipeline: the process is gone.
    pub fn wake(&self) {
        // Whoever is about to wait has looked at the process under this lock.
        drop(self.free());
        self.freed.notify_all();
    }

    /// The rings of all pipelines.
    pub fn rings(&self) -> impl Iterator<Item = &RingClient> {
        self.rings.iter().filter_map(OnceLock::get)
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pipeline that was leased is free again.
    fn put_back(&self, index: usize) {
        self.free().push(index);
        self.freed.notify_one();
    }

    /// The same, for one whose function may still be running: it is used last.
    fn put_back_last(&self, index: usize) {
        self.free().insert(0, index);
        self.freed.notify_one();
    }
}

/// The use of a pipeline by nobody else; given back when dropped.
#[derive(Debug)]
pub struct Lease {
    process: Arc<Process>,
    index: usize,
    idle: bool,
}

impl Lease {
    /// Says that the pipeline has nothing left to do.
    pub fn is_idle(&mut self) {
        self.idle = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let pipelines = &self.process.pipelines;
        if self.idle {
            pipelines.put_back(self.index);
        } else {
            pipelines.put_back_last(self.index);
        }
    }
}

/// A pipeline of one's own: its functions run in order, one after the other. Dropping it does not cancel them.
#[derive(Debug)]
pub struct Pipeline {
    lease: Lease,
}

impl Pipeline {
    /// Its process, and its number there.
    pub(super) fn place(&self) -> (&Arc<Process>, usize) {
        (&self.lease.process, self.lease.index)
    }

    /// Appends a function; does not wait.
    ///
    /// # Errors
    /// `ProcessDied` if the process is dead already.
    pub fn run_async(&self, function: u64, args: &[u64], name: &str) -> Result<Event> {
        let Lease { process, index, .. } = &self.lease;
        let ticket = process.start(*index, function, args, name)?;
        Ok(Event::new(process.clone(), *index, ticket, None))
    }

    /// Appends a function and waits until it has returned.
    ///
    /// # Errors
    /// `ProcessDied` if the process dies before.
    pub fn run(&self, function: u64, args: &[u64], name: &str) -> Result<()> {
        self.run_async(function, args, name)?.wait()
    }
}

impl Process {
    /// Takes a pipeline for the caller alone; waits while all 64 are busy.
    ///
    /// # Errors
    /// `ProcessDied`.
    pub fn create_pipeline(self: &Arc<Self>) -> Result<Pipeline> {
        let index = self.take_pipeline()?;
        let lease = Lease {
            process: self.clone(),
            index,
            idle: false,
        };
        Ok(Pipeline { lease })
    }

    /// The same, but nothing while all 64 are busy.
    ///
    /// # Errors
    /// `ProcessDied`.
    pub fn try_create_pipeline(self: &Arc<Self>) -> Result<Option<Pipeline>> {
        let lease = |index| Lease {
            process: self.clone(),
            index,
            idle: false,
        };
        let index = self.free_pipeline()?;
        Ok(index.map(|index| Pipeline {
            lease: lease(index),
        }))
    }

    /// Runs a function with 64-bit arguments and waits until it has returned. `name` is for messages.
    ///
    /// Functions of different threads run concurrently, up to 64.
    ///
    /// # Errors
    /// `ProcessDied` if the function, or anything else, ended the process.
    pub fn run(&self, function: u64, args: &[u64], name: &str) -> Result<()> {
        let index = self.take_pipeline()?;
        let outcome = self
            .start(index, function, args, name)
            .and_then(|ticket| self.take(self.ring(index), ticket));
        self.pipelines.put_back(index);
        outcome.map(|_| ())
    }

    /// Like [`run`](Self::run) but does not wait.
    ///
    /// # Errors
    /// `ProcessDied` if the process is dead already.
    pub fn run_async(self: &Arc<Self>, function: u64, args: &[u64], name: &str) -> Result<Event> {
        let (index, lease) = match self.free_pipeline()? {
            Some(index) => {
                let lease = Lease {
                    process: self.clone(),
                    index,
                    idle: false,
                };
                (index, Some(lease))
            }
            // All are busy: join one, in order.
            None => (
                self.pipelines.next.fetch_add(1, Ordering::Relaxed) % MAX_PIPELINES,
                None,
            ),
        };
        let ticket = self.start(index, function, args, name)?;
        Ok(Event::new(self.clone(), index, ticket, lease))
    }

    fn start(
        &self,
        index: usize,
        function: u64,
        args: &[u64],
        name: &str,
    ) -> Result<snapify_fabric::ring::Ticket> {
        // Most functions have few arguments: no allocation for them.
        let mut few = [0_u8; 8 * 32];
        let mut many = Vec::new();
        let bytes = if args.len() <= 32 {
            &mut few[..8 * args.len()]
        } else {
            many.resize(8 * args.len(), 0);
            &mut many[..]
        };
        for (bytes, arg) in bytes.chunks_exact_mut(8).zip(args) {
            bytes.copy_from_slice(&arg.to_ne_bytes());
        }
        self.submit(self.ring(index), pipeline::RUN, function, bytes, 0, name)
    }

    pub(super) fn ring(&self, index: usize) -> &RingClient {
        match self.pipelines.rings[index].get() {
            Some(ring) => ring,
            // Indices come from the list of pipelines made, or are taken modulo the number of those.
            None => unreachable!("pipeline {index} was not made"),
        }
    }

    /// Takes a free pipeline, or makes one; waits while all are busy and there can be no more.
    fn take_pipeline(&self) -> Result<usize> {
        loop {
            if let Some(index) = self.free_pipeline()? {
                return Ok(index);
            }
            let free = self.pipelines.free();
            // Who gives one back does so under the same lock, whether or not the process lives.
            drop(
                self.pipelines
                    .freed
                    .wait_while(free, |free| free.is_empty()),
            );
        }
    }

    /// Takes a free pipeline, or makes one; nothing if all are busy and there can be no more.
    fn free_pipeline(&self) -> Result<Option<usize>> {
        if let Some(index) = self.pipelines.free().pop() {
            return Ok(Some(index));
        }
        if self.pipelines.count.load(Ordering::Acquire) == MAX_PIPELINES {
            return Ok(None);
        }
        self.make_pipeline()
    }

    fn make_pipeline(&self) -> Result<Option<usize>> {
        let runtime = self.runtime.upgrade();
        let _lifecycle = runtime.as_ref().map(|runtime| self.lifecycle(runtime));
        let index = self.pipelines.count.load(Ordering::Acquire);
        if index == MAX_PIPELINES {
            return Ok(None);
        }
        self.status()?;
        let operation = || "start another pipeline".to_owned();
        let words = |error: &dyn std::fmt::Display| self.refused(operation(), error.to_string());
        let start = pipeline_ring(index);
        self.file
            .reserve(start, RING_BYTES)
            .map_err(|error| words(&error))?;
        let ring = RingClient::new(self.store.clone(), start, RING_BYTES, Spin::default())
            .map_err(|error| words(&error))?;
        self.command(command::PIPELINE, index as u64, &[], 1024, &operation)?;
        let _ = self.pipelines.rings[index].set(ring);
        self.pipelines.count.store(index + 1, Ordering::Release);
        if let Err(error) = self.status() {
            // It died before the ring was in the list of those to be closed.
            self.ring(index).close();
            return Err(error);
        }
        Ok(Some(index))
    }
}
