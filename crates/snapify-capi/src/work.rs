//! Who does what completes later.
//!
//! An operation is begun when all that it depends on is over; until then it occupies no thread. What is asked for to be
//! waited for is done by the thread that asks.

use crate::error::{Code, Failure, Result};
use crate::event::{Callback, Event, Known, Outcome, wait_until};
use snapify_offload::host::start_thread;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Threads that do operations which nobody waits for: more than one, so that a long transfer does not keep the others.
const WORKERS: usize = 3;

/// What must be over before an operation begins.
#[derive(Clone, Default)]
pub struct Dependencies {
    /// Named by the program: if one of them has failed the operation fails like it.
    pub named: Vec<Known>,
    /// Implied by the order in which buffers are used: what came of them does not matter.
    pub implied: Vec<Arc<Event>>,
}

impl Dependencies {
    /// Those that are not over yet, and the failure of one that is.
    fn open(&self) -> (Vec<Arc<Event>>, Outcome) {
        let mut failed = Ok(());
        let mut open = Vec::new();
        for known in &self.named {
            match (known.outcome(), known) {
                (Some(outcome), _) => failed = failed.and(outcome),
                (None, Known::Event(event)) => open.push(event.clone()),
                (None, Known::Signalled(_)) => {}
            }
        }
        let implied = self.implied.iter();
        open.extend(implied.filter(|event| event.outcome().is_none()).cloned());
        (open, failed)
    }

    /// Waits until all are over, or `end` is.
    pub fn wait(&self, end: Option<&Arc<Event>>) -> Outcome {
        let (open, failed) = self.open();
        if failed.is_err() || open.is_empty() {
            return failed;
        }
        let mut watched = open;
        watched.extend(end.cloned());
        let count = watched.len() - usize::from(end.is_some());
        let waited = wait_until(&watched, None, |outcomes| {
            if outcomes[..count].iter().all(Option::is_some) {
                Some(Ok(()))
            } else {
                let ended = outcomes.get(count).copied().flatten();
                ended.map(|_| Err(Code::ProcessDied))
            }
        });
        waited.unwrap_or(Err(Code::Error))?;
        self.open().1
    }
}

/// The body of an operation.
pub type Body = Box<dyn FnOnce() -> Result<()> + Send>;

/// Does an operation in this thread, and signals `done`.
pub fn perform(dependencies: &Dependencies, done: &Arc<Event>, body: Body) -> Result<()> {
    let result = match dependencies.wait(None) {
        Ok(()) => body(),
        Err(code) => Err(Failure::new(code, "what it depends on has failed")),
    };
    done.fire(result.as_ref().map(|_| ()).map_err(|failure| failure.code));
    result
}

type Task = Box<dyn FnOnce() + Send>;

/// The threads.
#[derive(Default)]
pub struct Workers {
    tasks: Mutex<VecDeque<Task>>,
    added: Condvar,
    started: AtomicUsize,
}

impl Workers {
    /// Has an operation done when all that it depends on is over; `done` is signalled then.
    pub fn perform_later(
        self: &Arc<Self>,
        dependencies: Dependencies,
        done: Arc<Event>,
        body: Body,
    ) -> Result<()> {
        self.start()?;
        let (open, _) = dependencies.open();
        let workers = self.clone();
        let task: Task = Box::new(move || {
            let _ = perform(&dependencies, &done, body);
        });
        if open.is_empty() {
            workers.add(task);
            return Ok(());
        }
        let left = Arc::new(AtomicUsize::new(open.len()));
        let task = Arc::new(Mutex::new(Some(task)));
        for event in open {
            let (workers, left, task) = (workers.clone(), left.clone(), task.clone());
            let follower: Callback = Box::new(move |_| {
                if left.fetch_sub(1, Ordering::AcqRel) == 1
                    && let Some(task) = task.lock().unwrap_or_else(PoisonError::into_inner).take()
                {
                    workers.add(task);
                }
            });
            event.then(follower);
        }
        Ok(())
    }

    fn add(&self, task: Task) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.push_back(task);
        drop(tasks);
        self.added.notify_one();
    }

    /// Starts the threads, if that was not done before. One is enough to go on.
    fn start(self: &Arc<Self>) -> Result<()> {
        if self.started.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        for index in self.started.swap(WORKERS, Ordering::Relaxed)..WORKERS {
            let workers = self.clone();
            let started = start_thread("snapify-transfer", move || workers.work());
            if let (Err(error), 0) = (started, index) {
                self.started.store(0, Ordering::Relaxed);
                let text = format!("cannot start a thread for transfers: {error}");
                return Err(Failure::new(Code::ResourceExhausted, text));
            }
        }
        Ok(())
    }

    fn work(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match tasks.pop_front() {
                Some(task) => {
                    drop(tasks);
                    task();
                    tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
                }
                None => {
                    tasks = self
                        .added
                        .wait(tasks)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn later(
        workers: &Arc<Workers>,
        dependencies: Dependencies,
        tell: mpsc::Sender<u32>,
        number: u32,
    ) -> Arc<Event> {
        let done = Event::new();
        let body = Box::new(move || {
            tell.send(number).unwrap();
            Ok(())
        });
        workers
            .perform_later(dependencies, done.clone(), body)
            .unwrap();
        done
    }

    #[test]
    fn operations_begin_when_what_they_depend_on_is_over() {
        let workers = Arc::new(Workers::default());
        let (tell, told) = mpsc::channel();
        let first = Event::new();
        let after = |event: &Arc<Event>| Dependencies {
            named: vec![Known::Event(event.clone())],
            implied: Vec::new(),
        };
        let second = later(&workers, after(&first), tell.clone(), 2);
        let third = later(&workers, after(&second), tell.clone(), 3);
        // One that depends on nothing is not kept by those that wait.
        assert_eq!(
            later(&workers, Dependencies::default(), tell, 1).wait(),
            Ok(())
        );
        first.fire(Ok(()));
        assert_eq!(third.wait(), Ok(()));
        assert_eq!(told.iter().take(3).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_failure_that_is_named_is_passed_on_and_one_that_is_implied_is_not() {
        let workers = Arc::new(Workers::default());
        let (tell, told) = mpsc::channel();
        let failed = Event::new();
        let named = Dependencies {
            named: vec![Known::Event(failed.clone())],
            implied: Vec::new(),
        };
        let implied = Dependencies {
            named: Vec::new(),
            implied: vec![failed.clone()],
        };
        let one = later(&workers, named, tell.clone(), 1);
        let two = later(&workers, implied, tell, 2);
        failed.fire(Err(Code::ProcessDied));
        assert_eq!(one.wait(), Err(Code::ProcessDied));
        assert_eq!(two.wait(), Ok(()));
        assert_eq!(told.iter().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn waiting_ends_with_the_process() {
        let (never, end) = (Event::new(), Event::new());
        let dependencies = Dependencies {
            named: vec![Known::Event(never)],
            implied: Vec::new(),
        };
        let (waiting, ended) = (dependencies.clone(), end.clone());
        let thread = std::thread::spawn(move || waiting.wait(Some(&ended)));
        end.fire(Ok(()));
        assert_eq!(thread.join().unwrap(), Err(Code::ProcessDied));
    }
}
