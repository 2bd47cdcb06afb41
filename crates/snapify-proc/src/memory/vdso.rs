//! The vDSO: code and data that the kernel puts into every process, and that cannot be made from an image.
//!
//! At restore the fresh process's own is moved to where the image had it, so it must be the same code: the same kernel
//! on the same kind of CPU. Since Linux 6.14 it is three mappings, `[vvar]`, `[vvar_vclock]` and `[vdso]`, one after the
//! other.

use super::image::{MappingImage, MappingKind, MemoryImage};
use crate::error::Obstacle;
use crate::procfs::maps::Mapping;
use std::fs;

/// The names of the mappings that belong together.
const NAMES: [&str; 3] = ["[vvar]", "[vvar_vclock]", "[vdso]"];

/// Whether a mapping of that name is part of the group.
#[must_use]
pub fn is_part(name: &[u8]) -> bool {
    NAMES.iter().any(|known| known.as_bytes() == name)
}

/// A hash (FNV-1a, 64 bits) of the vDSO's code, to recognize it again; not against forgery.
#[must_use]
pub fn hash(code: &[u8]) -> u64 {
    code.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// One mapping of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The parts of the group among mappings.
pub(crate) fn parts(maps: &[Mapping]) -> Vec<Part> {
    maps.iter()
        .filter(|m| is_part(&m.name))
        .map(|m| Part {
            name: String::from_utf8_lossy(&m.name).into_owned(),
            start: m.start.0,
            end: m.end.0,
        })
        .collect()
}

/// The parts in an image.
pub(crate) fn image_parts(image: &MemoryImage) -> Vec<Part> {
    let part = |m: &MappingImage| match &m.kind {
        MappingKind::Kernel { name } => Some(Part {
            name: name.clone(),
            start: m.start.0,
            end: m.end.0,
        }),
        _ => None,
    };
    image.mappings.iter().filter_map(part).collect()
}

/// Names, sizes and distances, which must be the same in both: the parts as if the first began at 0.
fn form(parts: &[Part]) -> Vec<Part> {
    let base = parts.first().map_or(0, |part| part.start);
    let shifted = |part: &Part| Part {
        name: part.name.clone(),
        start: part.start - base,
        end: part.end - base,
    };
    parts.iter().map(shifted).collect()
}

/// Compares the image's vDSO with the one of this process, which every process here has.
pub(crate) fn preflight(image: &MemoryImage) -> Option<Obstacle> {
    let wanted = image_parts(image);
    if wanted.is_empty() {
        return None;
    }
    let hint = "restart it under the kernel, and on the kind of CPU, that it was saved under";
    let refuse = |why: &str| Some(Obstacle::new("vDSO", why).with_hint(hint));
    let Some((parts, code)) = ours() else {
        return refuse("this system does not show its own");
    };
    if form(&parts) != form(&wanted) {
        return refuse("its mappings have another form here");
    }
    if hash(&code) != image.vdso_hash {
        return refuse("its code is another here");
    }
    None
}

fn ours() -> Option<(Vec<Part>, Vec<u8>)> {
    let maps = crate::procfs::maps::parse(&fs::read("/proc/self/maps").ok()?).ok()?;
    let parts = parts(&maps);
    let vdso = parts.iter().find(|part| part.name == "[vdso]")?;
    let mut code = vec![0; usize::try_from(vdso.end - vdso.start).ok()?];
    snapify_sys::vm::read_exact(std::process::id() as i32, vdso.start, &mut code).ok()?;
    Some((parts, code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_one() {
        let (parts, code) = ours().unwrap();
        assert_eq!(parts.last().unwrap().name, "[vdso]");
        assert_ne!(hash(&code), hash(&code[1..]));
        let moved: Vec<_> = parts
            .iter()
            .map(|part| Part {
                name: part.name.clone(),
                start: part.start + 4096,
                end: part.end + 4096,
            })
            .collect();
        assert_eq!(form(&parts), form(&moved));
    }
}
