//! Processes that begin with the memory of the one that makes them, so that they share again the pages that they had in common
//! since a fork.
//!
//! A process of which others have many pages is built and filled as soon as it is made, before it makes any other. One that is
//! made by it keeps those mappings that both have, gives back the pages that it lacks, and is filled with what differs. All others
//! are built and filled when all are made.

use super::context::RestoreContext;
use super::lineage::{Lineage, Step};
use crate::error::ProcError;
use crate::ids::{Pid, RemoteAddr};
use crate::image::TreeImage;
use crate::memory::{self, Sink, Trampoline};
use crate::procfs::ProcDir;
use crate::procfs::maps::Mapping;
use crate::remote::Tracee;
use crate::tracking::Spans;
use snapify_store::{PageFile, PageRange, Progress, Run, SpaceId, StoreError};
use std::collections::{HashMap, HashSet};
use std::fs;

/// So much must be in common, or it is not worth while.
const WORTHWHILE: u64 = 1 << 20;

/// Ids that the threads may take which fill the memory of one process.
const THREADS: i64 = 64;

/// Pages to be given back that are fewer bytes than this are overwritten with zeros instead: that takes no call in the process.
const FEW: u64 = 64 * 1024;

/// The processes of an image, and whose memory each begins with.
pub(super) struct Heirs<'a> {
    image: &'a TreeImage,
    pages: &'a PageFile,
    ctx: &'a RestoreContext<'a>,
    progress: &'a dyn Progress,
    /// What all processes have mapped that begin with the memory of nobody.
    maps: Vec<Mapping>,
    /// By process: that whose memory it begins with.
    begins: Vec<Option<usize>>,
    /// Processes that are built early.
    early: HashSet<usize>,
    /// By process: what it keeps.
    inherited: HashMap<usize, Inherited>,
    built: HashMap<usize, Trampoline>,
    there: There,
}

/// Pages that are where they belong before the whole is filled.
#[derive(Default)]
pub(super) struct There {
    /// By space: those that a process has from another.
    common: HashMap<SpaceId, Spans>,
    /// Spaces of which there are all.
    filled: HashSet<SpaceId>,
}

impl There {
    /// Whether all pages of a run are there.
    pub(super) fn has(&self, run: &Run) -> bool {
        let covers = |common: &Spans| common.covers(run.start, run.start + run.bytes());
        self.filled.contains(&run.space) || self.common.get(&run.space).is_some_and(covers)
    }
}

/// What a process keeps of the memory that it begins with.
struct Inherited {
    /// Mappings.
    kept: Vec<(u64, u64)>,
    /// Pages in them that it lacks.
    lacks: Spans,
}

impl<'a> Heirs<'a> {
    /// None yet.
    pub(super) fn new(
        image: &'a TreeImage,
        pages: &'a PageFile,
        ctx: &'a RestoreContext<'a>,
        progress: &'a dyn Progress,
    ) -> Self {
        Self {
            image,
            pages,
            ctx,
            progress,
            maps: Vec::new(),
            begins: vec![None; image.processes.len()],
            early: HashSet::new(),
            inherited: HashMap::new(),
            built: HashMap::new(),
            there: There::default(),
        }
    }

    /// Finds out who is to be built early, before any process is made in this way. `maps` are what this init has mapped.
    pub(super) fn plan(&mut self, lineage: &Lineage, maps: Vec<Mapping>) {
        self.maps = maps;
        for (heir, parent) in makers(self.image, lineage) {
            if self.common_pages(heir, parent).bytes() >= WORTHWHILE {
                self.early.insert(parent);
            }
        }
        if self.early.is_empty() {
            return;
        }
        if !self.keep_ids_free(lineage) {
            self.early.clear();
            return;
        }
        // By node of the lineage: whose memory it begins with, or has.
        let mut memory: Vec<Option<usize>> = vec![None; lineage.nodes.len()];
        for step in &lineage.steps {
            let Step::Make { node, by, .. } = *step else {
                continue;
            };
            memory[node] = by.and_then(|by| memory[by]);
            let Some(process) = self.image.processes.get(node) else {
                continue;
            };
            if process.shares.memory.is_some() {
                continue;
            }
            self.begins[node] = memory[node];
            if self.early.contains(&node) {
                memory[node] = Some(node);
            }
        }
        let there = self.pages.outside(&[]);
        for heir in 0..self.begins.len() {
            if let Some(parent) = self.begins[heir] {
                self.inherit(heir, parent, &there);
            }
        }
    }

    fn inherit(&mut self, heir: usize, parent: usize, there: &[PageRange]) {
        let memory = |process: usize| &self.image.processes[process].memory;
        let kept = memory::kept(memory(parent), memory(heir));
        let place = spans(kept.iter().copied());
        let of = |space| {
            let begin = there.partition_point(|range| range.space < space);
            let end = there.partition_point(|range| range.space <= space);
            spans(there[begin..end].iter().map(ends))
        };
        let lacks = of(memory(parent).space).difference(&of(memory(heir).space));
        let common = self.common_pages(heir, parent);
        self.there.common.insert(memory(heir).space, common);
        let lacks = lacks.intersection(&place);
        self.inherited.insert(heir, Inherited { kept, lacks });
    }

    /// Pages that are the same in both, and that one keeps if it begins with the memory of the other.
    fn common_pages(&self, heir: usize, parent: usize) -> Spans {
        let memory = |process: usize| &self.image.processes[process].memory;
        let common = self.pages.common(memory(heir).space, memory(parent).space);
        let kept = memory::kept(memory(parent), memory(heir));
        spans(common.iter().map(ends)).intersection(&spans(kept.into_iter()))
    }

    /// Sees to it that threads of this init get no ids that are still to be given to processes (`ns_last_pid`, proc(5)). That
    /// needs a /proc of these namespaces.
    fn keep_ids_free(&self, lineage: &Lineage) -> bool {
        let ids = lineage.nodes.iter();
        let ids = ids.flat_map(|node| [node.kin.pid, node.kin.group, node.kin.session]);
        let threads = self.image.processes.iter().flat_map(|p| &p.threads);
        let last = ids
            .chain(threads.map(|thread| thread.tid))
            .max()
            .unwrap_or(0);
        let most = fs::read_to_string("/proc/sys/kernel/pid_max");
        let most = most.ok().and_then(|text| text.trim().parse::<i64>().ok());
        let needed = THREADS * (self.early.len() as i64 + 1);
        let ours = fs::read_link("/proc/self");
        let is_ours =
            ours.is_ok_and(|id| id.as_os_str() == std::process::id().to_string().as_str());
        is_ours
            && most.is_some_and(|most| i64::from(last) + needed < most)
            && fs::write("/proc/sys/kernel/ns_last_pid", last.to_string()).is_ok()
    }

    /// Whether a process is to be [built](Self::build) and [filled](Self::fill_early) before it makes others.
    pub(super) fn is_early(&self, process: usize) -> bool {
        self.early.contains(&process)
    }

    /// Makes the mappings of a process, unless that has been done.
    ///
    /// # Errors
    /// If the kernel refuses one of them.
    pub(super) fn build(
        &mut self,
        process: usize,
        tracee: &mut Tracee<'_>,
    ) -> Result<Trampoline, ProcError> {
        if let Some(&trampoline) = self.built.get(&process) {
            return Ok(trampoline);
        }
        let image = &self.image.processes[process].memory;
        let trampoline = match self.inherited.get(&process) {
            None => memory::build(tracee, image, &self.maps, &[], self.ctx)?,
            Some(inherited) => {
                let maps = ProcDir::open(Pid(self.image.processes[process].pid()))?.maps()?;
                let trampoline = memory::build(tracee, image, &maps, &inherited.kept, self.ctx)?;
                inherited.give_back(tracee)?;
                trampoline
            }
        };
        self.built.insert(process, trampoline);
        Ok(trampoline)
    }

    /// Fills the memory of a process that others will begin with.
    ///
    /// # Errors
    /// As [`PageFile::fill`].
    pub(super) fn fill_early(&mut self, process: usize) -> Result<(), StoreError> {
        let space = self.image.processes[process].memory.space;
        let sink = Sink::new(self.image, HashMap::new());
        let there = &self.there;
        let wanted = |run: &Run| run.space == space && !there.has(run);
        self.pages.fill_runs(&wanted, &sink, self.progress)?;
        self.there.filled.insert(space);
        Ok(())
    }

    /// What is there by now.
    pub(super) fn there(&self) -> &There {
        &self.there
    }
}

impl Inherited {
    /// Removes the pages that the process lacks.
    fn give_back(&self, tracee: &mut Tracee<'_>) -> Result<(), ProcError> {
        static ZEROS: [u8; FEW as usize] = [0; FEW as usize];
        for (start, end) in self.lacks.iter() {
            let bytes = end - start;
            if bytes < FEW {
                tracee.write(RemoteAddr(start), &ZEROS[..bytes as usize])?;
            } else {
                let args = [start, bytes, libc::MADV_DONTNEED as u64, 0, 0, 0];
                tracee.syscall("madvise", libc::SYS_madvise, args)?;
            }
        }
        Ok(())
    }
}

/// The processes with memory of their own that are made by another of the image, or by a helper of one, each with the one whose
/// memory it would begin with if all were built before they make others.
fn makers(image: &TreeImage, lineage: &Lineage) -> Vec<(usize, usize)> {
    let mut memory: Vec<Option<usize>> = vec![None; lineage.nodes.len()];
    let mut makers = Vec::new();
    for step in &lineage.steps {
        let Step::Make { node, by, .. } = *step else {
            continue;
        };
        memory[node] = by.and_then(|by| memory[by]);
        let process = image.processes.get(node);
        if process.is_some_and(|process| process.shares.memory.is_none()) {
            makers.extend(memory[node].map(|maker| (node, maker)));
            memory[node] = Some(node);
        }
    }
    makers
}

fn spans(ranges: impl Iterator<Item = (u64, u64)>) -> Spans {
    let mut spans = Spans::default();
    ranges.for_each(|(start, end)| spans.push(start, end));
    spans
}

fn ends(range: &PageRange) -> (u64, u64) {
    (range.start, range.start + range.bytes)
}
