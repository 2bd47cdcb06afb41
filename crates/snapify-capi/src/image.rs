//! What the headers of executables and shared libraries tell (elf(5)). Nothing in them is trusted.

use crate::error::{Code, Failure, Result};
use snapify_offload::elf::{Elf, PT_DYNAMIC, PT_LOAD};

const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;
const X86_64: u16 = 62;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;

/// What is of interest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Image {
    /// What a shared library calls itself.
    pub soname: Option<String>,
    /// The libraries that it needs.
    pub needed: Vec<String>,
}

impl Image {
    /// Reads the headers.
    ///
    /// # Errors
    /// `InvalidFile`, or `BinaryAndHardwareMismatch` if it is for another machine.
    pub fn parse(image: &[u8]) -> Result<Self> {
        let invalid = || Failure::new(Code::InvalidFile, "it is no executable and no library");
        if !Elf::is_elf(image) || image.len() < 64 {
            return Err(invalid());
        }
        let file = Elf::new(image).filter(|file| file.machine() == Some(X86_64));
        let file = file.ok_or_else(|| {
            Failure::new(
                Code::BinaryAndHardwareMismatch,
                "it was built for another kind of machine",
            )
        })?;
        let kind = file.kind();
        if !matches!(kind, Some(ET_EXEC | ET_DYN)) {
            return Err(invalid());
        }
        Self::read(file).ok_or_else(invalid)
    }

    fn read(file: Elf<'_>) -> Option<Self> {
        let segments = file.segments()?;
        let mut image = Self::default();
        // Of several the last one counts.
        let dynamic = segments.iter().rfind(|segment| segment.kind == PT_DYNAMIC);
        let Some(dynamic) = dynamic else {
            return Some(image);
        };
        let entries: Vec<(u64, u64)> = (0..dynamic.file_bytes / 16)
            .map_while(|index| {
                let at = dynamic.offset.checked_add(index * 16)?;
                Some((file.u64(at)?, file.u64(at.checked_add(8)?)?))
            })
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
        let mut loaded = segments.iter().filter(|segment| segment.kind == PT_LOAD);
        let strings = loaded.find_map(|part| {
            let into = strings.checked_sub(part.address);
            let into = into.filter(|into| *into < part.file_bytes)?;
            part.offset.checked_add(into)
        })?;
        for (tag, value) in entries {
            let name = || {
                let text = file.text(strings.checked_add(value)?)?;
                Some(String::from_utf8_lossy(text).into_owned())
            };
            match tag {
                DT_NEEDED => image.needed.push(name()?),
                DT_SONAME => image.soname = Some(name()?),
                _ => {}
            }
        }
        Some(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_as_the_loader_reads_them() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let image = Image::parse(&own).unwrap();
        assert!(
            image.needed.iter().any(|name| name == "libc.so.6"),
            "{image:?}"
        );
        assert_eq!(image.soname, None);
    }

    #[test]
    fn what_is_no_image_is_told_from_one_of_another_machine() {
        let code = |image: &[u8]| Image::parse(image).map_err(|failure| failure.code);
        assert_eq!(code(b""), Err(Code::InvalidFile));
        assert_eq!(code(b"#!/bin/sh\n"), Err(Code::InvalidFile));
        let mut own = std::fs::read("/proc/self/exe").unwrap();
        own[18] = 183;
        assert_eq!(code(&own), Err(Code::BinaryAndHardwareMismatch));
    }

    #[test]
    fn damaged_headers_do_no_harm() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        for length in 0..4096.min(own.len()) {
            let _ = Image::parse(&own[..length]);
        }
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            let mut headers = own[..4096].to_vec();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                headers[20 + (seed >> 40) as usize % 900] = (seed >> 33) as u8;
            }
            let _ = Image::parse(&headers);
        }
    }
}
