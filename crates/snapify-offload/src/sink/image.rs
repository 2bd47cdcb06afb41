//! What the headers of a device image (an ELF shared object) say. Nothing in them is trusted.

const PAGE: u64 = 4096;

/// Program header types (elf(5)).
const PT_LOAD: u32 = 1;
const PT_GNU_RELRO: u32 = 0x6474_e552;
/// Program header flag: writable.
const PF_W: u32 = 2;

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
        let cut = || "it is cut short".to_owned();
        let file = Reader(image);
        if image.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Err("it is no 64-bit ELF file".into());
        }
        let program_headers = file.u64(32).ok_or_else(cut)?;
        let section_headers = file.u64(40).ok_or_else(cut)?;
        let program_count = u64::from(file.u16(56).ok_or_else(cut)?);
        let section_count = u64::from(file.u16(60).ok_or_else(cut)?);
        let names_section = u64::from(file.u16(62).ok_or_else(cut)?);

        let mut layout = Self::default();
        let mut relro = None;
        let mut writable = Vec::new();
        for index in 0..program_count {
            let at = program_headers.checked_add(index * 56).ok_or_else(cut)?;
            let kind = file.u32(at).ok_or_else(cut)?;
            let flags = file.u32(at + 4).ok_or_else(cut)?;
            let address = file.u64(at + 16).ok_or_else(cut)?;
            let bytes = file.u64(at + 40).ok_or_else(cut)?;
            let end = address.checked_add(bytes).filter(|&end| end < 1 << 46);
            let end = end.ok_or("a segment has an absurd address")?;
            match kind {
                PT_LOAD if flags & PF_W != 0 => writable.push((address, end)),
                // The dynamic loader protects whole pages only, rounding the end down.
                PT_GNU_RELRO => relro = Some((address / PAGE * PAGE, end / PAGE * PAGE)),
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
        layout.entries = find_entries(&file, section_headers, section_count, names_section);
        Ok(layout)
    }
}

fn find_entries(file: &Reader<'_>, headers: u64, count: u64, names: u64) -> Option<(u64, u64)> {
    let header = |index: u64| headers.checked_add(index.checked_mul(64)?);
    let strings = file.u64(header(names)?.checked_add(24)?)?;
    (0..count).find_map(|index| {
        let at = header(index)?;
        let name = strings.checked_add(u64::from(file.u32(at)?))?;
        ENTRY_SECTIONS
            .iter()
            .find(|section| file.is_text(name, section))?;
        Some((
            file.u64(at.checked_add(16)?)?,
            file.u64(at.checked_add(32)?)?,
        ))
    })
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn u16(&self, at: u64) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    /// Whether the text and a zero byte stand at `at`.
    fn is_text(&self, at: u64, text: &str) -> bool {
        let Ok(at) = usize::try_from(at) else {
            return false;
        };
        let found = self.0.get(at..).and_then(|rest| rest.get(..=text.len()));
        found.is_some_and(|found| &found[..text.len()] == text.as_bytes() && found[text.len()] == 0)
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
