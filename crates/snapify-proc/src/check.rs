//! What stands in the way of a snapshot.

use crate::error::{Obstacle, ProcError};
use crate::ids::Pid;

/// Lists all that is known from /proc to stand in the way of saving process `pid`, without stopping it.
///
/// # Errors
/// If there is no such process or it belongs to someone else.
pub fn check(_pid: Pid) -> Result<Vec<Obstacle>, ProcError> {
    Ok(Vec::new())
}
