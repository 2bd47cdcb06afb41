//! Recognizing a file again. A program that maps a file, or that has read half of it, can only go
//! on with the same content; a restart on other content must be refused before any process is
//! created.

use crate::error::{Obstacle, ProcError};
use crate::path::ImagePath;
use rustix::fs::{Stat, Timespec};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What a file with a name was like when the snapshot was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Absolute path.
    pub path: ImagePath,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last change of the content, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Device number. For people: it differs on another machine.
    pub device: u64,
    /// Inode number. For people.
    pub inode: u64,
    /// GNU build id of an ELF file, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
}

impl FileIdentity {
    /// The identity of the file at `path`, whose status is `stat`.
    #[must_use]
    pub fn new(path: ImagePath, stat: &Stat) -> Self {
        Self {
            path,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified_ns: modified_ns(stat),
            device: stat.st_dev,
            inode: stat.st_ino,
            build_id: None,
        }
    }

    /// The same with the build id, if the file has one and may be read. A file that is copied to
    /// another machine often gets another time, but keeps its build id.
    #[must_use]
    pub fn with_build_id(mut self) -> Self {
        self.build_id = File::open(&self.path)
            .and_then(|file| build_id(&file))
            .ok()
            .flatten();
        self
    }

    /// Whether the file at the path is still the one that was seen: the same size, and the same
    /// build id or, for files without one, the same time.
    ///
    /// # Errors
    /// An obstacle that names the file and what has changed.
    pub fn verify(&self, role: &str) -> Result<(), Obstacle> {
        let refuse = |why: String| Obstacle::new(format!("{role} {}", self.path), why);
        let now = match rustix::fs::stat(self.path.as_path()) {
            Ok(stat) => Self::new(self.path.clone(), &stat),
            Err(errno) => return Err(refuse(io::Error::from(errno).to_string())),
        };
        let changed = "it was changed after the snapshot was taken";
        if now.bytes != self.bytes {
            return Err(refuse(format!(
                "{changed}: it had {} bytes and has {} now",
                self.bytes, now.bytes
            )));
        }
        match (&self.build_id, now.modified_ns == self.modified_ns) {
            (_, true) => Ok(()),
            (None, false) => Err(refuse(format!(
                "{changed}: its time of modification is another"
            ))),
            (Some(before), false) => match now.with_build_id().build_id {
                Some(after) if after == *before => Ok(()),
                after => Err(refuse(format!(
                    "{changed}: its build id was {before} and is {}",
                    after.as_deref().unwrap_or("gone")
                ))),
            },
        }
    }
}

/// Time of the last change of the content, in nanoseconds since 1970; the extremes of `i64` stand
/// for times beyond them.
#[must_use]
pub fn modified_ns(stat: &Stat) -> i64 {
    nanoseconds(stat.st_mtime, stat.st_mtime_nsec)
}

/// Time of the last reading of the content, likewise.
#[must_use]
pub(crate) fn read_ns(stat: &Stat) -> i64 {
    nanoseconds(stat.st_atime, stat.st_atime_nsec)
}

fn nanoseconds(seconds: i64, nanoseconds: u64) -> i64 {
    seconds
        .saturating_mul(NANOSECONDS)
        .saturating_add(i64::try_from(nanoseconds).unwrap_or(0))
}

/// For utimensat(2).
pub(crate) fn timespec(ns: i64) -> Timespec {
    Timespec {
        tv_sec: ns.div_euclid(NANOSECONDS),
        tv_nsec: ns.rem_euclid(NANOSECONDS),
    }
}

/// In a second.
const NANOSECONDS: i64 = 1_000_000_000;

/// Whether `path`, looked up by us, leads to the object with this status.
#[must_use]
pub fn leads_to(path: &Path, stat: &Stat) -> bool {
    rustix::fs::lstat(path).is_ok_and(|now| now.st_dev == stat.st_dev && now.st_ino == stat.st_ino)
}

/// Opens a file for reading by a path, saying so on failure.
///
/// # Errors
/// Those of open(2).
pub fn open_for_reading(path: &Path) -> Result<File, ProcError> {
    File::open(path).map_err(ProcError::file("open", path))
}

const ELF64_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const PT_NOTE: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
/// More notes than this are not looked at; linkers put the build id into the first few hundred
/// bytes.
const NOTES: u64 = 64 << 10;

/// The GNU build id of a 64-bit ELF file (elf(5), section "Notes"); `None` for any other file.
///
/// # Errors
/// Those of reading the file.
pub fn build_id(file: &File) -> io::Result<Option<String>> {
    let mut header = [0; ELF64_HEADER];
    match file.read_exact_at(&mut header, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let little_endian_64 = &[0x7f, b'E', b'L', b'F', 2, 1];
    let entry_size = usize::from(u16::from_le_bytes([header[54], header[55]]));
    if !header.starts_with(little_endian_64) || entry_size != PROGRAM_HEADER {
        return Ok(None);
    }
    let table = u64_at(&header, 32);
    let entries = u16::from_le_bytes([header[56], header[57]]);
    for n in 0..u64::from(entries) {
        let mut entry = [0; PROGRAM_HEADER];
        let Some(at) = table.checked_add(n * PROGRAM_HEADER as u64) else {
            return Ok(None);
        };
        if file.read_exact_at(&mut entry, at).is_err() {
            return Ok(None);
        }
        if u32_at(&entry, 0) == PT_NOTE {
            let (at, bytes) = (u64_at(&entry, 8), u64_at(&entry, 32).min(NOTES));
            let mut notes = vec![0; usize::try_from(bytes).unwrap_or(0)];
            if file.read_exact_at(&mut notes, at).is_ok()
                && let Some(id) = find_build_id(&notes)
            {
                return Ok(Some(id));
            }
        }
    }
    Ok(None)
}

fn find_build_id(mut notes: &[u8]) -> Option<String> {
    while notes.len() >= 12 {
        let name_bytes = u32_at(notes, 0) as usize;
        let content_bytes = u32_at(notes, 4) as usize;
        let kind = u32_at(notes, 8);
        let content_at = 12_usize.checked_add(name_bytes.checked_next_multiple_of(4)?)?;
        let content_end = content_at.checked_add(content_bytes)?;
        let name = notes.get(12..12_usize.checked_add(name_bytes)?)?;
        let content = notes.get(content_at..content_end)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" {
            return Some(content.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(content_end.checked_next_multiple_of(4)?..)?;
    }
    None
}

/// Reads a number; the caller has checked that it lies within `bytes`.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn identity(path: &Path) -> FileIdentity {
        let stat = rustix::fs::stat(path).unwrap();
        FileIdentity::new(path.into(), &stat).with_build_id()
    }

    #[test]
    fn a_library_has_a_build_id_and_a_text_none() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps.lines().find_map(|line| {
            line.find("/libc.so")
                .and(line.find('/'))
                .map(|at| &line[at..])
        });
        let id = identity(Path::new(libc.unwrap())).build_id.unwrap();
        assert!(
            id.len() >= 16 && id.bytes().all(|b| b.is_ascii_hexdigit()),
            "{id}"
        );
        assert_eq!(identity(Path::new("/etc/passwd")).build_id, None);
    }

    #[test]
    fn changes_are_told() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"content").unwrap();
        let before = identity(file.path());
        before.verify("file").unwrap();
        file.write_all(b"!").unwrap();
        let obstacle = before.verify("file").unwrap_err();
        assert!(
            obstacle.to_string().contains("had 7 bytes and has 8"),
            "{obstacle}"
        );
        let before = identity(file.path());
        let other_time = std::time::SystemTime::UNIX_EPOCH;
        file.as_file().set_modified(other_time).unwrap();
        assert!(
            before
                .verify("file")
                .unwrap_err()
                .why
                .contains("modification")
        );
        let path = file.path().to_owned();
        drop(file);
        assert!(
            before
                .verify("file")
                .unwrap_err()
                .object
                .contains(path.to_str().unwrap())
        );
    }

    #[test]
    fn a_copied_library_is_the_same_one() {
        let executable = std::env::current_exe().unwrap();
        let copy = tempfile::NamedTempFile::new().unwrap();
        std::fs::copy(executable, copy.path()).unwrap();
        let before = identity(copy.path());
        copy.as_file()
            .set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
        match before.build_id {
            Some(_) => before.verify("library").unwrap(),
            None => assert!(before.verify("library").is_err()),
        }
    }

    #[test]
    fn damaged_notes_are_no_panic() {
        let good = [
            4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, b'G', b'N', b'U', 0, 0xab, 0xcd, 0, 0,
        ];
        assert_eq!(find_build_id(&good).as_deref(), Some("abcd"));
        for end in 0..good.len() {
            let _ = find_build_id(&good[..end]);
        }
        for at in 0..12 {
            let mut bad = good;
            bad[at] = 0xff;
            let _ = find_build_id(&bad);
        }
    }
}
