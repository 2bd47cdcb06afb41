//! The headers of ELF files (elf(5)): executables, libraries and device images. Nothing in them is trusted: what lies outside of
//! the file reads as nothing.

/// Program header type: a part that is loaded.
pub const PT_LOAD: u32 = 1;
/// Program header type: where the dynamic section is.
pub const PT_DYNAMIC: u32 = 2;
/// Program header type: memory that is read-only after relocation.
pub const PT_GNU_RELRO: u32 = 0x6474_e552;
/// Program header flag: writable.
pub const PF_W: u32 = 2;

/// Bytes of a program header.
const PROGRAM_HEADER: u64 = 56;
/// Bytes of a section header.
const SECTION_HEADER: u64 = 64;
/// Longest text that is read.
const MAX_TEXT: usize = 4096;

/// A 64-bit little-endian ELF file in memory.
#[derive(Clone, Copy, Debug)]
pub struct Elf<'a>(&'a [u8]);

/// A program header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// What it describes: `PT_LOAD` and so on.
    pub kind: u32,
    /// `PF_W` and so on.
    pub flags: u32,
    /// Where its bytes are in the file.
    pub offset: u64,
    /// Where they are loaded to.
    pub address: u64,
    /// How many the file has.
    pub file_bytes: u64,
    /// How many there are in memory.
    pub memory_bytes: u64,
}

/// A section header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SectionHeader {
    /// Where its name is in the file.
    pub name: u64,
    /// Where it is loaded to.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

impl<'a> Elf<'a> {
    /// Whether the file begins as an ELF file of any kind does.
    #[must_use]
    pub fn is_elf(file: &[u8]) -> bool {
        file.starts_with(b"\x7fELF")
    }

    /// Looks at a file; nothing if it is no 64-bit little-endian ELF file.
    #[must_use]
    pub fn new(file: &'a [u8]) -> Option<Self> {
        file.starts_with(b"\x7fELF\x02\x01").then_some(Self(file))
    }

    /// What it is: an executable, a shared object. Nothing if the file is cut off before that.
    #[must_use]
    pub fn kind(self) -> Option<u16> {
        self.u16(16)
    }

    /// The machine that it is for.
    #[must_use]
    pub fn machine(self) -> Option<u16> {
        self.u16(18)
    }

    /// The program headers; nothing if the file is cut off in them.
    #[must_use]
    pub fn segments(self) -> Option<Vec<Segment>> {
        let headers = self.u64(32)?;
        let count = u64::from(self.u16(56)?);
        (0..count)
            .map(|index| {
                let at = headers.checked_add(index * PROGRAM_HEADER)?;
                let field = |offset| self.u64(at.checked_add(offset)?);
                Some(Segment {
                    kind: self.u32(at)?,
                    flags: self.u32(at.checked_add(4)?)?,
                    offset: field(8)?,
                    address: field(16)?,
                    file_bytes: field(32)?,
                    memory_bytes: field(40)?,
                })
            })
            .collect()
    }

    /// The section headers, as many as are in the file.
    pub fn sections(self) -> impl Iterator<Item = SectionHeader> + 'a {
        let headers = self.u64(40);
        let names = u64::from(self.u16(62).unwrap_or(0));
        let count = u64::from(self.u16(60).unwrap_or(0));
        let header = move |index: u64| headers?.checked_add(index * SECTION_HEADER);
        let strings = header(names).and_then(|at| self.u64(at.checked_add(24)?));
        (0..count).map_while(move |index| {
            let at = header(index)?;
            Some(SectionHeader {
                name: strings?.checked_add(u64::from(self.u32(at)?))?,
                address: self.u64(at.checked_add(16)?)?,
                bytes: self.u64(at.checked_add(32)?)?,
            })
        })
    }

    /// Two bytes as a number.
    #[must_use]
    pub fn u16(self, at: u64) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    /// Four bytes as a number.
    #[must_use]
    pub fn u32(self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    /// Eight bytes as a number.
    #[must_use]
    pub fn u64(self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    /// The bytes up to the next zero byte.
    #[must_use]
    pub fn text(self, at: u64) -> Option<&'a [u8]> {
        let rest = self.0.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().take(MAX_TEXT).position(|byte| *byte == 0)?;
        Some(&rest[..end])
    }

    fn bytes<const N: usize>(self, at: u64) -> Option<[u8; N]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test program itself is an ELF file.
    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    fn read(file: &[u8]) {
        if let Some(elf) = Elf::new(file) {
            let _ = (elf.kind(), elf.machine(), elf.segments());
            for section in elf.sections() {
                let _ = elf.text(section.name);
            }
        }
    }

    #[test]
    fn headers_are_read() {
        let own = own();
        let elf = Elf::new(&own).unwrap();
        assert!(Elf::is_elf(&own) && elf.machine() == Some(62));
        let segments = elf.segments().unwrap();
        assert!(segments.iter().any(|s| s.kind == PT_LOAD));
        let text = elf
            .sections()
            .find(|s| elf.text(s.name) == Some(b".text"))
            .expect("a section of code");
        assert!(text.bytes > 0 && text.address > 0);
    }

    #[test]
    fn damaged_headers_do_no_harm() {
        let own = own();
        for length in 0..4096.min(own.len()) {
            read(&own[..length]);
        }
        let mut seed = 1_u64;
        for _ in 0..5_000 {
            let mut headers = own[..4096].to_vec();
            for _ in 0..3 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                headers[6 + (seed >> 40) as usize % 900] = (seed >> 33) as u8;
            }
            read(&headers);
        }
    }
}
