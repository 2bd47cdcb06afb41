//! Which mappings a process keeps of those that it had from the one that made it.

use super::build::first_protection;
use super::image::{MappingImage, MappingKind, MemoryImage};

/// The mappings of `child`, as start and end, that are there already if it begins with the memory of `parent`. Only plain
/// private memory is kept: all else costs nothing to be made again, or is not what it was in a process that has been forked.
pub(crate) fn kept(parent: &MemoryImage, child: &MemoryImage) -> Vec<(u64, u64)> {
    // What protection keys are allocated is inherited too, and would have to be undone.
    if [parent, child].into_iter().any(has_keys) {
        return Vec::new();
    }
    let is_there = |mapping: &&MappingImage| {
        let behind = parent
            .mappings
            .partition_point(|m| m.start <= mapping.start);
        let around = behind.checked_sub(1).map(|n| &parent.mappings[n]);
        around.is_some_and(|around| {
            mapping.end <= around.end
                && is_plain(around)
                && is_plain(mapping)
                && around.flags == mapping.flags
                && first_protection(around) == first_protection(mapping)
        })
    };
    let kept = child.mappings.iter().filter(is_there);
    kept.map(|mapping| (mapping.start.0, mapping.end.0))
        .collect()
}

fn has_keys(memory: &MemoryImage) -> bool {
    !memory.settings.keys.is_empty() || memory.mappings.iter().any(|m| m.flags.key != 0)
}

fn is_plain(mapping: &MappingImage) -> bool {
    let flags = &mapping.flags;
    let absent_after_fork = [libc::MADV_DONTFORK, libc::MADV_WIPEONFORK];
    mapping.kind == MappingKind::Private
        && !flags.grows_down
        && !flags.droppable
        && flags.huge_page.is_none()
        && flags.guards.is_empty()
        && !absent_after_fork
            .iter()
            .any(|advice| flags.advice.contains(advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RemoteAddr;
    use crate::memory::image::MappingFlags;

    fn mapping(start: u64, end: u64) -> MappingImage {
        MappingImage {
            start: RemoteAddr(start),
            end: RemoteAddr(end),
            prot: libc::PROT_READ | libc::PROT_WRITE,
            kind: MappingKind::Private,
            flags: MappingFlags::default(),
            saved: 0,
            written: Vec::new(),
        }
    }

    fn memory(mappings: Vec<MappingImage>) -> MemoryImage {
        MemoryImage {
            mappings,
            ..MemoryImage::shared()
        }
    }

    #[test]
    fn what_lies_in_the_same_memory_is_kept() {
        let parent = memory(vec![mapping(0x1000, 0x9000), mapping(0x9000, 0x20000)]);
        let child = |mappings| kept(&parent, &memory(mappings));
        assert_eq!(child(vec![mapping(0x1000, 0x9000)]), [(0x1000, 0x9000)]);
        assert_eq!(child(vec![mapping(0xa000, 0x20000)]), [(0xa000, 0x20000)]);
        assert_eq!(
            child(vec![mapping(0x0, 0x2000), mapping(0x8000, 0xa000)]),
            []
        );
        assert_eq!(child(vec![mapping(0x1f000, 0x21000)]), []);
    }

    #[test]
    fn what_is_different_after_a_fork_is_made_anew() {
        let parent = |change: &dyn Fn(&mut MappingImage)| {
            let mut mapping = mapping(0x1000, 0x9000);
            change(&mut mapping);
            let parent = memory(vec![mapping.clone()]);
            let same = kept(&parent, &memory(vec![mapping.clone()]));
            mapping.prot = libc::PROT_READ;
            mapping.saved = 0;
            assert_eq!(kept(&parent, &memory(vec![mapping])), []);
            same
        };
        assert_eq!(parent(&|_| ()), [(0x1000, 0x9000)]);
        assert_eq!(parent(&|m| m.flags.advice = vec![libc::MADV_DONTFORK]), []);
        assert_eq!(parent(&|m| m.flags.grows_down = true), []);
        assert_eq!(parent(&|m| m.flags.key = 1), []);
        assert_eq!(
            parent(&|m| m.kind = MappingKind::PrivateFile { file: 0, offset: 0 }),
            []
        );
    }
}
