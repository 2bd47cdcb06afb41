//! Descriptors that an agent in the process has declared as its own.

use super::Object;
use super::survey::{Found, Recognized, Seen, View};
use crate::error::Obstacle;
use crate::external::External;

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    // The agent is the first process's.
    if seen.process != 0 {
        return None;
    }
    let external = view
        .externals
        .iter()
        .find(|external| external.fds.contains(&seen.fd))?;
    Some(Ok(Found::Whole(Object::External {
        key: external.key.clone(),
    })))
}

/// Declared descriptors that are not open. An agent that is wrong about its own objects is not to
/// be trusted with others.
pub(crate) fn missing(externals: &[External], seen: &[Seen]) -> Vec<Obstacle> {
    let is_open = |fd| seen.iter().any(|one| one.process == 0 && one.fd == fd);
    let declared = externals
        .iter()
        .flat_map(|external| external.fds.iter().map(move |&fd| (fd, external)));
    declared
        .filter(|&(fd, _)| !is_open(fd))
        .map(|(fd, external)| {
            Obstacle::new(
                format!("descriptor {fd}"),
                format!(
                    "its agent declared it as {:?}, but it is not open",
                    external.key
                ),
            )
        })
        .collect()
}
