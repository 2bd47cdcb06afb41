//! Events: what completes later, and user events.

use crate::abi::CoiEvent;
use crate::error::{Code, Result};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What came of something.
pub type Outcome = Result<(), Code>;

/// Is called when an event is signalled, with what came of it.
pub type Callback = Box<dyn FnOnce(Outcome) + Send>;

/// Something that happens once.
pub struct Event {
    id: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    /// The outcome is decided; callbacks are running.
    firing: Option<Outcome>,
    /// To be called before anybody is woken.
    callbacks: Vec<Callback>,
    /// To be called afterwards.
    followers: Vec<Callback>,
    waiters: Vec<Arc<Waiter>>,
}

/// A thread that waits for events.
#[derive(Default)]
struct Waiter {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl Event {
    /// An event that nobody has a handle of.
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
        })
    }

    /// What came of it, if it has happened.
    pub fn outcome(&self) -> Option<Outcome> {
        self.lock().outcome
    }

    /// Signals it. Only the first time counts: false if it was signalled before.
    pub fn fire(&self, outcome: Outcome) -> bool {
        let mut state = self.lock();
        if state.firing.is_some() {
            return false;
        }
        state.firing = Some(outcome);
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        for callback in callbacks {
            callback(outcome);
        }
        let mut state = self.lock();
        state.outcome = Some(outcome);
        let waiters = std::mem::take(&mut state.waiters);
        let followers = std::mem::take(&mut state.followers);
        drop(state);
        for waiter in waiters {
            waiter.wake();
        }
        for follower in followers {
            follower(outcome);
        }
        true
    }

    /// Has `callback` called when the event is signalled, before those who wait are woken; at once if it is already.
    pub fn on_fire(&self, callback: Callback) {
        let mut state = self.lock();
        match state.firing {
            Some(outcome) => {
                drop(state);
                callback(outcome);
            }
            None => state.callbacks.push(callback),
        }
    }

    /// Has `follower` called after the event was signalled; at once if it is already.
    pub fn then(&self, follower: Callback) {
        let mut state = self.lock();
        match state.outcome {
            Some(outcome) => {
                drop(state);
                follower(outcome);
            }
            None => state.followers.push(follower),
        }
    }

    /// Waits for it.
    pub fn wait(self: &Arc<Self>) -> Outcome {
        let found = wait_until(std::slice::from_ref(self), None, |outcomes| outcomes[0]);
        found.unwrap_or(Err(Code::Error))
    }

    fn subscribe(&self, waiter: &Arc<Waiter>) {
        let mut state = self.lock();
        if state.outcome.is_none() {
            state.waiters.push(waiter.clone());
        }
    }

    fn unsubscribe(&self, waiter: &Arc<Waiter>) {
        self.lock()
            .waiters
            .retain(|known| !Arc::ptr_eq(known, waiter));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.wake.notify_all();
    }

    /// Sleeps until it is woken, or until the deadline: false then.
    fn sleep(&self, deadline: Option<Instant>) -> bool {
        let mut woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*woken {
            woken = match deadline {
                None => self
                    .wake
                    .wait(woken)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                        return false;
                    };
                    let slept = self.wake.wait_timeout(woken, left);
                    slept.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *woken = false;
        true
    }
}

/// Waits until `enough` of the outcomes so far gives something; nothing if it does not within `most`.
pub fn wait_until<T>(
    events: &[Arc<Event>],
    most: Option<Duration>,
    mut enough: impl FnMut(&[Option<Outcome>]) -> Option<T>,
) -> Option<T> {
    let outcomes = || {
        events
            .iter()
            .map(|event| event.outcome())
            .collect::<Vec<_>>()
    };
    if let Some(found) = enough(&outcomes()) {
        return Some(found);
    }
    let deadline = most.and_then(|most| Instant::now().checked_add(most));
    let waiter = Arc::new(Waiter::default());
    for event in events {
        event.subscribe(&waiter);
    }
    let found = loop {
        if let Some(found) = enough(&outcomes()) {
            break Some(found);
        }
        if !waiter.sleep(deadline) {
            break None;
        }
    };
    for event in events {
        event.unsubscribe(&waiter);
    }
    found
}

/// Failures of events that are remembered: so many of the last ones.
const REMEMBERED: usize = 65_536;

/// Kinds of handles of events, in their second word.
const OPERATION: u64 = 0x736e_6170_0000_0001;
const USER: u64 = 0x736e_6170_0000_0002;

/// The events that programs have handles of.
///
/// COI has no way to give the event of an operation back, so nothing is kept of those that were signalled without a
/// failure: a handle that is not known any more is one of them.
#[derive(Default)]
pub struct Events {
    operations: Mutex<Operations>,
    users: Mutex<HashMap<u64, Arc<Event>>>,
}

#[derive(Default)]
struct Operations {
    pending: HashMap<u64, Arc<Event>>,
    failed: HashMap<u64, Code>,
    /// In the order of their failures.
    order: VecDeque<u64>,
    /// The highest number that was handed out.
    last: u64,
}

/// What a handle stands for.
#[derive(Clone)]
pub enum Known {
    /// An event.
    Event(Arc<Event>),
    /// One that was signalled.
    Signalled(Outcome),
}

impl Known {
    /// What came of it, if it was signalled.
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Event(event) => event.outcome(),
            Self::Signalled(outcome) => Some(*outcome),
        }
    }
}

impl Events {
    /// A handle for the event of an operation that has not begun.
    pub fn publish(self: &Arc<Self>, event: &Arc<Event>) -> CoiEvent {
        let mut operations = self.operations();
        operations.last = operations.last.max(event.id);
        operations.pending.insert(event.id, event.clone());
        drop(operations);
        let (events, id) = (self.clone(), event.id);
        event.then(Box::new(move |outcome| events.settle(id, outcome)));
        CoiEvent {
            opaque: [event.id, OPERATION],
        }
    }

    fn settle(&self, id: u64, outcome: Outcome) {
        let mut operations = self.operations();
        operations.pending.remove(&id);
        if let Err(code) = outcome {
            operations.failed.insert(id, code);
            operations.order.push_back(id);
            if operations.order.len() > REMEMBERED
                && let Some(oldest) = operations.order.pop_front()
            {
                operations.failed.remove(&oldest);
            }
        }
    }

    /// A new user event.
    pub fn register(&self) -> CoiEvent {
        let event = Event::new();
        let id = event.id;
        self.users().insert(id, event);
        CoiEvent { opaque: [id, USER] }
    }

    /// A registered user event.
    pub fn user(&self, handle: CoiEvent) -> Result<Arc<Event>> {
        let [id, USER] = handle.opaque else {
            return Err(Code::InvalidHandle.into());
        };
        let found = self.users().get(&id).cloned();
        found.ok_or_else(|| Code::InvalidHandle.into())
    }

    /// Gives a user event up.
    pub fn unregister(&self, handle: CoiEvent) -> Result<()> {
        let event = self.user(handle)?;
        self.users().remove(&event.id);
        event.fire(Err(Code::EventCanceled));
        Ok(())
    }

    /// What a handle stands for.
    pub fn find(&self, handle: CoiEvent) -> Result<Known> {
        match handle.opaque {
            [id, OPERATION] if id != 0 => {
                let operations = self.operations();
                if let Some(event) = operations.pending.get(&id) {
                    return Ok(Known::Event(event.clone()));
                }
                if id > operations.last {
                    return Err(Code::InvalidHandle.into());
                }
                let failed = operations.failed.get(&id);
                Ok(Known::Signalled(failed.map_or(Ok(()), |&code| Err(code))))
            }
            [id, USER] => {
                let found = self.users().get(&id).cloned();
                let given_up = Known::Signalled(Err(Code::EventCanceled));
                Ok(found.map_or(given_up, Known::Event))
            }
            _ => Err(Code::InvalidHandle.into()),
        }
    }

    fn operations(&self) -> MutexGuard<'_, Operations> {
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn users(&self) -> MutexGuard<'_, HashMap<u64, Arc<Event>>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn waiting_ends_when_the_event_is_signalled() {
        let event = Event::new();
        let waiting: Vec<_> = (0..4)
            .map(|_| {
                let event = event.clone();
                std::thread::spawn(move || event.wait())
            })
            .collect();
        assert!(event.fire(Err(Code::ProcessDied)));
        assert!(!event.fire(Ok(())), "only the first time counts");
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Err(Code::ProcessDied));
        }
        assert_eq!(event.wait(), Err(Code::ProcessDied));
    }

    #[test]
    fn callbacks_come_before_waiters() {
        let event = Event::new();
        let (tell, told) = mpsc::channel();
        for index in 0..3 {
            let (tell, seen) = (tell.clone(), event.clone());
            event.on_fire(Box::new(move |outcome| {
                assert_eq!(seen.outcome(), None, "nobody is woken yet");
                tell.send((index, outcome)).unwrap();
            }));
        }
        event.fire(Ok(()));
        let told: Vec<_> = told.try_iter().collect();
        assert_eq!(told, [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
        let (late, came) = mpsc::channel();
        event.on_fire(Box::new(move |_| late.send(()).unwrap()));
        assert!(came.try_recv().is_ok(), "at once");
    }

    #[test]
    fn any_and_all() {
        let events = [Event::new(), Event::new()];
        let none = wait_until(&events, Some(Duration::from_millis(1)), |outcomes| {
            outcomes.iter().position(Option::is_some)
        });
        assert_eq!(none, None);
        assert!(events[1].lock().waiters.is_empty(), "nothing stays behind");
        events[1].fire(Ok(()));
        let any = wait_until(&events, None, |outcomes| {
            outcomes.iter().position(Option::is_some)
        });
        assert_eq!(any, Some(1));
    }

    #[test]
    fn handles_of_past_events_tell_what_came_of_them() {
        let events = Arc::new(Events::default());
        let (good, bad) = (Event::new(), Event::new());
        let (good_handle, bad_handle) = (events.publish(&good), events.publish(&bad));
        assert!(events.find(good_handle).unwrap().outcome().is_none());
        good.fire(Ok(()));
        bad.fire(Err(Code::ProcessDied));
        assert_eq!(events.find(good_handle).unwrap().outcome(), Some(Ok(())));
        let outcome = events.find(bad_handle).unwrap().outcome();
        assert_eq!(outcome, Some(Err(Code::ProcessDied)));
        assert!(events.operations().pending.is_empty());
        for opaque in [[0, 0], [1, 2], [u64::MAX, OPERATION], [0, OPERATION]] {
            assert!(events.find(CoiEvent { opaque }).is_err());
        }
        let user = events.register();
        assert!(events.find(user).unwrap().outcome().is_none());
        events.unregister(user).unwrap();
        assert!(events.unregister(user).is_err());
        let outcome = events.find(user).unwrap().outcome();
        assert_eq!(outcome, Some(Err(Code::EventCanceled)));
    }
}
