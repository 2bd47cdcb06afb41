//! What `/proc` says about a process: parsers that never panic on odd text, and [`ProcDir`], which
//! reads one process's files through one open directory, so that a number that the kernel gives to
//! a new process meanwhile is an error and not a mix of two processes.

pub mod fdinfo;
pub mod limits;
pub mod maps;
pub mod stat;
pub mod status;
pub mod text;
pub mod timers;

use crate::error::ProcError;
use crate::ids::{Pid, RemoteFd, Tid};
use crate::path::ImagePath;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat as FileStat};
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// The open `/proc/PID` directory of a process.
#[derive(Debug)]
pub struct ProcDir {
    pid: Pid,
    dir: OwnedFd,
}

impl ProcDir {
    /// Opens the directory of process `pid`.
    ///
    /// # Errors
    /// If there is no such process (or it is hidden from us).
    pub fn open(pid: Pid) -> Result<Self, ProcError> {
        let path = PathBuf::from(format!("/proc/{pid}"));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => Ok(Self { pid, dir }),
            Err(errno) => Err(ProcError::Proc {
                path,
                source: errno.into(),
            }),
        }
    }

    /// Whose directory it is.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The directory itself.
    #[must_use]
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    fn error(&self, name: impl Display, source: impl Into<io::Error>) -> ProcError {
        ProcError::Proc {
            path: format!("/proc/{}/{name}", self.pid).into(),
            source: source.into(),
        }
    }

    /// Opens the file `name` for reading.
    ///
    /// # Errors
    /// Those of openat(2): gone, not ours.
    pub fn open_file(&self, name: &str) -> Result<File, ProcError> {
        rustix::fs::openat(
            &self.dir,
            name,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map(File::from)
        .map_err(|errno| self.error(name, errno))
    }

    /// The whole content of the file `name`.
    ///
    /// # Errors
    /// Those of open and read; `ESRCH` once the process is gone.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, ProcError> {
        let mut text = Vec::with_capacity(8 << 10);
        self.open_file(name)?
            .read_to_end(&mut text)
            .map_err(|source| self.error(name, source))?;
        Ok(text)
    }

    fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Result<T, text::Malformed>,
    ) -> Result<T, ProcError> {
        parse(&self.read(name)?).map_err(|malformed| self.error(name, malformed))
    }

    /// Status of the thread-group leader.
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is malformed.
    pub fn status(&self) -> Result<status::Status, ProcError> {
        self.parsed("status", status::Status::parse)
    }

    /// Status of one thread.
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is malformed.
    pub fn thread_status(&self, tid: Tid) -> Result<status::Status, ProcError> {
        self.parsed(&format!("task/{tid}/status"), status::Status::parse)
    }

    /// Stat of the thread-group leader.
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is malformed.
    pub fn stat(&self) -> Result<stat::Stat, ProcError> {
        self.parsed("stat", stat::Stat::parse)
    }

    /// Mappings, without their flags.
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is malformed.
    pub fn maps(&self) -> Result<Vec<maps::Mapping>, ProcError> {
        self.parsed("maps", maps::parse)
    }

    /// Mappings with their flags. The kernel walks all page tables for this: some 30 ns for every 4
    /// KiB page in memory, so read it once.
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is malformed.
    pub fn smaps(&self) -> Result<Vec<maps::Mapping>, ProcError> {
        self.parsed("smaps", maps::parse)
    }

    /// POSIX timers.
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is malformed.
    pub fn timers(&self) -> Result<Vec<timers::Timer>, ProcError> {
        self.parsed("timers", timers::parse)
    }

    /// Resource limits.
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is malformed.
    pub fn limits(&self) -> Result<[limits::Limit; limits::RESOURCES], ProcError> {
        self.parsed("limits", limits::parse)
    }

    /// Execution domain and its flags (personality(2)).
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is no number.
    pub fn personality(&self) -> Result<u32, ProcError> {
        self.parsed("personality", |text| {
            text::unsigned(text.trim_ascii(), 16)
                .and_then(|flags| u32::try_from(flags).ok())
                .ok_or_else(|| text::Malformed::new("personality", text))
        })
    }

    /// A file that holds one decimal number, as `oom_score_adj`.
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is no number.
    pub fn number(&self, name: &str) -> Result<i64, ProcError> {
        self.parsed(name, |text| {
            text::signed(text.trim_ascii()).ok_or_else(|| text::Malformed::new("number", text))
        })
    }

    /// The auxiliary vector, as raw bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn auxv(&self) -> Result<Vec<u8>, ProcError> {
        self.read("auxv")
    }

    /// The arguments, as the memory of the process shows them.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn cmdline(&self) -> Result<Vec<ImagePath>, ProcError> {
        let text = self.read("cmdline")?;
        let text = text.strip_suffix(b"\0").unwrap_or(&text);
        Ok(text.split(|&b| b == 0).map(ImagePath::from_bytes).collect())
    }

    /// Target of a symbolic link: `exe`, `cwd`, `root`, `ns/mnt`, `fd/3`.
    ///
    /// # Errors
    /// Those of readlinkat(2).
    pub fn link(&self, name: &str) -> Result<ImagePath, ProcError> {
        match rustix::fs::readlinkat(&self.dir, name, Vec::with_capacity(256)) {
            Ok(target) => Ok(ImagePath::from_bytes(target.into_bytes())),
            Err(errno) => Err(self.error(name, errno)),
        }
    }

    /// Status of what a link leads to. For `fd/N`, `exe`, `cwd` the kernel jumps to the open object
    /// itself, so this works for removed files, sockets and pipes.
    ///
    /// # Errors
    /// Those of fstatat(2).
    pub fn stat_of(&self, name: &str) -> Result<FileStat, ProcError> {
        rustix::fs::statat(&self.dir, name, AtFlags::empty())
            .map_err(|errno| self.error(name, errno))
    }

    /// Offset, flags and more of a descriptor.
    ///
    /// # Errors
    /// As [`Self::read`], or if the text is malformed.
    pub fn fdinfo(&self, fd: RemoteFd) -> Result<fdinfo::FdInfo, ProcError> {
        self.parsed(&format!("fdinfo/{fd}"), fdinfo::FdInfo::parse)
    }

    /// All threads, in the order of their ids as we see them.
    ///
    /// # Errors
    /// Those of reading the `task` directory.
    pub fn threads(&self) -> Result<Vec<Tid>, ProcError> {
        Ok(self.numbered("task")?.into_iter().map(Tid).collect())
    }

    /// All open descriptors in ascending order.
    ///
    /// # Errors
    /// Those of reading the `fd` directory: not ours, gone.
    pub fn fds(&self) -> Result<Vec<RemoteFd>, ProcError> {
        Ok(self.numbered("fd")?.into_iter().map(RemoteFd).collect())
    }

    /// Children of all threads, zombies included.
    ///
    /// # Errors
    /// As [`Self::read`]. A thread that ends meanwhile is passed over.
    pub fn children(&self) -> Result<Vec<Pid>, ProcError> {
        let mut children = Vec::new();
        for tid in self.threads()? {
            // Threads end at any time while the process runs; the process's end shows in threads()
            // above.
            let Ok(text) = self.read(&format!("task/{tid}/children")) else {
                continue;
            };
            children.extend(text::words(&text).filter_map(text::id).map(Pid));
        }
        Ok(children)
    }

    fn numbered(&self, name: &str) -> Result<Vec<i32>, ProcError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&self.dir, name, flags, Mode::empty())
            .and_then(Dir::new)
            .map_err(|errno| self.error(name, errno))?;
        let mut numbers = Vec::new();
        for entry in dir {
            let entry = entry.map_err(|errno| self.error(name, errno))?;
            numbers.extend(text::id(entry.file_name().to_bytes()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn ourselves() -> ProcDir {
        ProcDir::open(Pid(std::process::id().cast_signed())).unwrap()
    }

    #[test]
    fn our_own_files_are_read() {
        let us = ourselves();
        let status = us.status().unwrap();
        assert_eq!(status.tgid, us.pid());
        assert!(us.threads().unwrap().contains(&us.pid().leader()));
        assert!(us.maps().unwrap().len() > 5);
        assert_eq!(
            us.link("cwd").unwrap().as_path(),
            std::env::current_dir().unwrap()
        );
        assert_eq!(us.cmdline().unwrap().len(), std::env::args_os().count());
        assert_eq!(us.auxv().unwrap().len() % 16, 0);
        us.personality().unwrap();
        us.timers().unwrap();
        us.children().unwrap();
        us.number("oom_score_adj").unwrap();
    }

    #[test]
    fn descriptors_are_seen_even_of_removed_files() {
        let us = ourselves();
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, b"12345").unwrap();
        let fd = RemoteFd(file.as_raw_fd());
        assert!(us.fds().unwrap().contains(&fd));
        let info = us.fdinfo(fd).unwrap();
        assert_eq!(info.pos, 5);
        assert_eq!(
            info.flags & libc::O_CLOEXEC.cast_unsigned(),
            libc::O_CLOEXEC.cast_unsigned()
        );
        let stat = us.stat_of(&format!("fd/{fd}")).unwrap();
        assert_eq!((stat.st_size, stat.st_nlink), (5, 0));
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_path() {
        let error = ProcDir::open(Pid(i32::MAX)).unwrap_err();
        assert!(error.to_string().contains("/proc/2147483647"), "{error}");
    }
}
