//! Full and incremental snapshots: which one is taken, and what an incremental one builds on.

use super::live::Standing;
use crate::events::Event;
use crate::link::Link;
use crate::measured;
use crate::snapshot::PAGES_FILE;
use serde::{Deserialize, Serialize};
use snapify_proc::{Changed, Form, Tracking, TreeImage};
use snapify_store::{Chain, MemberDir, PageFile, PageFileSummary, Staging, StoreError};
use std::path::Path;

/// How often a snapshot is full where it is not known what they cost: a chain of so many takes not much longer to restart from
/// than a full one, and a chain of more saves not much more.
const FULL_EVERY: u32 = 16;

/// What cannot be tracked is compared with what was saved before if it is more than one part in so many.
const SHARED_PART: u64 = 16;

/// Whether a snapshot holds everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Increments {
    /// It holds what has changed since the one before, if that is known.
    #[default]
    Auto,
    /// It holds everything.
    Full,
    /// It holds what has changed since the one before; where that is not known, everything is read and compared.
    Always,
}

/// How snapshots follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Sequence {
    /// Whether this one holds everything.
    pub increments: Increments,
    /// Every so many it does in any case; at least 1.
    pub full_every: u32,
}

impl Default for Sequence {
    fn default() -> Self {
        Self {
            increments: Increments::Auto,
            full_every: FULL_EVERY,
        }
    }
}

impl Sequence {
    /// What follows the snapshots in `dir`: everything is saved each `full_every` of them, or, if that is not given, as often as
    /// their cost makes best where failures come every `mtbf` seconds.
    #[must_use]
    pub fn after(
        dir: &Path,
        increments: Increments,
        full_every: Option<u32>,
        mtbf: Option<f64>,
    ) -> Self {
        let best = || match increments {
            Increments::Full => None,
            Increments::Auto => measured::full_every(dir, mtbf),
            // Who asks for them gets some.
            Increments::Always => measured::full_every(dir, mtbf).map(|every| every.max(2)),
        };
        Self {
            increments,
            full_every: full_every.or_else(best).unwrap_or(FULL_EVERY),
        }
    }

    /// Whether there may be snapshots in it that hold only what has changed.
    pub(super) fn builds_on_others(self) -> bool {
        self.increments != Increments::Full && self.full_every > 1
    }
}

/// Begins the next point of a chain.
pub(super) fn begin(chain: &Chain, sequence: Sequence, link: &Link) -> Result<Staging, StoreError> {
    if !sequence.builds_on_others() {
        return chain.begin();
    }
    match chain.begin_incremental(None) {
        Err(error) => {
            // Whatever else is wrong here shows again.
            let staging = chain.begin()?;
            let warning = format!("everything is saved, not only what has changed: {error}");
            link.tell(Event::Warning(warning));
            Ok(staging)
        }
        staging => staging,
    }
}

/// What the pages of a process are saved as.
pub(super) enum Plan {
    Full { hash_seed: Option<u64> },
    Changed { parent: PageFile, changed: Changed },
    Different { parent: PageFile },
}

impl Plan {
    /// Decides it for a described process. `untracked` is why what it writes from now on cannot be followed, if it cannot.
    pub(super) fn make(
        sequence: Sequence,
        member: &MemberDir,
        tracking: &Tracking,
        untracked: Option<&str>,
        image: &TreeImage,
        link: &Link,
    ) -> Result<Self, StoreError> {
        // Where changes cannot be followed they are found by comparing, or each snapshot would be a full one.
        let compare = untracked.is_some() && sequence.builds_on_others();
        let asked = sequence.increments == Increments::Always || compare;
        let shared: u64 = image.objects.iter().map(|object| object.bytes).sum();
        let much = shared > image.saved_bytes() / SHARED_PART && shared > 1 << 20;
        let full = || {
            if let (true, Some(reason)) = (compare, untracked) {
                let warning = format!(
                    "what the program writes cannot be followed: later snapshots read all of its memory and compare it with the one \
                     before ({reason})"
                );
                link.tell(Event::Warning(warning));
            }
            Self::Full {
                hash_seed: (asked || much).then(random),
            }
        };
        let Some(parent) = member.parent_pages(PAGES_FILE)? else {
            return Ok(full());
        };
        if parent.files() as u64 >= u64::from(sequence.full_every) {
            return Ok(full());
        }
        match tracking.changed_since(&parent.summary().id().to_string()) {
            Some(changed) => Ok(Self::Changed { parent, changed }),
            None if parent.hash_seed().is_some() && (asked || !tracking.is_useful()) => {
                Ok(Self::Different { parent })
            }
            None => {
                if sequence.increments == Increments::Always {
                    let warning = "it is not known what has changed since the last snapshot, and that one cannot be compared with: \
                                   everything is saved";
                    link.tell(Event::Warning(warning.into()));
                }
                Ok(full())
            }
        }
    }

    pub(super) fn form(&self) -> Form<'_> {
        match self {
            Self::Full { hash_seed: None } => Form::Full,
            Self::Full {
                hash_seed: Some(seed),
            } => Form::Hashed(*seed),
            Self::Changed { parent, changed } => Form::Changed { parent, changed },
            Self::Different { parent } => Form::Different { parent },
        }
    }

    /// Bytes that will be read.
    pub(super) fn bytes(&self, standing: &Standing, image: &TreeImage) -> u64 {
        match self {
            Self::Full { .. } | Self::Different { .. } => image.saved_bytes(),
            Self::Changed { changed, .. } => {
                let objects: u64 = image.objects.iter().map(|object| object.bytes).sum();
                standing.changed_bytes(changed) + objects
            }
        }
    }
}

/// Notes that the memory is saved as `pages` now: what is written later has changed since then.
pub(super) fn saved(tracking: &mut Tracking, plan: &Plan, pages: &PageFileSummary) {
    let parent = match plan {
        Plan::Full { .. } => None,
        Plan::Changed { parent, .. } | Plan::Different { parent } => {
            Some(parent.summary().id().to_string())
        }
    };
    tracking.saved_as(pages.id().to_string(), parent.as_deref());
}

pub(super) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Where there is no randomness, a number that others can guess does as well, but for who wants to deceive himself.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
