//! The order in which a tree of processes is built.

use super::context::RestoreContext;
use super::heirs::{Heirs, There};
use super::{RestorePlan, inherited, skeleton, track};
use crate::clocks::ClocksImage;
use crate::error::ProcError;
use crate::image::{ProcessImage, TreeImage};
use crate::memory::{self, Sink, Target, Trampoline};
use crate::ptrace::Stopped;
use crate::remote::Tracee;
use crate::seccomp;
use crate::threads;
use crate::{context, files, ipc, signals, timers};
use snapify_store::{Progress, Run};
use std::collections::HashMap;
use std::os::fd::OwnedFd;

/// Complete processes whose threads are all stopped.
pub(super) struct Built {
    /// The threads of each process, in the order of the image.
    pub(super) processes: Vec<Vec<Stopped>>,
    /// The first process.
    pub(super) pidfd: OwnedFd,
    pub(super) warnings: Vec<String>,
    /// What tracks their memory.
    pub(super) tracked: Vec<track::Tracked>,
}

/// Builds the processes of `plan`. Runs in their init.
///
/// # Errors
/// The first step that the kernel refuses; the unfinished processes die with their init.
pub(super) fn build(plan: &RestorePlan<'_>, progress: &dyn Progress) -> Result<Built, ProcError> {
    let image = &plan.image;
    let mut ctx = inherited::gather(plan, image)?;
    // Before any timer is set, or it would expire early by the clocks of the program.
    if let Some(clocks) = &image.root().context.clocks {
        set_clocks(clocks, &ctx)?;
    }
    let (before, now) = (image.root().context.seccomp_filters, seccomp::own_filters());
    if before != now {
        ctx.warn(format!(
            "its system calls were under {before} seccomp filters, and are under the {now} of the restart now"
        ));
    }
    let segments = ipc::make(&image.ipc, |text| ctx.warn(text))?;
    ctx.areas.extend(segments);
    let prepared = files::Prepared::new(&image.files, &ctx)?;
    let mut heirs = Heirs::new(image, &plan.pages, &ctx, progress);
    let terminals = prepared.controlling(&image.files);
    let skeleton::Skeleton { mut tracees, pidfd } = skeleton::make(image, &terminals, &mut heirs)?;

    let mut trampolines: HashMap<i32, Trampoline> = HashMap::new();
    let below = ctx.first_inherited().0 as u32 - 1;
    for (index, (tracee, process)) in tracees.iter_mut().zip(&image.processes).enumerate() {
        // What is below belongs to this init; all that the process needs is above.
        let trampoline = match process.shares.memory {
            None => {
                close_unless_shared(tracee, process, below)?;
                heirs.build(index, tracee)?
            }
            Some(owner) => {
                let theirs = trampolines.get(&owner).copied();
                let theirs = theirs.ok_or_else(|| no_memory(process))?;
                theirs.use_in(tracee);
                close_unless_shared(tracee, process, below)?;
                theirs
            }
        };
        trampolines.insert(process.pid(), trampoline);
        // Threads come before the contents: filling needs threads of this init, whose ids could be those of the image.
        threads::restore::create(tracee, &process.threads)?;
    }
    fill(&mut tracees, plan, heirs.there(), &ctx, progress)?;
    // Their memory is what the snapshot holds. From here on, whatever is written to it is a change: by this init, too.
    let tracked = match plan.track {
        true => track::track(&mut tracees, image),
        false => Vec::new(),
    };
    ctx.areas.clear();
    ipc::finish(&image.ipc)?;

    let mut warnings = Vec::new();
    for (tracee, process) in tracees.iter_mut().zip(&image.processes) {
        if process.shares.memory.is_none() {
            warnings.extend(memory::finish(tracee, &process.memory)?);
            memory::restore_layout(tracee, &process.memory, &ctx)?;
        }
        if process.shares.files.is_none() {
            files::restore(tracee, &process.descriptors, &prepared)?;
        }
    }
    files::finish(&mut tracees, image, prepared, &mut ctx)?;
    for (tracee, process) in tracees.iter_mut().zip(&image.processes) {
        let trampoline = trampolines[&process.pid()];
        threads::restore::prepare_tiles(tracee, &process.threads, trampoline)?;
    }
    // Handlers may be shared.
    if image.processes.iter().any(signals::hinder_steps) {
        tracees.iter_mut().try_for_each(Tracee::end_steps)?;
    }
    for (tracee, process) in tracees.iter_mut().zip(&image.processes) {
        ipc::adjust(tracee, &image.ipc, process.pid())?;
        context::restore(tracee, &process.context, &mut ctx)?;
        signals::restore(tracee, &process.signals, &mut ctx)?;
        threads::restore::finish(tracee, &process.threads, &ctx)?;
        timers::restore(tracee, &process.timers, &mut ctx)?;
        context::restore_last(tracee, &process.context, &mut ctx)?;
    }

    for (tracee, process) in tracees.iter_mut().zip(&image.processes) {
        if process.shares.memory.is_none() {
            trampolines[&process.pid()].remove(tracee)?;
        }
    }
    let mut processes = Vec::with_capacity(tracees.len());
    for (mut tracee, process) in tracees.into_iter().zip(&image.processes) {
        warnings.extend(threads::restore::settle(&mut tracee, &process.threads)?);
        tracing::debug!(pid = process.pid(), calls = tracee.calls(), "restored");
        processes.push(in_order(tracee, process));
    }
    warnings.extend(ctx.warnings.take());
    Ok(Built {
        processes,
        pidfd,
        warnings,
        tracked,
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

fn no_memory(process: &ProcessImage) -> ProcError {
    ProcError::BadImage(format!(
        "process {} shares the memory of one that is built after it",
        process.pid()
    ))
}

fn close_unless_shared(
    tracee: &mut Tracee<'_>,
    process: &ProcessImage,
    last: u32,
) -> Result<(), ProcError> {
    if process.shares.files.is_none() {
        let args = [0, u64::from(last), 0, 0, 0, 0];
        tracee.syscall("close_range", libc::SYS_close_range, args)?;
    }
    Ok(())
}

fn fill(
    tracees: &mut [Tracee<'_>],
    plan: &RestorePlan<'_>,
    there: &There,
    ctx: &RestoreContext<'_>,
    progress: &dyn Progress,
) -> Result<(), ProcError> {
    let image: &TreeImage = &plan.image;
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
    let sink = Sink::new(image, objects);
    tracees.iter_mut().for_each(Tracee::unpin);
    let missing = |run: &Run| !there.has(run);
    let result = plan.pages.fill_runs(&missing, &sink, progress);
    let pin = tracees.first().and_then(Tracee::choose_pin);
    for tracee in tracees {
        tracee.pin(pin.clone());
    }
    result?;
    // The last page of an object may reach behind its end.
    for object in &image.objects {
        if let Some((_, file)) = ctx.objects.get(&object.space) {
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
