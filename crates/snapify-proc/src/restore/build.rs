//! The order in which a process is built.

use super::context::RestoreContext;
use super::{RestorePlan, blank, inherited};
use crate::clocks::ClocksImage;
use crate::error::ProcError;
use crate::image::ProcessImage;
use crate::memory::{self, Sink, Target};
use crate::ptrace::Stopped;
use crate::remote::Tracee;
use crate::threads;
use crate::{context, files, ipc, signals, timers};
use snapify_store::Progress;
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// A complete process whose threads are all stopped.
pub(super) struct Built {
    /// In the order of the image.
    pub(super) threads: Vec<Stopped>,
    pub(super) pidfd: OwnedFd,
    pub(super) warnings: Vec<String>,
}

/// Builds the process of `plan`. Runs in its init.
///
/// # Errors
/// The first step that the kernel refuses; the unfinished process dies with its init.
pub(super) fn build(plan: &RestorePlan<'_>, progress: &dyn Progress) -> Result<Built, ProcError> {
    let image = &plan.image;
    let mut ctx = inherited::gather(plan, image)?;
    // Before any timer is set, or it would expire early by the clocks of the program.
    if let Some(clocks) = &image.context.clocks {
        set_clocks(clocks, &ctx)?;
    }
    let segments = ipc::make(&image.ipc, |text| ctx.warn(text))?;
    ctx.areas.extend(segments);
    let prepared = files::Prepared::new(&image.files, &ctx)?;
    let (mut tracee, pidfd, maps) = blank::spawn(image.pid)?;

    // What is below belongs to this init; all that the process needs is above.
    close_range(&mut tracee, 0, ctx.first_inherited().0 as u32 - 1)?;
    let trampoline = memory::build(&mut tracee, &image.memory, &maps, &ctx)?;
    // Threads come before the contents: filling needs threads of this init, whose ids could be those of the image.
    threads::restore::create(&mut tracee, &image.threads)?;
    fill(&mut tracee, plan, &ctx, progress)?;
    ctx.areas.clear();
    ipc::finish(&image.ipc)?;

    let mut warnings = memory::finish(&mut tracee, &image.memory)?;
    memory::restore_layout(&mut tracee, &image.memory, &ctx)?;
    files::restore(&mut tracee, &image.files, prepared, &mut ctx)?;
    context::restore(&mut tracee, &image.context, &mut ctx)?;
    signals::restore(&mut tracee, &image.signals, &mut ctx)?;
    threads::restore::finish(&mut tracee, &image.threads, &ctx)?;
    timers::restore(&mut tracee, &image.timers, &mut ctx)?;
    threads::restore::expand_tiles(&mut tracee, &image.threads, trampoline)?;
    context::restore_last(&mut tracee, &image.context, &mut ctx)?;

    trampoline.remove(&mut tracee)?;
    warnings.extend(threads::restore::settle(&mut tracee, &image.threads)?);
    warnings.extend(ctx.warnings.take());
    tracing::debug!(pid = image.pid, calls = tracee.calls(), "restored");
    let threads = in_order(tracee, image);
    Ok(Built {
        threads,
        pidfd,
        warnings,
    })
}

/// Where the kernel refuses, the program goes on with this machine's clocks, as after a long sleep.
fn set_clocks(clocks: &ClocksImage, ctx: &RestoreContext<'_>) -> Result<(), ProcError> {
    match clocks.set_for_children() {
        Err(error @ ProcError::BadImage(_)) => Err(error),
        Err(error) => {
            ctx.warn(format!("CLOCK_MONOTONIC jumps: {error}"));
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn close_range(tracee: &mut Tracee<'_>, first: u32, last: u32) -> Result<(), ProcError> {
    let args = [u64::from(first), u64::from(last), 0, 0, 0, 0];
    tracee.syscall("close_range", libc::SYS_close_range, args)?;
    Ok(())
}

fn fill(
    tracee: &mut Tracee<'_>,
    plan: &RestorePlan<'_>,
    ctx: &RestoreContext<'_>,
    progress: &dyn Progress,
) -> Result<(), ProcError> {
    let areas = ctx
        .areas
        .iter()
        .map(|(&space, area)| (space, Target::Area(area)));
    let objects: HashMap<_, _> = ctx
        .objects
        .iter()
        .map(|(&space, (_, file))| (space, Target::File(file)))
        .chain(areas)
        .collect();
    let sink = Sink::new(tracee.pid(), &plan.image.memory, objects);
    tracee.unpin();
    let result = plan.pages.fill(&sink, progress);
    tracee.pin();
    result?;
    // The last page of an object may reach behind its end.
    for object in &plan.image.objects {
        if let Some((_, file)) = ctx.objects.get(&object.space.0) {
            file.set_len(object.bytes)
                .map_err(ProcError::system(format!(
                    "cut {} to its length",
                    object.what
                )))?;
        }
    }
    Ok(())
}

fn in_order(tracee: Tracee<'_>, image: &ProcessImage) -> Vec<Stopped> {
    let mut threads = tracee.release();
    let place: HashMap<i32, usize> = image
        .threads
        .iter()
        .enumerate()
        .map(|(n, t)| (t.tid, n))
        .collect();
    threads.sort_by_key(|thread| place.get(&thread.tid().0).copied());
    threads
}
