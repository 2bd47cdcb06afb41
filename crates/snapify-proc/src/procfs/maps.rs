//! `/proc/PID/maps` and `/proc/PID/smaps` (proc_pid_maps(5), proc_pid_smaps(5)): the mappings of a
//! process, from smaps with the flags that maps does not show.

use super::text::{self, Malformed};
use crate::ids::RemoteAddr;
use std::fmt;

/// One mapping (VMA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: RemoteAddr,
    /// First address behind it.
    pub end: RemoteAddr,
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// `MAP_SHARED`.
    pub shared: bool,
    /// Offset into the file in bytes.
    pub offset: u64,
    /// Device number (major, minor) of the file, (0, 0) for none.
    pub device: (u32, u32),
    /// Inode number of the file, 0 for none.
    pub inode: u64,
    /// Path, `[name]` or nothing, escapes undone; a removed file's path ends in ` (deleted)`.
    pub name: Vec<u8>,
    /// The `VmFlags:` of smaps; `None` if read from maps.
    pub flags: Option<VmFlags>,
    /// Memory protection key, 0 if none was ever set.
    pub pkey: u32,
    /// Size of its pages in bytes; only smaps shows it.
    pub page_bytes: u64,
}

const DELETED: &[u8] = b" (deleted)";

impl Mapping {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.end.0 - self.start.0
    }

    /// `PROT_*` bits.
    #[must_use]
    pub fn prot(&self) -> i32 {
        let bit = |on, bit| if on { bit } else { 0 };
        bit(self.read, libc::PROT_READ)
            | bit(self.write, libc::PROT_WRITE)
            | bit(self.exec, libc::PROT_EXEC)
    }

    /// Whether a file backs it (removed ones and shared anonymous memory included: the kernel keeps
    /// that in a file). The first System V segment of an IPC namespace has the inode number 0.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.inode != 0 || self.name.first() == Some(&b'/')
    }

    /// Size of its pages in bytes, if they are huge TLB pages.
    #[must_use]
    pub fn huge_page(&self) -> Option<u64> {
        let huge = self.flags.unwrap_or_default().has(VmFlags::HUGE_TLB);
        huge.then_some(self.page_bytes)
    }

    /// Whether the name says that the file was removed. A file may also be *called* so: its link
    /// count tells.
    #[must_use]
    pub fn marked_deleted(&self) -> bool {
        self.is_file() && self.name.ends_with(DELETED)
    }

    /// The name without the mark of removal.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        if self.marked_deleted() {
            &self.name[..self.name.len() - DELETED.len()]
        } else {
            &self.name
        }
    }
}

macro_rules! vm_flags {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $code:literal;)*) => {
        impl VmFlags {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*
            const CODES: &'static [(&'static [u8; 2], Self)] = &[$(($code, Self::$name)),*];
        }
    };
}

/// The `VmFlags:` line of smaps.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct VmFlags(u64);

vm_flags! {
    /// May be made writable.
    MAY_WRITE = 0, b"mw";
    /// Grows down (stack).
    GROWS_DOWN = 1, b"gd";
    /// Pure PFN range: device memory.
    PFN_MAP = 2, b"pf";
    /// Locked in memory.
    LOCKED = 3, b"lo";
    /// Memory-mapped I/O.
    IO = 4, b"io";
    /// `MADV_SEQUENTIAL`.
    SEQUENTIAL = 5, b"sr";
    /// `MADV_RANDOM`.
    RANDOM = 6, b"rr";
    /// `MADV_DONTFORK`.
    DONT_COPY = 7, b"dc";
    /// Does not grow by mremap.
    DONT_EXPAND = 8, b"de";
    /// Counted against the overcommit limit.
    ACCOUNT = 9, b"ac";
    /// `MAP_NORESERVE`.
    NO_RESERVE = 10, b"nr";
    /// Huge TLB pages.
    HUGE_TLB = 11, b"ht";
    /// `MAP_SYNC` of a DAX file.
    SYNC = 12, b"sf";
    /// `MADV_WIPEONFORK`.
    WIPE_ON_FORK = 13, b"wf";
    /// `MADV_DONTDUMP`.
    DONT_DUMP = 14, b"dd";
    /// Mixed device and ordinary pages.
    MIXED_MAP = 15, b"mm";
    /// `MADV_HUGEPAGE`.
    HUGE_PAGE = 16, b"hg";
    /// `MADV_NOHUGEPAGE`.
    NO_HUGE_PAGE = 17, b"nh";
    /// `MADV_MERGEABLE`.
    MERGEABLE = 18, b"mg";
    /// Registered with userfaultfd for missing pages.
    UFFD_MISSING = 19, b"um";
    /// Registered with userfaultfd for write protection.
    UFFD_WP = 20, b"uw";
    /// Registered with userfaultfd for minor faults.
    UFFD_MINOR = 21, b"ui";
    /// Shadow stack.
    SHADOW_STACK = 22, b"ss";
    /// Sealed by mseal(2).
    SEALED = 23, b"sl";
    /// `MAP_DROPPABLE`.
    DROPPABLE = 24, b"dp";
    /// Locked as soon as touched (`MLOCK_ONFAULT`).
    LOCK_ON_FAULT = 25, b"lf";
    /// May have guard regions (shown since Linux 6.18).
    GUARDED = 26, b"gu";
}

impl VmFlags {
    /// Whether all of `other` are set.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Reads the value of a `VmFlags:` line. Codes that mean nothing to us (`rd`, `mr`, ...) are
    /// left out.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        let known = |word: &[u8]| {
            Self::CODES
                .iter()
                .find(|(code, _)| code[..] == *word)
                .map_or(0, |(_, f)| f.0)
        };
        Self(text::words(value).fold(0, |flags, word| flags | known(word)))
    }
}

impl std::ops::BitOr for VmFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for VmFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::CODES.iter().filter(|(_, flag)| self.has(*flag));
        f.debug_list()
            .entries(names.map(|(code, _)| code.escape_ascii().to_string()))
            .finish()
    }
}

/// Reads a maps or smaps file.
///
/// # Errors
/// If a mapping's line has an unknown form or a range that is empty or reversed.
pub fn parse(text: &[u8]) -> Result<Vec<Mapping>, Malformed> {
    let mut mappings: Vec<Mapping> = Vec::with_capacity(text.len() / 1024 + 16);
    for line in text::lines(text) {
        // A mapping's line begins with a lower-case hexadecimal digit, a key of smaps with a
        // capital letter.
        if line[0].is_ascii_uppercase() {
            let (Some(last), Some((key, value))) = (mappings.last_mut(), text::key_value(line))
            else {
                return Err(Malformed::new("mapping", line));
            };
            match key {
                b"VmFlags" => last.flags = Some(VmFlags::parse(value)),
                b"ProtectionKey" => {
                    last.pkey = text::unsigned(value, 10)
                        .and_then(|key| u32::try_from(key).ok())
                        .ok_or_else(|| Malformed::new("protection key", line))?;
                }
                b"KernelPageSize" => {
                    let kilobytes = text::words(value)
                        .next()
                        .and_then(|number| text::unsigned(number, 10))
                        .ok_or_else(|| Malformed::new("page size", line))?;
                    last.page_bytes = kilobytes.saturating_mul(1024);
                }
                _ => {}
            }
        } else {
            mappings.push(mapping(line).ok_or_else(|| Malformed::new("mapping", line))?);
        }
    }
    Ok(mappings)
}

/// `7f0a1000-7f0a2000 r-xp 00001000 fd:01 12345                     /usr/lib/libc.so.6`
fn mapping(line: &[u8]) -> Option<Mapping> {
    let (range, rest) = text::cut(line, b' ')?;
    let (perms, rest) = text::cut(rest, b' ')?;
    let (offset, rest) = text::cut(rest, b' ')?;
    let (device, rest) = text::cut(rest, b' ')?;
    // The inode is followed by blanks up to a column, then the name; both are missing where there
    // is none.
    let end = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
    let (inode, padded) = rest.split_at(end);
    let name = padded.trim_ascii_start();

    let (start, end) = text::cut(range, b'-')?;
    let (start, end) = (text::unsigned(start, 16)?, text::unsigned(end, 16)?);
    let (major, minor) = text::cut(device, b':')?;
    let number = |word| text::unsigned(word, 16).and_then(|n| u32::try_from(n).ok());
    let [read, write, exec, shared] = *perms else {
        return None;
    };
    (start < end).then_some(Mapping {
        start: RemoteAddr(start),
        end: RemoteAddr(end),
        read: read == b'r',
        write: write == b'w',
        exec: exec == b'x',
        // Old kernels write S and P for mappings that may be shared later: none of them is
        // supported.
        shared: shared == b's',
        offset: text::unsigned(offset, 16)?,
        device: (number(major)?, number(minor)?),
        inode: text::unsigned(inode, 10)?,
        name: text::unescape(name),
        flags: None,
        pkey: 0,
        page_bytes: 4096,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"55d0c000-55d0e000 r-xp 00001000 fd:01 12345                      /bin/a b\n\
7f00-7f10 rw-s 00000000 00:01 77                         /dev/zero (deleted)\n\
7f20-7f30 ---p 00000000 00:00 0 \n7ff0-7fff rw-p 00000000 00:00 0                          [stack]\n";

    #[test]
    fn maps_lines_are_read() {
        let maps = parse(MAPS).unwrap();
        assert_eq!(maps.len(), 4);
        assert_eq!(maps[0].name, b"/bin/a b");
        assert_eq!(
            (maps[0].device, maps[0].inode, maps[0].offset),
            ((0xfd, 1), 12345, 0x1000)
        );
        assert_eq!(maps[0].prot(), libc::PROT_READ | libc::PROT_EXEC);
        assert!(maps[1].shared && maps[1].marked_deleted());
        assert_eq!(maps[1].path(), b"/dev/zero");
        let first_segment = b"1000-2000 rw-s 00000000 00:01 0     /SYSV00000000 (deleted)\n";
        let segment = &parse(first_segment).unwrap()[0];
        assert!(segment.is_file() && segment.marked_deleted());
        assert!(maps[2].name.is_empty() && !maps[2].is_file() && maps[2].prot() == 0);
        assert_eq!(maps[3].name, b"[stack]");
        assert_eq!(maps[3].bytes(), 0xf);
    }

    #[test]
    fn our_own_smaps_agree_with_our_maps() {
        let smaps = parse(&std::fs::read("/proc/self/smaps").unwrap()).unwrap();
        assert!(smaps.iter().all(|mapping| mapping.flags.is_some()));
        let stack = smaps
            .iter()
            .find(|mapping| mapping.name == b"[stack]")
            .unwrap();
        assert!(
            stack
                .flags
                .unwrap()
                .has(VmFlags::GROWS_DOWN | VmFlags::MAY_WRITE)
        );
        let maps = parse(&std::fs::read("/proc/self/maps").unwrap()).unwrap();
        assert!(
            maps.iter()
                .any(|mapping| mapping.start == stack.start && mapping.flags.is_none())
        );
    }

    #[test]
    fn smaps_keys_belong_to_the_mapping_above() {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \nSize: 4 kB\nKernelPageSize:     2048 kB\nProtectionKey:         3\nVmFlags: rd wr dc lo zz \n";
        let maps = parse(text).unwrap();
        assert_eq!((maps[0].pkey, maps[0].page_bytes), (3, 2 << 20));
        let flags = maps[0].flags.unwrap();
        assert!(
            flags.has(VmFlags::DONT_COPY) && flags.has(VmFlags::LOCKED) && !flags.has(VmFlags::IO)
        );
        assert!(parse(b"VmFlags: rd\n").is_err());
    }

    #[test]
    fn odd_lines_are_refused() {
        for odd in [
            &b"2000-1000 rw-p 00000000 00:00 0 \n"[..],
            b"1000-2000 rw-p 0 00:00\n",
            b"1000-2000 rw 00000000 00:00 0 \n",
            b"1000-2000 rw-p 00000000 0000 0 \n",
            b"10000000000000000-2 rw-p 00000000 00:00 0 \n",
            b"\xff\xfe\n",
        ] {
            assert!(parse(odd).is_err(), "{}", odd.escape_ascii());
        }
    }

    #[test]
    fn cut_off_text_is_no_panic() {
        for end in 0..MAPS.len() {
            let _ = parse(&MAPS[..end]);
        }
    }
}
