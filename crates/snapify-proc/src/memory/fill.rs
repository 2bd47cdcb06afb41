//! Where pages of an image go: into the memory of the process under construction, and into its objects.

use super::image::{MemoryImage, PRIVATE_MEMORY};
use crate::ids::Pid;
use snapify_store::{PageSink, SpaceId};
use snapify_sys::area::Area;
use snapify_sys::vm;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Puts pages into place.
pub(crate) struct Sink<'a> {
    pid: Pid,
    /// Private mappings, joined where they touch: all that may be written.
    private: Vec<(u64, u64)>,
    objects: HashMap<u32, Target<'a>>,
}

/// What holds the content of an object.
pub(crate) enum Target<'a> {
    /// A file that can be written.
    File(&'a File),
    /// Memory of this process: a segment, or a file of huge pages.
    Area(&'a Area),
}

impl<'a> Sink<'a> {
    pub(crate) fn new(pid: Pid, image: &MemoryImage, objects: HashMap<u32, Target<'a>>) -> Self {
        let mut private: Vec<(u64, u64)> = Vec::new();
        for mapping in &image.mappings {
            if !mapping.kind.is_private() {
                continue;
            }
            match private.last_mut() {
                Some(last) if last.1 == mapping.start.0 => last.1 = mapping.end.0,
                _ => private.push((mapping.start.0, mapping.end.0)),
            }
        }
        Self {
            pid,
            private,
            objects,
        }
    }
}

impl PageSink for Sink<'_> {
    fn write(&self, space: SpaceId, start: u64, data: &[u8]) -> io::Result<()> {
        if space != PRIVATE_MEMORY {
            let file = self.objects.get(&space.0);
            let file =
                file.ok_or_else(|| io::Error::other(format!("the image has no object {space}")))?;
            return match file {
                Target::File(file) => file.write_all_at(data, start),
                Target::Area(area) => area.write_all_at(data, start),
            };
        }
        // Nothing but private memory may be written, whatever the page file says: a shared mapping is someone's file.
        let end = start.saturating_add(data.len() as u64);
        let after = self.private.partition_point(|range| range.1 <= start);
        if !self
            .private
            .get(after)
            .is_some_and(|range| range.0 <= start && end <= range.1)
        {
            return Err(io::Error::other(
                "these pages are not in private memory of the image",
            ));
        }
        vm::write_all(self.pid.0, start, data)
    }
}
