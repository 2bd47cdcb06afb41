//! What the headers of a device image (an ELF shared object) say. Nothing in them is trusted.

use crate::elf::{Elf, PF_W, PT_GNU_RELRO, PT_LOAD};

const PAGE: u64 = 4096;

/// Sections in which clang lists what can be offloaded to.
const ENTRY_SECTIONS: [&str; 2] = ["omp_offloading_entries", "llvm_offload_entries"];

/// The parts of an image that matter after loading; addresses are relative to where it is loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ImageLayout {
    /// Writable memory that stays writable after relocation: start and bytes, whole pages.
    pub writable: Vec<(u64, u64)>,
    /// The list of offload entries: start and bytes.
    pub entries: Option<(u64, u64)>,
}

impl ImageLayout {
    /// Reads the headers.
    ///
    /// # Errors
    /// In words, if this is no 64-bit little-endian ELF shared object.
    pub fn parse(image: &[u8]) -> Result<Self, String> {
        let file = Elf::new(image).ok_or("it is no 64-bit ELF file")?;
        let mut layout = Self::default();
        let mut relro = None;
        let mut writable = Vec::new();
        for segment in file.segments().ok_or("it is cut short")? {
            let start = segment.address;
            let end = start.checked_add(segment.memory_bytes);
            let end = end
                .filter(|&end| end < 1 << 46)
                .ok_or("a segment has an absurd address")?;
            match segment.kind {
                PT_LOAD if segment.flags & PF_W != 0 => writable.push((start, end)),
                // The dynamic loader protects whole pages only, rounding the end down.
                PT_GNU_RELRO => relro = Some((start / PAGE * PAGE, end / PAGE * PAGE)),
                _ => {}
            }
        }
        for (start, end) in writable {
            let mut start = start / PAGE * PAGE;
            let end = end.next_multiple_of(PAGE);
            if let Some((from, to)) = relro
                && from <= start
                && to > start
            {
                start = to.min(end);
            }
            if start < end {
                layout.writable.push((start, end - start));
            }
        }
        let is_list = |name: &[u8]| ENTRY_SECTIONS.iter().any(|list| list.as_bytes() == name);
        layout.entries = file
            .sections()
            .find(|section| file.text(section.name).is_some_and(is_list))
            .map(|section| (section.address, section.bytes));
        Ok(layout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test program itself is an ELF file.
    fn image() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn writable_memory_is_found() {
        let layout = ImageLayout::parse(&image()).unwrap();
        assert!(!layout.writable.is_empty());
        assert!(
            layout
                .writable
                .iter()
                .all(|&(start, bytes)| { start % PAGE == 0 && bytes % PAGE == 0 && bytes > 0 })
        );
        assert_eq!(layout.entries, None);
    }

    #[test]
    fn damaged_headers_are_refused_or_harmless() {
        let image = image();
        assert!(ImageLayout::parse(b"").is_err());
        assert!(ImageLayout::parse(b"#!/bin/sh").is_err());
        for length in 0..4096.min(image.len()) {
            let _ = ImageLayout::parse(&image[..length]);
        }
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            let mut headers = image[..4096].to_vec();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                headers[6 + (seed >> 40) as usize % 900] = (seed >> 33) as u8;
            }
            let _ = ImageLayout::parse(&headers);
        }
    }
}
