//! Descriptors that the agents in processes have declared as their own.

use super::Object;
use super::survey::{Found, Recognized, Seen, Subject, View};
use crate::error::Obstacle;
use crate::external::{Declared, External};
use crate::ids::Pid;

/// What was declared, by the index of the process among those that are looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Externals<'a> {
    declared: Vec<(usize, &'a [External])>,
    partners: Vec<Pid>,
}

impl<'a> Externals<'a> {
    pub(crate) fn new(subjects: &[Subject<'_>], declared: &'a [Declared]) -> Self {
        let place = |one: &'a Declared| {
            let of = |subject: &Subject<'_>| subject.proc.pid() == one.pid;
            Some((subjects.iter().position(of)?, &*one.externals))
        };
        Self {
            declared: declared.iter().filter_map(place).collect(),
            partners: declared
                .iter()
                .flat_map(|one| one.partners.iter().copied())
                .collect(),
        }
    }

    /// Whether a process may hold what these hold.
    pub(crate) fn is_partner(&self, pid: Pid) -> bool {
        self.partners.contains(&pid)
    }

    /// The object that a descriptor was declared to lead to.
    pub(crate) fn of(&self, seen: &Seen) -> Option<&'a External> {
        let of_process = |(process, _): &&(usize, _)| *process == seen.process;
        let declared = self.declared.iter().filter(of_process);
        declared
            .flat_map(|(_, externals)| *externals)
            .find(|external| external.fds.contains(&seen.fd))
    }

    /// Declared descriptors that are not open. An agent that is wrong about its own objects is not to
    /// be trusted with others.
    pub(crate) fn missing(&self, seen: &[Seen]) -> Vec<Obstacle> {
        let is_open = |process, fd| {
            seen.iter()
                .any(|one| one.process == process && one.fd == fd)
        };
        let mut missing = Vec::new();
        for &(process, externals) in &self.declared {
            for external in externals {
                for &fd in external.fds.iter().filter(|fd| !is_open(process, **fd)) {
                    missing.push(Obstacle::new(
                        format!("descriptor {fd}"),
                        format!(
                            "its agent declared it as {:?}, but it is not open",
                            external.key
                        ),
                    ));
                }
            }
        }
        missing
    }
}

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    let external = view.externals.of(seen)?;
    Some(Ok(Found::Whole(Object::External {
        key: external.key.clone(),
    })))
}
