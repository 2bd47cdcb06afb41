//! The phases of an operation.

use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};

/// What `format` says in a kept timeline.
const FORMAT: &str = "snapify-report";
const VERSION: u32 = 1;

/// Most phases that a timeline may have: more than an operation on some hundred offload processes takes.
const MAX_PHASES: usize = 10_000;

/// A moment, in nanoseconds of `CLOCK_MONOTONIC`.
///
/// All parties that take such moments must have the same clock. A restored process has not: it is in a time namespace of its
/// own, and tells durations instead, which [`Moment::plus`] makes moments of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(u64);

impl Moment {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// The moment at which the clock showed so many nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// What the clock showed, in nanoseconds.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// So many nanoseconds later.
    #[must_use]
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds since `earlier`; 0 if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Seconds since `earlier`; 0 if that is later.
    #[must_use]
    pub fn seconds_since(self, earlier: Self) -> f64 {
        self.since(earlier) as f64 / 1e9
    }
}

/// What is done to an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// A snapshot is taken.
    Checkpoint,
    /// It is started again from a snapshot.
    Restart,
    /// An offload process leaves its card.
    SwapOut,
    /// An offload process comes back to a card.
    SwapIn,
    /// An offload process moves to another card.
    Migrate,
}

impl Operation {
    /// Its name, in kebab case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Restart => "restart",
            Self::SwapOut => "swap-out",
            Self::SwapIn => "swap-in",
            Self::Migrate => "migrate",
        }
    }
}

/// Who does something.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Actor {
    /// Whoever conducts the operation.
    Coordinator,
    /// The host process.
    Host,
    /// The daemon of a card.
    Card {
        /// The card's number.
        card: u32,
    },
    /// An offload process.
    OffloadProcess {
        /// The card that it is on.
        card: u32,
        /// Its lasting name.
        id: String,
    },
}

/// What somebody did, from when to when.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// Who did it.
    pub actor: Actor,
    /// What, in a word or two.
    pub name: String,
    /// When it began, in nanoseconds since the operation began.
    pub start_ns: u64,
    /// When it ended, in nanoseconds since the operation began.
    pub end_ns: u64,
    /// Bytes of memory or file that it dealt with, if that means anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

impl Phase {
    /// When it began, in seconds since the operation began.
    #[must_use]
    pub fn start(&self) -> f64 {
        self.start_ns as f64 / 1e9
    }

    /// When it ended, in seconds since the operation began.
    #[must_use]
    pub fn end(&self) -> f64 {
        self.end_ns as f64 / 1e9
    }

    /// Seconds that it took.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.end_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }
}

/// An operation that is over.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Timeline {
    format: String,
    version: u32,
    /// What it was.
    pub operation: Operation,
    /// The host process, as whoever asked for the operation saw its id.
    pub pid: i32,
    /// The number of the snapshot that it made or used, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<u32>,
    /// When it began, in milliseconds since 1970 (UTC).
    pub started_unix_ms: u64,
    /// Nanoseconds that it took.
    pub took_ns: u64,
    /// Its phases, by their beginning.
    pub phases: Vec<Phase>,
}

impl Timeline {
    /// Seconds that it took.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.took_ns as f64 / 1e9
    }

    /// Whether the numbers make sense, so that they can be drawn; or what does not.
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err("it is no report".into());
        }
        if self.version > VERSION {
            return Err(format!(
                "it has version {}, and this program knows versions up to {VERSION}",
                self.version
            ));
        }
        if self.phases.len() > MAX_PHASES {
            return Err(format!("it has {} phases", self.phases.len()));
        }
        match self.phases.iter().find(|p| p.end_ns < p.start_ns) {
            Some(phase) => Err(format!("phase {:?} contradicts itself", phase.name)),
            None => Ok(()),
        }
    }
}

/// Notes the phases of an operation while it goes on. Any thread may note.
#[derive(Debug)]
pub struct Recorder {
    operation: Operation,
    began: Moment,
    started_unix_ms: u64,
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    pid: i32,
    point: Option<u32>,
    phases: Vec<Phase>,
}

impl Recorder {
    /// An operation begins now.
    #[must_use]
    pub fn begin(operation: Operation) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            operation,
            began: Moment::now(),
            started_unix_ms: now
                .map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
            noted: Mutex::default(),
        }
    }

    /// When it began.
    #[must_use]
    pub fn began(&self) -> Moment {
        self.began
    }

    /// The host process of the application, as whoever asked for the operation sees its id.
    pub fn pid(&self, pid: i32) {
        self.noted().pid = pid;
    }

    /// The number of the snapshot that the operation makes or uses.
    pub fn point(&self, number: u32) {
        self.noted().point = Some(number);
    }

    /// Notes a phase that is over.
    pub fn note(&self, actor: Actor, name: &str, from: Moment, to: Moment, bytes: Option<u64>) {
        let start = from.since(self.began);
        self.noted().phases.push(Phase {
            actor,
            name: name.to_owned(),
            start_ns: start,
            end_ns: to.since(self.began).max(start),
            bytes,
        });
    }

    /// Notes a phase that began at `from` and ends now.
    pub fn since(&self, actor: Actor, name: &str, from: Moment) {
        self.note(actor, name, from, Moment::now(), None);
    }

    /// Does something and notes it as a phase.
    pub fn time<T>(&self, actor: Actor, name: &str, work: impl FnOnce() -> T) -> T {
        let from = Moment::now();
        let result = work();
        self.since(actor, name, from);
        result
    }

    /// The operation ends now.
    #[must_use]
    pub fn finish(self) -> Timeline {
        let took_ns = Moment::now().since(self.began);
        let noted = self
            .noted
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let mut phases = noted.phases;
        phases.sort_by_key(|phase| phase.start_ns);
        Timeline {
            format: FORMAT.into(),
            version: VERSION,
            operation: self.operation,
            pid: noted.pid,
            point: noted.point,
            started_unix_ms: self.started_unix_ms,
            took_ns,
            phases,
        }
    }

    fn noted(&self) -> std::sync::MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_told_from_the_beginning_of_the_operation() {
        let recorder = Recorder::begin(Operation::Migrate);
        let began = recorder.began();
        recorder.note(
            Actor::Card { card: 1 },
            "later",
            began.plus(2_000_000_000),
            began.plus(2_500_000_000),
            Some(10),
        );
        recorder.note(Actor::Host, "first", began, began.plus(1_000), None);
        recorder.point(3);
        recorder.pid(7);
        let timeline = recorder.finish();
        assert_eq!((timeline.point, timeline.pid), (Some(3), 7));
        let told: Vec<_> = timeline
            .phases
            .iter()
            .map(|phase| (&*phase.name, phase.start_ns, phase.end_ns))
            .collect();
        let later = ("later", 2_000_000_000, 2_500_000_000);
        assert_eq!(told, [("first", 0, 1000), later]);
        assert_eq!(timeline.phases[1].seconds(), 0.5);
        timeline.validate().unwrap();
        let text = serde_json::to_string(&timeline).unwrap();
        assert_eq!(serde_json::from_str::<Timeline>(&text).unwrap(), timeline);
    }

    #[test]
    fn nonsense_is_refused() {
        let sound = Recorder::begin(Operation::Restart);
        sound.note(Actor::Host, "x", sound.began(), sound.began(), None);
        let sound = sound.finish();
        let spoil = |what: fn(&mut Timeline)| {
            let mut timeline = sound.clone();
            what(&mut timeline);
            timeline.validate().unwrap_err()
        };
        assert!(spoil(|t| t.format.clear()).contains("no report"));
        assert!(spoil(|t| t.version = 9).contains("version 9"));
        assert!(spoil(|t| t.phases[0].start_ns = 5).contains("contradicts"));
        assert!(spoil(|t| t.phases = vec![t.phases[0].clone(); 10_001]).contains("10001"));
    }
}
