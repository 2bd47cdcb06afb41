//! What the headers of executables and shared libraries tell (elf(5)). Nothing in them is trusted.

use crate::error::{Code, Failure, Result};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
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
        let file = Reader(image);
        let invalid = || Failure::new(Code::InvalidFile, "it is no executable and no library");
        if !image.starts_with(b"\x7fELF") || image.len() < 64 {
            return Err(invalid());
        }
        let (kind, machine) = (file.u16(16), file.u16(18));
        if image.get(4..6) != Some(&[2, 1]) || machine != Some(X86_64) {
            return Err(Failure::new(
                Code::BinaryAndHardwareMismatch,
                "it was built for another kind of machine",
            ));
        }
        if !matches!(kind, Some(ET_EXEC | ET_DYN)) {
            return Err(invalid());
        }
        file.read().ok_or_else(invalid)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn read(&self) -> Option<Image> {
        let headers = self.u64(32)?;
        let count = u64::from(self.u16(56)?);
        let mut loads = Vec::new();
        let mut dynamic = None;
        for index in 0..count {
            let at = headers.checked_add(index * 56)?;
            let (offset, address) = (self.u64(at + 8)?, self.u64(at + 16)?);
            let bytes = self.u64(at + 32)?;
            match self.u32(at)? {
                PT_LOAD => loads.push((address, bytes, offset)),
                PT_DYNAMIC => dynamic = Some((offset, bytes)),
                _ => {}
            }
        }
        let mut image = Image::default();
        let Some((start, bytes)) = dynamic else {
            return Some(image);
        };
        let entries: Vec<(u64, u64)> = (0..bytes / 16)
            .map_while(|index| {
                let at = start.checked_add(index * 16)?;
                Some((self.u64(at)?, self.u64(at + 8)?))
            })
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
        let strings = loads.iter().find_map(|&(address, bytes, offset)| {
            let into = strings.checked_sub(address).filter(|into| *into < bytes)?;
            offset.checked_add(into)
        })?;
        for (tag, value) in entries {
            let name = || self.text(strings.checked_add(value)?);
            match tag {
                DT_NEEDED => image.needed.push(name()?),
                DT_SONAME => image.soname = Some(name()?),
                _ => {}
            }
        }
        Some(image)
    }

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

    fn text(&self, at: u64) -> Option<String> {
        let rest = self.0.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().take(4096).position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
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
