//! Where pages of an image go: into the memory of the processes under construction, and into its objects.

use crate::ids::Pid;
use crate::image::TreeImage;
use snapify_store::{PageSink, SpaceId};
use snapify_sys::area::Area;
use snapify_sys::vm;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Puts pages into place.
pub(crate) struct Sink<'a> {
    memories: HashMap<SpaceId, Memory>,
    objects: HashMap<SpaceId, Target<'a>>,
}

/// The private memory of a process.
struct Memory {
    pid: Pid,
    /// Private mappings, joined where they touch: all that may be written.
    private: Vec<(u64, u64)>,
}

/// What holds the content of an object.
pub(crate) enum Target<'a> {
    /// A file that can be written.
    File(&'a File),
    /// Memory of this process: a segment, or a file of huge pages.
    Area(&'a Area),
}

impl<'a> Sink<'a> {
    /// For the processes of `image`, whose ids are the same here.
    pub(crate) fn new(image: &TreeImage, objects: HashMap<SpaceId, Target<'a>>) -> Self {
        let mut memories = HashMap::new();
        for process in &image.processes {
            if process.shares.memory.is_some() {
                continue;
            }
            let mut private: Vec<(u64, u64)> = Vec::new();
            for mapping in &process.memory.mappings {
                if !mapping.kind.is_private() {
                    continue;
                }
                match private.last_mut() {
                    Some(last) if last.1 == mapping.start.0 => last.1 = mapping.end.0,
                    _ => private.push((mapping.start.0, mapping.end.0)),
                }
            }
            let pid = Pid(process.pid());
            memories.insert(process.memory.space, Memory { pid, private });
        }
        Self { memories, objects }
    }
}

impl PageSink for Sink<'_> {
    fn write(&self, space: SpaceId, start: u64, data: &[u8]) -> io::Result<()> {
        let Some(memory) = self.memories.get(&space) else {
            let file = self.objects.get(&space);
            let file =
                file.ok_or_else(|| io::Error::other(format!("the image has no space {space}")))?;
            return match file {
                Target::File(file) => file.write_all_at(data, start),
                Target::Area(area) => area.write_all_at(data, start),
            };
        };
        // Nothing but private memory may be written, whatever the page file says: a shared mapping is someone's file.
        let end = start.saturating_add(data.len() as u64);
        let after = memory.private.partition_point(|range| range.1 <= start);
        if !memory
            .private
            .get(after)
            .is_some_and(|range| range.0 <= start && end <= range.1)
        {
            return Err(io::Error::other(
                "these pages are not in private memory of the image",
            ));
        }
        vm::write_all(memory.pid.0, start, data)
    }
}
