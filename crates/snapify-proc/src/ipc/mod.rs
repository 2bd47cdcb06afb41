//! System V IPC (sysvipc(7)): segments of shared memory, sets of semaphores, message queues.
//!
//! These objects belong to an IPC namespace, not to a process, and outlive whoever made them; programs keep their ids, also in
//! files and in other objects. So a restart makes them again under the same ids and keys, in an IPC namespace of its own: there
//! no id and no key is taken, and choosing ids (`kernel.shm_next_id` and its like) needs no privilege but that over
//! one's own namespace.
//!
//! No list tells who uses an object. What is saved is decided in [`capture`].

pub mod capture;
mod list;
pub mod restore;
pub mod undo;

pub(crate) use capture::{Uses, capture};
pub(crate) use restore::{adjust, finish, make};

use crate::error::ProcError;
use crate::image::hex::HexBytes;
use serde::{Deserialize, Serialize};
use snapify_store::SpaceId;
use std::collections::HashSet;
use undo::Adjustment;

/// The System V objects that go with a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpcImage {
    /// Whether the program is restored in an IPC namespace of its own. Always, if there are objects; also if it was in
    /// one before, where its later objects are to be found again.
    #[serde(default)]
    pub namespace: bool,
    /// Segments of shared memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<SegmentImage>,
    /// Sets of semaphores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<SetImage>,
    /// Message queues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<QueueImage>,
}

/// Name and owner of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Its id.
    pub id: i32,
    /// Its key, 0 for none (`IPC_PRIVATE`, or a removed segment).
    pub key: i32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

/// A segment of shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentImage {
    /// Name and owner.
    #[serde(flatten)]
    pub label: Label,
    /// Its size as it was asked for.
    pub bytes: u64,
    /// Its content.
    pub object: SpaceId,
    /// Whether it is removed when nobody has it attached any more.
    #[serde(default)]
    pub removed: bool,
    /// Whether it is locked in memory.
    #[serde(default)]
    pub locked: bool,
    /// Size of its pages in bytes, if they are huge ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_page: Option<u64>,
}

/// A set of semaphores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetImage {
    /// Name and owner.
    #[serde(flatten)]
    pub label: Label,
    /// The value of each.
    pub values: Vec<u16>,
    /// What processes take back when they end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adjustments: Vec<Adjustment>,
}

/// A message queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueImage {
    /// Name and owner.
    #[serde(flatten)]
    pub label: Label,
    /// How many bytes it takes.
    pub limit: u64,
    /// What waits in it, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<MessageImage>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageImage {
    /// Its type.
    pub kind: i64,
    /// Its text.
    pub text: HexBytes,
}

/// Highest value of a semaphore (`SEMVMX`).
const MOST_VALUE: u16 = 32767;
/// More semaphores than this no kernel takes in a set, whatever its limits say: their values fill the scratch memory.
const MOST_SEMAPHORES: usize = 65536;

impl IpcImage {
    /// The segment with this id.
    #[must_use]
    pub fn segment(&self, id: i32) -> Option<&SegmentImage> {
        self.segments.iter().find(|segment| segment.label.id == id)
    }

    /// Checks that ids are distinct and values possible.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] with the first contradiction.
    pub fn validate(&self) -> Result<(), ProcError> {
        let labels = |what: &str, labels: &mut dyn Iterator<Item = &Label>| {
            let mut ids = HashSet::new();
            for label in labels {
                if label.id < 0 || label.mode & !0o777 != 0 || !ids.insert(label.id) {
                    return Err(ProcError::BadImage(format!(
                        "{what} {} cannot be, or is there twice",
                        label.id
                    )));
                }
            }
            Ok(())
        };
        labels("segment", &mut self.segments.iter().map(|s| &s.label))?;
        labels("set of semaphores", &mut self.sets.iter().map(|s| &s.label))?;
        labels("message queue", &mut self.queues.iter().map(|q| &q.label))?;
        let bad = |what: &str, id: i32| {
            Err(ProcError::BadImage(format!(
                "{what} {id} has an impossible content"
            )))
        };
        for segment in &self.segments {
            let huge_fine = segment.huge_page.is_none_or(u64::is_power_of_two);
            if segment.bytes == 0 || segment.bytes > i64::MAX as u64 || !huge_fine {
                return bad("segment", segment.label.id);
            }
        }
        for set in &self.sets {
            let values_fine = set.values.iter().all(|&value| value <= MOST_VALUE);
            let adjustments_fine = set
                .adjustments
                .iter()
                .all(|a| usize::from(a.semaphore) < set.values.len() && a.is_sound());
            let count_fine = (1..=MOST_SEMAPHORES).contains(&set.values.len());
            if !count_fine || !values_fine || !adjustments_fine {
                return bad("set of semaphores", set.label.id);
            }
        }
        for queue in &self.queues {
            if queue.messages.iter().any(|message| message.kind < 1) {
                return bad("message queue", queue.label.id);
            }
        }
        let any = !(self.segments.is_empty() && self.sets.is_empty() && self.queues.is_empty());
        if any && !self.namespace {
            return Err(ProcError::BadImage(
                "it has System V objects but no namespace for them".into(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(id: i32) -> Label {
        Label {
            id,
            key: 0,
            uid: 0,
            gid: 0,
            mode: 0o600,
        }
    }

    fn image() -> IpcImage {
        IpcImage {
            namespace: true,
            segments: vec![SegmentImage {
                label: label(1),
                bytes: 5000,
                object: SpaceId(1),
                removed: true,
                locked: false,
                huge_page: None,
            }],
            sets: vec![SetImage {
                label: label(1),
                values: vec![1, 2],
                adjustments: vec![Adjustment {
                    pid: 5,
                    semaphore: 1,
                    by: -3,
                }],
            }],
            queues: vec![QueueImage {
                label: label(1),
                limit: 16384,
                messages: vec![MessageImage {
                    kind: 3,
                    text: HexBytes(b"text".to_vec()),
                }],
            }],
        }
    }

    #[test]
    fn an_image_comes_back_from_json() {
        let before = image();
        before.validate().unwrap();
        let text = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<IpcImage>(&text).unwrap(), before);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |change: &dyn Fn(&mut IpcImage)| {
            let mut image = image();
            change(&mut image);
            assert!(image.validate().is_err());
        };
        refused(&|i| i.namespace = false);
        refused(&|i| i.segments[0].label.id = -1);
        refused(&|i| i.segments[0].label.mode = 0o4777);
        refused(&|i| i.segments[0].bytes = 0);
        refused(&|i| i.segments[0].huge_page = Some(3));
        refused(&|i| i.segments.push(i.segments[0].clone()));
        refused(&|i| i.sets[0].values.clear());
        refused(&|i| i.sets[0].values[1] = 40000);
        refused(&|i| i.sets[0].adjustments[0].semaphore = 2);
        refused(&|i| i.sets[0].adjustments[0].by = 40000);
        refused(&|i| i.queues[0].messages[0].kind = 0);
    }
}
