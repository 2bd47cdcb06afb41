//! Pipelines: queues of functions.

use crate::error::{Code, Failure, Result};
use crate::event::Event;
use crate::process::Process;
use crate::work::{Body, Dependencies};
use snapify_offload::host::start_thread;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A pipeline.
pub struct Pipeline {
    /// The handle of its process.
    pub process_handle: u64,
    /// Its process.
    pub process: Arc<Process>,
    /// The thread on the card.
    pub lane: snapify_offload::host::Pipeline,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// One is being done.
    busy: bool,
    /// There is a thread that takes jobs.
    served: bool,
    /// No more jobs come.
    closing: bool,
}

/// A function in the queue.
pub struct Job {
    /// What must be over before.
    pub dependencies: Dependencies,
    /// Is signalled afterwards.
    pub done: Arc<Event>,
    /// Brings the buffers, runs the function, and takes what it leaves.
    pub body: Body,
}

impl Pipeline {
    /// A new pipeline.
    pub fn new(process_handle: u64, process: &Arc<Process>) -> Result<Arc<Self>> {
        let lane = process.offload.try_create_pipeline()?.ok_or_else(|| {
            let text = "the process has 64 pipelines, which is as many as there can be";
            Failure::new(Code::ResourceExhausted, text)
        })?;
        Ok(Arc::new(Self {
            process_handle,
            process: process.clone(),
            lane,
            queue: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Takes a place in the queue for a job. If it is the first, and the caller waits for it, the caller does it: a thread
    /// less has to be woken. What is returned must be given to [`finish`](Self::finish).
    pub fn enter(self: &Arc<Self>, job: Job, waits: bool) -> Result<Place> {
        let mut queue = self.lock();
        if queue.closing {
            return Err(Code::InvalidHandle.into());
        }
        if waits && !queue.busy && queue.jobs.is_empty() {
            queue.busy = true;
            return Ok(Place::Mine(job));
        }
        if !queue.served {
            let pipeline = self.clone();
            let started = start_thread("snapify-pipe", move || pipeline.serve());
            started.map_err(|error| {
                let text = format!("cannot start a thread for a pipeline: {error}");
                Failure::new(Code::ResourceExhausted, text)
            })?;
            queue.served = true;
        }
        let done = job.done.clone();
        queue.jobs.push_back(job);
        drop(queue);
        self.changed.notify_all();
        Ok(Place::Queued(waits.then_some(done)))
    }

    /// Does what is left to do for a place in the queue.
    pub fn finish(&self, place: Place) -> Result<()> {
        match place {
            Place::Mine(job) => {
                let result = self.perform(job);
                self.lock().busy = false;
                self.changed.notify_all();
                result
            }
            Place::Queued(Some(done)) => done.wait().map_err(Failure::from),
            Place::Queued(None) => Ok(()),
        }
    }

    /// Waits until all jobs are done, and lets no others come.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.closing = true;
        self.changed.notify_all();
        while queue.busy || !queue.jobs.is_empty() {
            queue = self
                .changed
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn perform(&self, job: Job) -> Result<()> {
        let result = match job.dependencies.wait(Some(&self.process.end)) {
            Ok(()) => (job.body)(),
            Err(code) => Err(Failure::new(code, "what it depends on has failed")),
        };
        let outcome = result.as_ref().map(|_| ()).map_err(|failure| failure.code);
        job.done.fire(outcome);
        result
    }

    fn serve(&self) {
        let mut queue = self.lock();
        loop {
            if !queue.busy
                && let Some(job) = queue.jobs.pop_front()
            {
                queue.busy = true;
                drop(queue);
                let _ = self.perform(job);
                queue = self.lock();
                queue.busy = false;
                self.changed.notify_all();
            } else if queue.closing && queue.jobs.is_empty() {
                return;
            } else {
                queue = self
                    .changed
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a job is.
pub enum Place {
    /// With the caller, who does it.
    Mine(Job),
    /// In the queue; its end is to be waited for, or not.
    Queued(Option<Arc<Event>>),
}
