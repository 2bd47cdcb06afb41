//! Describing a frozen tree.

use super::{Described, Flags, Frozen, outline, shares};
use crate::capture::{CaptureContext, Gathered};
use crate::check;
use crate::error::ProcError;
use crate::external::{Declared, External, MappedFiles, declared_by};
use crate::files::survey::Subject;
use crate::freeze::FrozenProcess;
use crate::ids::{Pid, Tid};
use crate::image::{EndedProcess, IMAGE_VERSION, Kin, ProcessImage, Shares, TreeImage};
use crate::ipc::IpcImage;
use crate::memory::{self, MemoryImage, Ranges, Unflagged};
use crate::procfs::ProcDir;
use crate::procfs::maps::Mapping;
use crate::procfs::status::Status;
use crate::scratch::Scratch;
use crate::stops::{self, News};
use crate::{clocks, context, files, ipc, restore, signals, threads, timers};
use snapify_store::SpaceId;
use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;

/// A process as /proc shows it before the first remote call.
struct Seen {
    pid: Pid,
    proc: ProcDir,
    status: Status,
    maps: Vec<Mapping>,
    /// What agents have declared of what it has.
    externals: Vec<External>,
    threads: Vec<(Tid, Tid)>,
    kin: Kin,
    /// Indices of those that it shares memory, files, directory and handlers with.
    shares: [Option<usize>; 4],
    /// Whether its mappings have their flags.
    flagged: bool,
}

pub(super) fn describe(
    frozen: &mut Frozen,
    flags: Flags,
    declared: &[Declared],
) -> Result<(TreeImage, Described), ProcError> {
    let relations = Relations::find(frozen)?;
    let places = relations.places();
    frozen
        .processes
        .sort_by_key(|process| places.get(&process.pid).copied());
    let pids: Vec<Pid> = frozen.processes().collect();
    let shares = shares::find(&pids).map_err(ProcError::system("compare processes"))?;
    let owners = pids.iter().zip(&shares);
    let owners: Vec<Pid> = owners
        .filter(|(_, shares)| shares[0].is_none())
        .map(|(pid, _)| *pid)
        .collect();
    // Before the mappings are looked at: what tracks processes that have ended is closed here, and their memory may be
    // another's by now.
    frozen.tracking.settle(&owners)?;
    for process in &mut frozen.processes {
        threads::transfer::complete(process);
    }
    let mut seen = Vec::with_capacity(pids.len());
    let mut mapped = MappedFiles::default();
    for (process, shares) in frozen.processes.iter().zip(shares) {
        let own = (declared_by(declared, process.pid), &mut mapped);
        seen.push(Seen::look(process, &relations, shares, flags, own)?);
    }
    let members: HashMap<Pid, Pid> = relations.members();
    let tracking = &frozen.tracking;
    let pids = seen.iter().map(|s| (s.pid, Pid(s.kin.pid)));
    let scratch = Scratch::of(&seen[0].proc, &seen[0].status);
    let gathered = Gathered::new(pids, tracking.objects()).with_scratch(scratch);

    let subjects: Vec<Subject<'_>> = seen
        .iter()
        .filter(|process| process.shares[1].is_none())
        .map(|process| Subject {
            proc: &process.proc,
            inner_pid: Pid(process.kin.pid),
        })
        .collect();
    // Before the memory: a removed file that is open and mapped is read through its descriptor.
    let mut within = |pid: Pid, work: &mut files::RemoteWork<'_>| {
        let mut pairs = seen.iter().zip(&mut frozen.processes);
        let (seen, process) = pairs
            .find(|(seen, _)| seen.pid == pid)
            .ok_or_else(|| ProcError::BadImage(format!("process {pid} is not being saved")))?;
        let instruction = memory::syscall_instruction(pid, &seen.maps)?;
        process.with_tracee(instruction, |tracee, _| work(tracee))
    };
    let files::Tables { tables, files } = files::capture(
        &subjects,
        members,
        declared,
        frozen.outside,
        &gathered,
        &mut within,
    )?;
    let mut tables = tables.into_iter();

    let mut uses = ipc::Uses::default();
    let mut news = HashMap::new();
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for process in &seen {
        let Kin { pid, parent, .. } = process.kin;
        children.entry(parent).or_default().push(pid);
    }
    let mut processes = Vec::with_capacity(seen.len());
    let mut memories = Vec::with_capacity(seen.len());
    for (index, (process, frozen)) in seen.iter().zip(&mut frozen.processes).enumerate() {
        let ctx = CaptureContext {
            pid: process.pid,
            proc: &process.proc,
            status: &process.status,
            maps: &process.maps,
            threads: &process.threads,
            externals: &process.externals,
            gathered: &gathered,
        };
        for obstacle in check::frozen(&ctx, |pid| relations.contains(pid))? {
            ctx.refuse(obstacle);
        }
        let place = Place {
            first: index == 0,
            kin: process.kin,
            children: children.get(&process.kin.pid).map_or(&[], Vec::as_slice),
            space: tracking.space(process.pid).unwrap_or_default(),
            uffd: tracking.uffd(process.pid),
        };
        let space = place.space;
        let shares = shares::image(process.shares, |other| seen[other].kin.pid);
        let (image, ranges) = describe_one(&ctx, frozen, place, shares, (&mut uses, &mut news))?;
        let descriptors = match shares.files {
            None => tables.next().unwrap_or_default(),
            Some(_) => Vec::new(),
        };
        processes.push(ProcessImage {
            descriptors,
            externals: declared_by(declared, process.pid).to_vec(),
            ..image
        });
        memories.push(ranges.map(|ranges| (space, ranges)));
    }
    note_relatives(&processes, &mut memories);
    for process in &mut processes {
        process.news = news.remove(&process.pid());
    }
    let ipc = system_v(
        &seen[0],
        &mut frozen.processes[0],
        relations.ids(),
        &gathered,
        uses,
    )?;
    let ipc = IpcImage {
        namespace: ipc.namespace || !files.queues.is_empty(),
        ..ipc
    };
    let mut image = TreeImage {
        version: IMAGE_VERSION,
        processes,
        ended: relations.ended,
        files,
        ipc,
        scratch: Vec::new(),
        objects: Vec::new(),
    };
    gathered.scratch().capture(&mut image, &gathered);
    let unflagged = seen.iter().map(|process| process.unflagged());
    let unflagged: Vec<_> = unflagged.collect();
    let (objects, mut obstacles) = gathered.finish();
    obstacles.extend(restore::foresee(&image));
    if !obstacles.is_empty() {
        // The user is told of everything at once.
        let flagged = outline::read(&unflagged, |pid| pid)?;
        obstacles.extend(outline::complete(&mut image, flagged));
        return Err(ProcError::Unsupported {
            pid: frozen.pid(),
            obstacles,
        });
    }
    image.objects = objects.images.clone();
    let described = Described {
        memories,
        objects,
        unflagged,
    };
    Ok((image, described))
}

/// What a process is in its tree.
struct Place<'a> {
    first: bool,
    kin: Kin,
    /// Those of its children that have not ended.
    children: &'a [i32],
    /// Where its memory goes, if it is its own.
    space: SpaceId,
    /// What has tracked its memory so far.
    uffd: Option<BorrowedFd<'a>>,
}

fn describe_one(
    ctx: &CaptureContext<'_>,
    frozen: &mut FrozenProcess,
    place: Place<'_>,
    shares: Shares,
    (uses, news): (&mut ipc::Uses, &mut HashMap<i32, News>),
) -> Result<(ProcessImage, Option<Ranges>), ProcError> {
    let stopped = frozen.group_stopped;
    let instruction = memory::syscall_instruction(ctx.pid, ctx.maps)?;
    frozen.with_tracee(instruction, |tracee, frozen| {
        let mut images = Vec::with_capacity(frozen.len());
        for thread in frozen {
            images.push(threads::capture::capture(tracee, ctx.proc, thread)?);
        }
        if images[0].tid != place.kin.pid {
            let ended = threads::capture::ended_leader(ctx, &images[0], instruction)?;
            images.insert(0, ended);
        }
        images[0].extended_permission = threads::capture::extended_permission(tracee)?;
        let signals = signals::capture(tracee, ctx)?;
        let timers = timers::capture(tracee, ctx)?;
        let mut context = context::capture(tracee, ctx)?;
        if place.first {
            context.clocks = Some(clocks::capture(tracee)?);
        }
        news.extend(stops::news(tracee, place.children)?);
        uses.add_adjustments(tracee, ctx)?;
        let (memory, ranges) = match shares.memory {
            None => {
                uses.add_memory(tracee, ctx)?;
                let (memory, ranges) = memory::capture(tracee, ctx, place.space, place.uffd)?;
                (memory, Some(ranges))
            }
            Some(_) => (MemoryImage::shared(), None),
        };
        let image = ProcessImage {
            kin: place.kin,
            stopped,
            news: None,
            shares,
            threads: images,
            memory,
            descriptors: Vec::new(),
            signals,
            timers,
            context,
            externals: Vec::new(),
        };
        Ok((image, ranges))
    })
}

/// Notes with whom each process may have pages in common since a fork: its parent, and the child that this had before it, with
/// which it may share what the parent has written to since.
fn note_relatives(processes: &[ProcessImage], memories: &mut [Option<(SpaceId, Ranges)>]) {
    let mut spaces = HashMap::new();
    let mut last_children = HashMap::new();
    for (process, memory) in processes.iter().zip(memories) {
        let owner = process.shares.memory.unwrap_or(process.pid());
        let Some((space, ranges)) = memory else {
            let space: Option<SpaceId> = spaces.get(&owner).copied();
            spaces.extend(space.map(|space| (process.pid(), space)));
            continue;
        };
        // Whose parent has ended, that one descends from the first process most likely.
        let parent = match process.kin.parent {
            0 => processes[0].pid(),
            parent => parent,
        };
        if let Some(&parents) = spaces.get(&parent) {
            ranges.relatives = vec![parents];
            ranges
                .relatives
                .extend(last_children.insert(parent, *space));
        }
        spaces.insert(process.pid(), *space);
    }
}

/// The System V objects of all, looked at by one of them.
fn system_v(
    process: &Seen,
    frozen: &mut FrozenProcess,
    members: Vec<i32>,
    gathered: &Gathered,
    uses: ipc::Uses,
) -> Result<IpcImage, ProcError> {
    let ctx = CaptureContext {
        pid: process.pid,
        proc: &process.proc,
        status: &process.status,
        maps: &process.maps,
        threads: &process.threads,
        externals: &[],
        gathered,
    };
    let instruction = memory::syscall_instruction(ctx.pid, ctx.maps)?;
    frozen.with_tracee(instruction, |tracee, _| {
        ipc::capture(tracee, &ctx, members, uses)
    })
}

impl Seen {
    fn look(
        process: &FrozenProcess,
        relations: &Relations,
        shares: [Option<usize>; 4],
        flags: Flags,
        (own, mapped): (&[External], &mut MappedFiles),
    ) -> Result<Self, ProcError> {
        let proc = ProcDir::open(process.pid)?;
        let status = proc.status()?;
        let mut maps = proc.maps()?;
        // Parents come before the children that have inherited from them.
        mapped.note(own, &maps);
        let externals = mapped.of(own, &maps);
        let is_last = |maps: &[_]| {
            flags == Flags::Last && !memory::are_needed_first(maps, &status, &externals)
        };
        let flagged = !is_last(&maps);
        if flagged {
            maps = proc.smaps()?;
        }
        memory::names::find(&mut maps);
        Ok(Self {
            pid: process.pid,
            status,
            maps,
            externals,
            flagged,
            threads: process.threads.iter().map(|t| (t.tid, t.inner)).collect(),
            kin: relations.kin(process.pid)?,
            shares,
            proc,
        })
    }

    /// What is left out of the description of its memory, if that is its own.
    fn unflagged(&self) -> Option<Unflagged> {
        let complete = self.flagged || self.shares[0].is_some();
        (!complete).then(|| Unflagged::new(self.pid, &self.maps, &self.externals))
    }
}

/// Who is whose child, and which ids are the tree's own.
struct Relations {
    /// In an order in which parents come before children.
    order: Vec<Pid>,
    kin: HashMap<Pid, Kin>,
    ended: Vec<EndedProcess>,
    /// As we see them, and as they see themselves; those whose first thread has ended by that of another too.
    inner: HashMap<Pid, Pid>,
}

impl Relations {
    fn find(frozen: &Frozen) -> Result<Self, ProcError> {
        let mut statuses = HashMap::new();
        for pid in frozen.processes().chain(frozen.ended.iter().copied()) {
            statuses.insert(pid, ProcDir::open(pid)?.status()?);
        }
        let inner: HashMap<Pid, Pid> = statuses
            .iter()
            .flat_map(|(&pid, status)| [pid, status.tgid].map(|id| (id, status.inner_tgid())))
            .collect();
        // Where the first thread has ended, another stands for its process.
        let stands_for: HashMap<Pid, Pid> = statuses
            .iter()
            .map(|(&pid, status)| (status.tgid, pid))
            .collect();
        let ids: HashSet<i32> = inner.values().map(|pid| pid.0).collect();
        let mut kin = HashMap::new();
        let mut children: HashMap<Option<Pid>, Vec<Pid>> = HashMap::new();
        for pid in frozen.processes().chain(frozen.ended.iter().copied()) {
            let status = &statuses[&pid];
            let parent = stands_for.get(&status.parent).copied();
            children.entry(parent).or_default().push(pid);
            let stat = ProcDir::open(status.tgid)?.stat()?;
            let relation = Kin {
                pid: inner[&pid].0,
                parent: parent.map_or(0, |parent| inner[&parent].0),
                group: own_id(&status.ns_pgrp, &ids),
                session: own_id(&status.ns_session, &ids),
                exit_signal: stat.exit_signal.max(0),
            };
            kin.insert(pid, relation);
        }
        let mut order = Vec::with_capacity(kin.len());
        let mut waiting: Vec<Pid> = children.remove(&None).unwrap_or_default();
        // The process that was asked for comes first, whatever others its namespace's init has adopted.
        waiting.sort_by_key(|&pid| pid != frozen.pid());
        waiting.reverse();
        while let Some(pid) = waiting.pop() {
            order.push(pid);
            let mut next = children.remove(&Some(pid)).unwrap_or_default();
            next.reverse();
            waiting.extend(next);
        }
        let zombies: HashSet<Pid> = frozen.ended.iter().copied().collect();
        let mut ended = Vec::with_capacity(zombies.len());
        for &pid in order.iter().filter(|pid| zombies.contains(pid)) {
            ended.push(EndedProcess {
                kin: kin[&pid],
                status: ProcDir::open(pid)?.stat()?.exit_code,
            });
        }
        Ok(Self {
            order,
            kin,
            ended,
            inner,
        })
    }

    /// Where each process comes in the order.
    fn places(&self) -> HashMap<Pid, usize> {
        self.order.iter().copied().zip(0..).collect()
    }

    fn kin(&self, pid: Pid) -> Result<Kin, ProcError> {
        self.kin.get(&pid).copied().ok_or(ProcError::Died {
            pid,
            during: "its description",
        })
    }

    fn contains(&self, pid: Pid) -> bool {
        self.inner.contains_key(&pid)
    }

    /// The ids that the processes have for themselves.
    fn ids(&self) -> Vec<i32> {
        let ids: HashSet<i32> = self.inner.values().map(|pid| pid.0).collect();
        ids.into_iter().collect()
    }

    fn members(&self) -> HashMap<Pid, Pid> {
        self.inner.clone()
    }
}

/// The id of a group or session as the processes see it, if it is one of `ids`, or its leader has ended and nobody else
/// can have it: then it can be given again. Otherwise 0.
fn own_id(levels: &[i32], ids: &HashSet<i32>) -> i32 {
    let (Some(&outer), Some(&inner)) = (levels.first(), levels.last()) else {
        return 0;
    };
    let leader_is_gone = || ProcDir::open(Pid(outer)).is_err();
    if inner > 1 && (ids.contains(&inner) || leader_is_gone()) {
        inner
    } else {
        0
    }
}
