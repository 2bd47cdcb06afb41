//! Processes that job control has stopped or continued, as their parents know it: a parent is told of each once (SIGCHLD, and wait(2) with
//! `WUNTRACED` or `WCONTINUED`). It must not be told again by a restart, and be told then of what it has not asked for yet.

use crate::error::ProcError;
use crate::image::ProcessImage;
use crate::remote::Tracee;
use serde::{Deserialize, Serialize};

/// What job control has done to a process, and its parent, which is one of the tree, has not asked for yet (wait(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    /// It was stopped by this signal.
    StoppedBy(i32),
    /// It goes on again.
    Continued,
}

/// `struct siginfo`; waitid(2) fills in 32 bits each of number, error, code, padding, id, user and status.
type Siginfo = [u64; 16];
const CODE: usize = 2;
const STATUS: usize = 6;

/// Asks a process, by a call of its own, for news of a child, or with `P_ALL` of any.
fn ask(
    parent: &mut Tracee<'_>,
    (kind, child): (libc::idtype_t, i32),
    options: i32,
) -> Result<Option<News>, ProcError> {
    let at = parent.scratch().addr;
    let mut info: Siginfo = [0; 16];
    parent.put(at, &info)?;
    let options = options | libc::WNOHANG | libc::__WALL;
    let args = [u64::from(kind), child as u64, at.0, options as u64, 0, 0];
    match parent.syscall("waitid", libc::SYS_waitid, args) {
        // All have ended meanwhile.
        Err(error) if error.errno() == Some(libc::ECHILD) => return Ok(None),
        other => other?,
    };
    info = parent.get(at)?;
    let number = |n: usize| (info[n / 2] >> (n % 2 * 32)) as i32;
    Ok(match number(CODE) {
        libc::CLD_STOPPED => Some(News::StoppedBy(number(STATUS))),
        libc::CLD_CONTINUED => Some(News::Continued),
        _ => None,
    })
}

/// What a process has not asked for yet of its children. Nothing is changed.
///
/// # Errors
/// Those of the remote calls.
pub(crate) fn news(
    parent: &mut Tracee<'_>,
    children: &[i32],
) -> Result<Vec<(i32, News)>, ProcError> {
    let look = libc::WSTOPPED | libc::WCONTINUED | libc::WNOWAIT;
    // In most cases there is nothing, and one call for all of them tells.
    if children.is_empty() || ask(parent, (libc::P_ALL, 0), look)?.is_none() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for &child in children {
        all.extend(ask(parent, (libc::P_PID, child), look)?.map(|news| (child, news)));
    }
    Ok(all)
}

/// Has job control do to a process under construction, which has one thread, what `image` says. Its parent, which ignores SIGCHLD at this
/// time, takes note of a stop that was known to it.
///
/// # Errors
/// Those of the remote calls, and of ptrace.
pub(crate) fn restore(
    child: &mut Tracee<'_>,
    parent: &mut Tracee<'_>,
    image: &ProcessImage,
) -> Result<(), ProcError> {
    match image.news {
        Some(News::StoppedBy(signal)) => child.stop_group(signal),
        Some(News::Continued) => {
            child.stop_group(libc::SIGSTOP)?;
            child.continue_group()
        }
        None => {
            child.stop_group(libc::SIGSTOP)?;
            let options = libc::WSTOPPED;
            ask(parent, (libc::P_PID, child.pid().0), options).map(drop)
        }
    }
}
