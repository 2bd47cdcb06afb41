//! The command line's side.

use super::{Order, SwapReport, Which};
use crate::clients::{ask_supervisor, supervisor_of};
use crate::error::JobError;
use crate::events::Observer;
use crate::protocol::{Reply, Request};
use std::path::Path;

/// Saves an offload process of the application with host process (or supervisor) `pid` into `dir`, and takes it off its
/// card. Threads that need it wait until it is swapped in; the image goes when it is, or when the application ends.
///
/// # Errors
/// On any failure the process goes on where it was.
pub fn swap_out(
    pid: i32,
    dir: &Path,
    which: &Which,
    observer: &mut dyn Observer,
) -> Result<SwapReport, JobError> {
    let dir = std::path::absolute(dir).map_err(|source| JobError::File {
        operation: "use",
        path: dir.to_owned(),
        source,
    })?;
    let which = which.clone();
    ask(pid, Order::SwapOut { dir, which }, observer)
}

/// Brings a process that is swapped out back, to any card of the application.
///
/// # Errors
/// On any failure it stays swapped out.
pub fn swap_in(
    pid: i32,
    card: u32,
    which: &Which,
    observer: &mut dyn Observer,
) -> Result<SwapReport, JobError> {
    let which = which.clone();
    ask(pid, Order::SwapIn { card, which }, observer)
}

/// Moves a process to another card of the application.
///
/// # Errors
/// On any failure it goes on where it was.
pub fn migrate(
    pid: i32,
    card: u32,
    which: &Which,
    observer: &mut dyn Observer,
) -> Result<SwapReport, JobError> {
    let which = which.clone();
    ask(pid, Order::Migrate { card, which }, observer)
}

fn ask(pid: i32, mut order: Order, observer: &mut dyn Observer) -> Result<SwapReport, JobError> {
    // Who names one of several host processes means what that has on cards.
    if let Some(running) = supervisor_of(pid)?
        && running.status.pid != pid
        && running.status.hosts.contains(&pid)
    {
        order.which_mut().host = Some(pid);
    }
    match ask_supervisor(pid, &Request::Swap { order }, observer)? {
        Reply::Swapped { report } => Ok(report),
        other => Err(JobError::Refused(format!(
            "the application's supervisor answered {other:?}"
        ))),
    }
}
