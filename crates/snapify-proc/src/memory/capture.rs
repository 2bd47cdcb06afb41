//! Describing the address space of a frozen process.

use super::classify::{Class, classify, place};
use super::flags::{may_write, set_flags};
use super::image::{
    Executable, FileImage, LayoutImage, MappingFlags, MappingImage, MappingKind, MemoryImage,
};
use super::present::{Kind, Looker};
use super::settings::{self, Settings};
use super::{named, shared, vdso};
use crate::capture::CaptureContext;
use crate::error::{Obstacle, ProcError};
use crate::identity::FileIdentity;
use crate::ids::{Pid, RemoteAddr};
use crate::image::hex::HexBytes;
use crate::path::ImagePath;
use crate::procfs::maps::{Mapping, VmFlags};
use crate::remote::{SYSCALL, Tracee};
use crate::tracking::{Spans, Watch};
use snapify_store::{PAGE_SIZE, PageRange, SpaceId};
use snapify_sys::pagemap::is_tracked;
use snapify_sys::{uffd, vm};
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;

/// Which pages are saved.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    pub(crate) ranges: Vec<PageRange>,
    /// Those of them that may have been written since the memory was last armed (see [`crate::tracking`]).
    pub(crate) written: Vec<PageRange>,
    /// Private mappings in which writes can be told from now on.
    pub(crate) watch: Watch,
    /// The spaces of processes with which it may have pages in common since a fork, all of them described before.
    pub(crate) relatives: Vec<SpaceId>,
    /// Addresses from where pages may be unreadable and count as zeros then: mappings that reach behind the end of a file.
    pub(super) lenient: Vec<(u64, u64)>,
    /// Private mappings whose content a fork does not have, or may lose.
    pub(super) not_copied: Vec<(u64, u64)>,
}

impl Ranges {
    /// The pages among them that a fork does not have, or may lose.
    pub(super) fn not_copied(&self) -> impl Iterator<Item = PageRange> {
        let within = |range: &PageRange| {
            let after = self
                .not_copied
                .partition_point(|area| area.1 <= range.start);
            // A range of pages lies within one mapping.
            self.not_copied
                .get(after)
                .is_some_and(|area| area.0 <= range.start)
        };
        self.ranges
            .iter()
            .filter(move |range| within(range))
            .copied()
    }

    /// Adds a mapping, behind those before, whose content a fork does not have.
    pub(super) fn add_not_copied(&mut self, start: u64, end: u64) {
        self.not_copied.push((start, end));
    }

    /// The first page that is saved at `start` or behind it, but before `end`.
    pub(super) fn first_within(&self, start: u64, end: u64) -> Option<u64> {
        let at = self.ranges.partition_point(|range| range.start < start);
        let first = self.ranges.get(at).map(|range| range.start);
        first.filter(|&first| first < end)
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.bytes).sum()
    }

    /// The addresses of all.
    pub(crate) fn present(&self) -> Spans {
        spans(&self.ranges)
    }

    /// The addresses of those that may have been written.
    pub(crate) fn written(&self) -> Spans {
        spans(&self.written)
    }
}

fn spans(ranges: &[PageRange]) -> Spans {
    let mut spans = Spans::default();
    for range in ranges {
        spans.push(range.start, range.start + range.bytes);
    }
    spans
}

fn addresses(spans: &Spans) -> impl Iterator<Item = (RemoteAddr, u64)> {
    spans
        .iter()
        .map(|(start, end)| (RemoteAddr(start), end - start))
}

/// Where a `syscall` instruction is in the process: in its vDSO, or else in any of its code.
///
/// # Errors
/// If there is none, or the process has so many mappings that it cannot get the one that remote calls need.
pub(crate) fn syscall_instruction(pid: Pid, maps: &[Mapping]) -> Result<RemoteAddr, ProcError> {
    if let Some(obstacle) = too_many(maps) {
        return Err(ProcError::Unsupported {
            pid,
            obstacles: vec![obstacle],
        });
    }
    let (vdso, rest): (Vec<&Mapping>, Vec<&Mapping>) = maps
        .iter()
        .filter(|m| m.exec && m.read && m.name != b"[vsyscall]")
        .partition(|m| m.name == b"[vdso]");
    for mapping in vdso.into_iter().chain(rest) {
        let mut at = mapping.start.0;
        let mut piece = vec![0; 256 * 1024];
        while at < mapping.end.0 {
            let n = (mapping.end.0 - at).min(piece.len() as u64) as usize;
            // Code beyond the end of a cut file cannot be read.
            let Ok(n) = vm::read(pid.0, at, &mut piece[..n]) else {
                break;
            };
            if let Some(offset) = piece[..n].windows(2).position(|pair| pair == SYSCALL) {
                return Ok(RemoteAddr(at + offset as u64));
            }
            // An instruction may lie across two pieces.
            at += if at + (n as u64) < mapping.end.0 {
                (n as u64).saturating_sub(1).max(1)
            } else {
                n as u64
            };
        }
    }
    Err(ProcError::Unsupported {
        pid,
        obstacles: vec![Obstacle::new(
            format!("process {pid}"),
            "it has no code with a `syscall` instruction",
        )],
    })
}

/// Whether there is no room for another mapping: capture needs one for its scratch memory, restore one for its trampoline.
pub(super) fn too_many(maps: &[Mapping]) -> Option<Obstacle> {
    const NEEDED: usize = 2;
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?;
    let most: usize = text.trim().parse().ok()?;
    let count = maps.iter().filter(|m| m.name != b"[vsyscall]").count();
    (count + NEEDED > most).then(|| {
        let why = format!("it has {count} of the {most} mappings that a process can have here");
        Obstacle::new("address space", why).with_hint("have root raise vm.max_map_count")
    })
}

/// Describes the address space and decides which pages are saved. `uffd` is what has tracked the memory so far.
///
/// # Errors
/// If the process is killed, or a file of /proc cannot be read.
pub(crate) fn capture(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
    space: SpaceId,
    uffd: Option<BorrowedFd<'_>>,
) -> Result<(MemoryImage, Ranges), ProcError> {
    let mut work = Work {
        ctx,
        uffd,
        looker: Looker::new(ctx.proc.open_file("pagemap")?),
        files: Vec::new(),
        file_index: HashMap::new(),
        space,
        ranges: Ranges::default(),
        settings: settings::capture(tracee, ctx)?,
    };
    let mut mappings = Vec::with_capacity(ctx.maps.len());
    let objects = shared::capture(tracee, ctx)?;
    named::capture(ctx);
    for mapping in ctx.maps {
        if let Some(image) = work.mapping(mapping, &objects)? {
            mappings.push(image);
        }
    }
    let executable = work.executable()?;
    let vdso_hash = match ctx.maps.iter().find(|m| m.name == b"[vdso]") {
        Some(mapping) => {
            let mut code = vec![0; mapping.bytes() as usize];
            tracee.read(mapping.start, &mut code)?;
            vdso::hash(&code)
        }
        None => 0,
    };
    let settings = std::mem::take(&mut work.settings);
    work.ranges.watch.set_guards_known(work.looker.guards_known);
    let image = MemoryImage {
        space,
        settings,
        mappings,
        files: work.files,
        layout: layout(tracee, ctx)?,
        auxv: HexBytes(ctx.proc.auxv()?),
        executable,
        vdso_hash,
    };
    Ok((image, work.ranges))
}

fn layout(tracee: &mut Tracee<'_>, ctx: &CaptureContext<'_>) -> Result<LayoutImage, ProcError> {
    let stat = ctx.proc.stat()?;
    // The end of the heap is shown nowhere: its mapping ends at a page boundary.
    let brk = tracee.syscall("brk", libc::SYS_brk, [0; 6])?;
    Ok(LayoutImage {
        start_code: stat.code.0,
        end_code: stat.code.1,
        start_data: stat.data.0,
        end_data: stat.data.1,
        start_brk: stat.start_brk,
        brk,
        start_stack: stat.start_stack,
        arg_start: stat.args.0,
        arg_end: stat.args.1,
        env_start: stat.env.0,
        env_end: stat.env.1,
    })
}

struct Work<'a> {
    ctx: &'a CaptureContext<'a>,
    /// What has tracked the memory so far.
    uffd: Option<BorrowedFd<'a>>,
    looker: Looker,
    files: Vec<FileImage>,
    file_index: HashMap<Vec<u8>, usize>,
    /// Where its private memory goes in the page file.
    space: SpaceId,
    ranges: Ranges,
    settings: Settings,
}

impl Work<'_> {
    fn mapping(
        &mut self,
        mapping: &Mapping,
        objects: &shared::Found,
    ) -> Result<Option<MappingImage>, ProcError> {
        let offset = mapping.offset;
        let mut saved = 0;
        let mut guards = Vec::new();
        let begin = self.ranges.ranges.len();
        if let Some(obstacle) =
            watched(&self.looker.pagemap, mapping).map_err(|e| self.pagemap_error(e))?
        {
            self.ctx.refuse(obstacle);
            return Ok(None);
        }
        let kind = match classify(mapping, self.ctx) {
            Class::Skip => return Ok(None),
            Class::Obstacle(obstacle) => {
                self.ctx.refuse(obstacle);
                return Ok(None);
            }
            Class::Kernel => MappingKind::Kernel {
                name: String::from_utf8_lossy(&mapping.name).into_owned(),
            },
            Class::External(key) => MappingKind::External {
                key,
                offset,
                shared: mapping.shared,
            },
            Class::Private => {
                saved = self.present(mapping, false, &mut guards)?;
                MappingKind::Private
            }
            Class::PrivateGone if objects.of(mapping).is_some() => {
                saved = self.present(mapping, true, &mut guards)?;
                let object = objects.of(mapping).unwrap_or(self.space);
                MappingKind::PrivateObject { object, offset }
            }
            Class::PrivateGone => {
                saved = mapping.bytes();
                let all = PageRange {
                    space: self.space,
                    start: mapping.start.0,
                    bytes: saved,
                };
                // Its pages are those of a file that others may write.
                self.ranges.ranges.push(all);
                self.ranges.written.push(all);
                self.ranges.lenient.push((mapping.start.0, mapping.end.0));
                MappingKind::Private
            }
            Class::PrivateFile => {
                saved = self.present(mapping, true, &mut guards)?;
                let Some(file) = self.file(&mapping.name, mapping.exec, false) else {
                    return Ok(None);
                };
                MappingKind::PrivateFile { file, offset }
            }
            Class::SharedFile => {
                let may_write = may_write(mapping);
                let Some(file) = self.file(&mapping.name, mapping.exec, may_write) else {
                    return Ok(None);
                };
                MappingKind::SharedFile {
                    file,
                    offset,
                    may_write,
                }
            }
            Class::Segment(segment) => MappingKind::Segment {
                segment,
                offset,
                may_write: may_write(mapping),
            },
            Class::Shared => match objects.of(mapping) {
                Some(object) => MappingKind::Shared {
                    object,
                    offset,
                    may_write: may_write(mapping),
                },
                None => {
                    self.ctx
                        .refuse(Obstacle::new(place(mapping), "its content cannot be read"));
                    return Ok(None);
                }
            },
        };
        if !mapping.shared && !is_copied(mapping) {
            let range = (mapping.start.0, mapping.end.0);
            self.ranges.not_copied.push(range);
        }
        if mapping.shared && !matches!(kind, MappingKind::External { .. }) {
            let found = self.looker.guards(mapping);
            let found = found.map_err(|e| self.pagemap_error(e))?;
            guards.extend(addresses(&found));
        }
        let mut written = Vec::new();
        if kind.is_private() && kind != MappingKind::Private {
            let ranges = self.ranges.ranges[begin..].iter();
            written.extend(ranges.map(|range| (RemoteAddr(range.start), range.bytes)));
        }
        let mut image = MappingImage {
            start: mapping.start,
            end: mapping.end,
            prot: mapping.prot(),
            kind,
            flags: MappingFlags {
                guards,
                ..MappingFlags::default()
            },
            saved,
            written,
        };
        set_flags(&mut image, mapping, &self.settings.keys);
        Ok(Some(image))
    }

    /// Notes the pages of a private mapping that hold something (of a file's, only those that were written), and guard
    /// regions.
    fn present(
        &mut self,
        mapping: &Mapping,
        of_file: bool,
        guards: &mut Vec<(RemoteAddr, u64)>,
    ) -> Result<u64, ProcError> {
        let kind = Kind {
            of_file,
            trusted: self.is_ours(mapping),
        };
        let found = self.looker.look(mapping, kind);
        let found = found.map_err(|e| self.pagemap_error(e))?;
        guards.extend(addresses(&found.guards));
        let space = self.space;
        let range = |(start, end)| PageRange {
            space,
            start,
            bytes: end - start,
        };
        self.ranges.ranges.extend(found.present.iter().map(range));
        self.ranges.written.extend(found.written.iter().map(range));
        // Before Linux 6.14 (and stable versions of that time) pages keep their marks when they are moved by mremap, and
        // writes to them cannot be told from then on.
        if !found.stale && is_trackable(mapping) {
            let (start, end) = (mapping.start.0, mapping.end.0);
            self.ranges.watch.push(start, end, of_file);
        }
        Ok(found.present.bytes())
    }

    /// Whether the mapping is registered with our userfaultfd, which has tracked it since it was.
    fn is_ours(&self, mapping: &Mapping) -> bool {
        let (start, end) = (mapping.start.0, mapping.end.0);
        let tracked = || is_tracked(&self.looker.pagemap, start, start + PAGE_SIZE);
        // The kernel refuses what is registered with another one.
        let register = |uffd| uffd::register(uffd, start, end);
        let is_its = |uffd| tracked().is_ok_and(|tracked| tracked) && register(uffd).is_ok();
        self.uffd.is_some_and(is_its)
    }

    fn pagemap_error(&self, error: std::io::Error) -> ProcError {
        ProcError::proc(format!("/proc/{}/pagemap", self.ctx.pid))(error)
    }

    /// The index of a file; `None` if it cannot be examined, which is an obstacle.
    fn file(&mut self, name: &[u8], code: bool, written: bool) -> Option<usize> {
        if let Some(&index) = self.file_index.get(name) {
            let file = &mut self.files[index];
            file.written |= written;
            if code && file.identity.build_id.is_none() {
                file.identity = file.identity.clone().with_build_id();
            }
            return Some(index);
        }
        let path = ImagePath::from_bytes(name);
        match rustix::fs::stat(path.as_path()) {
            Ok(stat) => {
                let identity = FileIdentity::new(path, &stat);
                let identity = if code {
                    identity.with_build_id()
                } else {
                    identity
                };
                self.files.push(FileImage { identity, written });
                self.file_index
                    .insert(name.to_owned(), self.files.len() - 1);
                Some(self.files.len() - 1)
            }
            Err(e) => {
                self.ctx.refuse(Obstacle::new(
                    format!("mapped file {path}"),
                    std::io::Error::from(e).to_string(),
                ));
                None
            }
        }
    }

    /// The program: by its path or, if that leads to nothing or to another file by now, by content.
    fn executable(&mut self) -> Result<Executable, ProcError> {
        let path = self.ctx.proc.link("exe")?;
        let stat = self.ctx.proc.stat_of("exe")?;
        let now = rustix::fs::stat(path.as_path());
        if now.is_ok_and(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino)) {
            // If there is none, an obstacle has been noted: this image is never used.
            let file = self.file(path.as_bytes(), true, false);
            return Ok(Executable::File(file.unwrap_or(0)));
        }
        let file = self.ctx.proc.open_file("exe")?;
        let object = self
            .ctx
            .objects_mut()
            .add_file(path.to_string(), file.into(), None)
            .map_err(ProcError::file("look at", path.as_path()))?;
        Ok(Executable::Removed { object })
    }
}

/// An obstacle if somebody is told of what is written to the mapping. To be tracked by the kernel alone does it no harm.
pub(super) fn watched(pagemap: &File, mapping: &Mapping) -> std::io::Result<Option<Obstacle>> {
    if !mapping.flags.unwrap_or_default().has(VmFlags::UFFD_WP) {
        return Ok(None);
    }
    let start = mapping.start.0;
    let why = "it is watched with userfaultfd, which is not supported";
    let tracked = is_tracked(pagemap, start, start + PAGE_SIZE)?;
    Ok((!tracked).then(|| Obstacle::new(place(mapping), why)))
}

/// Whether writes to a private mapping can be told later. Huge TLB pages are compared by content instead: finer, and they are
/// read while the process stands still anyway. What may be dropped at any time is zero then, and nobody has written that.
fn is_trackable(mapping: &Mapping) -> bool {
    let flags = mapping.flags.unwrap_or_default();
    !flags.has(VmFlags::HUGE_TLB) && !flags.has(VmFlags::DROPPABLE)
}

/// Whether a fork has the content of a private mapping, and keeps it.
pub(super) fn is_copied(mapping: &Mapping) -> bool {
    let absent = [
        VmFlags::DONT_COPY,
        VmFlags::WIPE_ON_FORK,
        VmFlags::DROPPABLE,
        // Where the pool is empty, the kernel takes them away from the child when the parent writes.
        VmFlags::HUGE_TLB,
    ];
    let flags = mapping.flags.unwrap_or_default();
    // Pages of a removed file that were not written are those of the file, which others may write.
    !absent.into_iter().any(|flag| flags.has(flag)) && !mapping.marked_deleted()
}

/// The range of an object's pages in whole pages.
pub(super) fn object_range(space: SpaceId, start: u64, end: u64) -> PageRange {
    let start = start / PAGE_SIZE * PAGE_SIZE;
    PageRange {
        space,
        start,
        bytes: end.next_multiple_of(PAGE_SIZE) - start,
    }
}
