//! What is known, as bytes and descriptors, so that it can be handed from one process to another.

use super::{Base, Changed, Spans, TrackedMemory, Tracking};
use crate::error::ProcError;
use crate::ids::Pid;
use serde::{Deserialize, Serialize};
use snapify_store::SpaceId;
use std::os::fd::OwnedFd;

#[derive(Serialize, Deserialize)]
struct State {
    memories: Vec<Memory>,
    next_space: u32,
    bases: Vec<BaseState>,
    objects: Vec<((u64, u64), SpaceId)>,
}

#[derive(Serialize, Deserialize)]
struct Memory {
    pid: Pid,
    started: u64,
    space: SpaceId,
    /// Whether it has the next one of the descriptors.
    tracked: bool,
}

#[derive(Serialize, Deserialize)]
struct BaseState {
    point: String,
    changed: Vec<(SpaceId, Spans)>,
}

impl Tracking {
    /// Takes it apart.
    ///
    /// # Errors
    /// If it has no form as text, which cannot be.
    pub fn into_parts(self) -> Result<(Vec<u8>, Vec<OwnedFd>), ProcError> {
        let memory = |memory: &TrackedMemory| Memory {
            pid: memory.pid,
            started: memory.started,
            space: memory.space,
            tracked: memory.uffd.is_some(),
        };
        let base = |base: Base| BaseState {
            point: base.point,
            changed: base.changed.by_space.into_iter().collect(),
        };
        let state = State {
            memories: self.memories.iter().map(memory).collect(),
            next_space: self.next_space,
            bases: self.bases.into_iter().map(base).collect(),
            objects: self.objects.into_iter().collect(),
        };
        let text = serde_json::to_vec(&state)
            .map_err(|e| ProcError::system("write down what is tracked")(e))?;
        let uffds = self.memories.into_iter().filter_map(|memory| memory.uffd);
        Ok((text, uffds.collect()))
    }

    /// Puts it together again.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] if these are not the parts of one.
    pub fn from_parts(text: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, ProcError> {
        let bad = || ProcError::BadImage("what was kept of its tracking is no such thing".into());
        let state: State = serde_json::from_slice(text).map_err(|_| bad())?;
        let mut descriptors = descriptors.into_iter();
        let mut tracking = Self {
            next_space: state.next_space,
            ..Self::default()
        };
        for memory in state.memories {
            let uffd = match memory.tracked {
                true => Some(descriptors.next().ok_or_else(bad)?),
                false => None,
            };
            if memory.space.0 >= state.next_space {
                return Err(bad());
            }
            tracking.memories.push(TrackedMemory {
                pid: memory.pid,
                started: memory.started,
                space: memory.space,
                uffd,
            });
        }
        for base in state.bases {
            if !base.changed.iter().all(|(_, spans)| spans.is_sound()) {
                return Err(bad());
            }
            tracking.bases.push(Base {
                point: base.point,
                changed: Changed {
                    by_space: base.changed.into_iter().collect(),
                },
            });
        }
        tracking.objects = state.objects.into_iter().collect();
        match descriptors.next() {
            None => Ok(tracking),
            Some(_) => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back() {
        let null = || std::fs::File::open("/dev/null").unwrap().into();
        let memory = |pid, space, uffd| TrackedMemory {
            pid: Pid(pid),
            started: 7,
            space: SpaceId(space),
            uffd,
        };
        let mut before = Tracking {
            memories: vec![memory(1, 0, Some(null())), memory(2, 1, None)],
            next_space: 2,
            bases: Vec::new(),
            objects: [((5, 6), SpaceId(9))].into_iter().collect(),
        };
        before.saved_as("a".into(), None);
        let mut written = Spans::default();
        written.push(4096, 8192);
        before.remember(SpaceId(1), &written);
        let (text, uffds) = before.into_parts().unwrap();
        assert_eq!(uffds.len(), 1);
        let after = Tracking::from_parts(&text, uffds).unwrap();
        assert!(after.is_useful());
        assert_eq!(after.objects()[&(5, 6)], SpaceId(9));
        assert_eq!(after.bases[0].changed.by_space[&SpaceId(1)], written);
        assert!(after.uffd(Pid(1)).is_some() && after.uffd(Pid(2)).is_none());
        assert!(Tracking::from_parts(&text, Vec::new()).is_err());
        assert!(Tracking::from_parts(&text, vec![null(), null()]).is_err());
        assert!(Tracking::from_parts(b"{}", Vec::new()).is_err());
    }
}
