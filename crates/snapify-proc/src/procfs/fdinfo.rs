//! `/proc/PID/fdinfo/FD` (proc_pid_fdinfo(5)): offset and flags of a descriptor, its file locks,
//! and what eventfds, epoll and inotify instances and pidfds hold.

use super::text::{self, Malformed};
use serde::{Deserialize, Serialize};

/// What a fdinfo file says.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FdInfo {
    /// File offset in bytes.
    pub pos: i64,
    /// Open flags as of open(2), with `O_CLOEXEC` where the descriptor closes on exec.
    pub flags: u32,
    /// Counter of an eventfd.
    pub eventfd_count: Option<u64>,
    /// Whether an eventfd was made with `EFD_SEMAPHORE`.
    pub eventfd_semaphore: bool,
    /// Clock and setting of a timerfd.
    pub timerfd: Option<TimerFdInfo>,
    /// The signals that a signalfd takes (bit n-1 is signal n).
    pub signalfd_mask: Option<u64>,
    /// What an epoll instance watches.
    pub epoll: Vec<EpollEntry>,
    /// What an inotify instance watches.
    pub inotify: Vec<InotifyEntry>,
    /// The process of a pidfd as the reader sees it: 0 if it lies outside of his PID namespace, -1 if it has ended and was
    /// waited for.
    pub pidfd: Option<i32>,
    /// Locks held through this descriptor.
    pub locks: Vec<Lock>,
}

/// Clock and setting of a timerfd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TimerFdInfo {
    /// Clock id.
    pub clock: i32,
    /// Expiries that have not been read.
    pub ticks: u64,
    /// Flags of timerfd_settime(2).
    pub flags: u32,
    /// Seconds and nanoseconds until it expires; zero if it is not armed.
    pub left: (u64, u64),
    /// Seconds and nanoseconds between expiries.
    pub interval: (u64, u64),
}

/// One registration of an epoll instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollEntry {
    /// The descriptor number it was registered under. It may be another file's by now.
    pub fd: i32,
    /// Event mask.
    pub events: u32,
    /// User data.
    pub data: u64,
    /// Inode number of the watched file.
    pub inode: u64,
    /// Device number of the watched file in the kernel's own encoding.
    pub device: u32,
}

/// One watch of an inotify instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InotifyEntry {
    /// The watch descriptor.
    pub wd: i32,
    /// Inode number of what is watched.
    pub inode: u64,
    /// Device number of its file system in the kernel's own encoding.
    pub device: u32,
    /// Events and options (`IN_*`).
    pub mask: u32,
}

/// Which call made a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// flock(2): belongs to the open file description.
    Flock,
    /// fcntl(2) `F_SETLK`: belongs to the process.
    Posix,
    /// fcntl(2) `F_OFD_SETLK`: belongs to the open file description.
    Ofd,
    /// A lease or delegation.
    Lease,
}

/// A file lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Which call made it.
    pub kind: LockKind,
    /// Exclusive (write) or shared (read).
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Last byte; `None` reaches to the end of the file, wherever that will be.
    pub last: Option<u64>,
    /// A lease that the kernel is taking back, and what will be left of it.
    pub breaking: Option<Breaking>,
}

/// What is left of a lease when its holder gives way to who opens the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Breaking {
    /// A shared one: the other wants to read.
    Shared,
    /// None: the other wants to write.
    Nothing,
}

impl FdInfo {
    /// Reads a fdinfo file.
    ///
    /// # Errors
    /// If offset or flags are missing, or a line that we use has an unknown form.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let mut info = Self::default();
        let (mut seen_pos, mut seen_flags) = (false, false);
        for line in text::lines(text) {
            let Some((key, value)) = text::key_value(line) else {
                continue;
            };
            let malformed = |what| Malformed::new(what, line);
            match key {
                b"pos" => {
                    info.pos = text::signed(value).ok_or_else(|| malformed("file offset"))?;
                    seen_pos = true;
                }
                b"flags" => {
                    info.flags = text::unsigned(value, 8)
                        .and_then(|flags| u32::try_from(flags).ok())
                        .ok_or_else(|| malformed("open flags"))?;
                    seen_flags = true;
                }
                b"eventfd-count" => {
                    info.eventfd_count =
                        Some(text::unsigned(value, 16).ok_or_else(|| malformed("eventfd count"))?);
                }
                b"eventfd-semaphore" => info.eventfd_semaphore = value != b"0",
                b"sigmask" => {
                    let mask = text::unsigned(value, 16);
                    info.signalfd_mask = Some(mask.ok_or_else(|| malformed("signal mask"))?);
                }
                b"clockid" | b"ticks" | b"settime flags" | b"it_value" | b"it_interval" => {
                    let timer = info.timerfd.get_or_insert_default();
                    timer_field(timer, key, value).ok_or_else(|| malformed("timer"))?;
                }
                b"tfd" => info
                    .epoll
                    .push(epoll_entry(line).ok_or_else(|| malformed("epoll entry"))?),
                _ if key.starts_with(b"inotify wd") => info
                    .inotify
                    .push(inotify_entry(line).ok_or_else(|| malformed("inotify watch"))?),
                b"Pid" => {
                    let pid = text::signed(value).and_then(|pid| i32::try_from(pid).ok());
                    info.pidfd = Some(pid.ok_or_else(|| malformed("process of a pidfd"))?);
                }
                b"lock" => info
                    .locks
                    .extend(lock(value).ok_or_else(|| malformed("file lock"))?),
                _ => {}
            }
        }
        match (seen_pos, seen_flags) {
            (true, true) => Ok(info),
            _ => Err(Malformed::new("offset and flags", text)),
        }
    }
}

/// One of the lines of a timerfd; times look like `(0, 49406829)`.
fn timer_field(timer: &mut TimerFdInfo, key: &[u8], value: &[u8]) -> Option<()> {
    let time = || {
        let inner = value.strip_prefix(b"(")?.strip_suffix(b")")?;
        let (seconds, nanoseconds) = text::cut(inner, b',')?;
        let nanoseconds = text::unsigned(nanoseconds.trim_ascii(), 10)?;
        Some((text::unsigned(seconds, 10)?, nanoseconds))
    };
    match key {
        b"clockid" => timer.clock = text::id(value)?,
        b"ticks" => timer.ticks = text::unsigned(value, 10)?,
        b"settime flags" => timer.flags = u32::try_from(text::unsigned(value, 8)?).ok()?,
        b"it_value" => timer.left = time()?,
        _ => timer.interval = time()?,
    }
    Some(())
}

/// `tfd:        5 events:       19 data:                5  pos:0 ino:61af sdev:7`
fn epoll_entry(line: &[u8]) -> Option<EpollEntry> {
    // Values may touch their key ("ino:61af") or not ("events:       19"): make every colon a
    // blank.
    let spaced: Vec<u8> = line
        .iter()
        .map(|&b| if b == b':' { b' ' } else { b })
        .collect();
    let words: Vec<&[u8]> = text::words(&spaced).collect();
    let value = |name: &[u8]| {
        let at = words.iter().step_by(2).position(|word| *word == name)?;
        words.get(2 * at + 1).copied()
    };
    Some(EpollEntry {
        fd: text::id(value(b"tfd")?)?,
        events: u32::try_from(text::unsigned(value(b"events")?, 16)?).ok()?,
        data: text::unsigned(value(b"data")?, 16)?,
        inode: text::unsigned(value(b"ino")?, 16)?,
        device: u32::try_from(text::unsigned(value(b"sdev")?, 16)?).ok()?,
    })
}

/// `inotify wd:3 ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8 ...`, all in hexadecimal.
fn inotify_entry(line: &[u8]) -> Option<InotifyEntry> {
    let value = |name: &[u8]| {
        let number = text::words(line).find_map(|word| word.strip_prefix(name))?;
        text::unsigned(number, 16)
    };
    Some(InotifyEntry {
        wd: i32::try_from(value(b"wd:")?).ok()?,
        inode: value(b"ino:")?,
        device: u32::try_from(value(b"sdev:")?).ok()?,
        mask: u32::try_from(value(b"mask:")?).ok()?,
    })
}

/// `1: FLOCK  ADVISORY  WRITE 2634 08:01:1234 0 EOF`; a waiter (`1: -> FLOCK ...`) is no lock.
fn lock(value: &[u8]) -> Option<Option<Lock>> {
    let words: Vec<&[u8]> = text::words(value).collect();
    if words.get(1) == Some(&&b"->"[..]) {
        return Some(None);
    }
    let [_, kind, state, mode, _, _, start, last] = words[..] else {
        return None;
    };
    Some(Some(Lock {
        kind: match kind {
            b"FLOCK" => LockKind::Flock,
            b"POSIX" | b"ACCESS" => LockKind::Posix,
            b"OFDLCK" => LockKind::Ofd,
            b"LEASE" | b"DELEG" => LockKind::Lease,
            _ => return None,
        },
        exclusive: mode == b"WRITE",
        start: text::unsigned(start, 10)?,
        last: if last == b"EOF" {
            None
        } else {
            Some(text::unsigned(last, 10)?)
        },
        breaking: match (state, mode) {
            (b"BREAKING", b"READ") => Some(Breaking::Shared),
            (b"BREAKING", _) => Some(Breaking::Nothing),
            _ => None,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoll_entries_are_read() {
        let text = b"pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t61af\n\
tfd:        5 events:       19 data:     7f0000000005  pos:0 ino:61af sdev:7\n\
tfd:      120 events: 80000001 data: ffffffffffffffff  pos:12 ino:1 sdev:800001\n";
        let info = FdInfo::parse(text).unwrap();
        assert_eq!(info.flags, 0o2_000_002);
        assert_eq!(
            info.epoll,
            [
                EpollEntry {
                    fd: 5,
                    events: 0x19,
                    data: 0x7f00_0000_0005,
                    inode: 0x61af,
                    device: 7
                },
                EpollEntry {
                    fd: 120,
                    events: 0x8000_0001,
                    data: u64::MAX,
                    inode: 1,
                    device: 0x80_0001
                },
            ]
        );
    }

    #[test]
    fn eventfd_counts_are_hexadecimal() {
        let info = FdInfo::parse(
            b"pos:\t0\nflags:\t04002\neventfd-count:               1a\neventfd-id: 3\neventfd-semaphore: 1\n",
        );
        let info = info.unwrap();
        assert_eq!(info.eventfd_count, Some(0x1a));
        assert!(info.eventfd_semaphore);
    }

    #[test]
    fn timers_and_signal_masks_are_read() {
        let info = FdInfo::parse(
            b"pos:\t0\nflags:\t02\nclockid: 1\nticks: 3\nsettime flags: 01\n\
it_value: (4, 49406829)\nit_interval: (1, 0)\n",
        );
        let expected = TimerFdInfo {
            clock: 1,
            ticks: 3,
            flags: 1,
            left: (4, 49_406_829),
            interval: (1, 0),
        };
        assert_eq!(info.unwrap().timerfd, Some(expected));
        let info = FdInfo::parse(b"pos:\t0\nflags:\t02\nsigmask:\t0000000000000200\n");
        assert_eq!(info.unwrap().signalfd_mask, Some(0x200));
        assert!(FdInfo::parse(b"pos:\t0\nflags:\t02\nit_value: 4, 5\n").is_err());
    }

    #[test]
    fn locks_are_read() {
        let info = FdInfo::parse(
            b"pos:\t-1\nflags:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 2634 08:01:1234 0 EOF\n\
lock:\t2: POSIX  ADVISORY  READ 12 00:2f:99 10 19\nlock:\t3: -> OFDLCK ADVISORY  READ -1 00:2f:99 0 EOF\n",
        );
        let info = info.unwrap();
        assert_eq!(
            info.locks,
            [
                Lock {
                    kind: LockKind::Flock,
                    exclusive: true,
                    start: 0,
                    last: None,
                    breaking: None
                },
                Lock {
                    kind: LockKind::Posix,
                    exclusive: false,
                    start: 10,
                    last: Some(19),
                    breaking: None
                },
            ]
        );
        assert_eq!(info.pos, -1);
    }

    #[test]
    fn leases_that_are_taken_back_are_told() {
        let info = FdInfo::parse(
            b"pos:\t0\nflags:\t0\nlock:\t1: LEASE  BREAKING  READ  2634 08:01:1234 0 EOF\n",
        );
        let lock = info.unwrap().locks[0];
        assert_eq!(
            (lock.kind, lock.breaking),
            (LockKind::Lease, Some(Breaking::Shared))
        );
    }

    #[test]
    fn watches_and_pidfds_are_read() {
        let info = FdInfo::parse(
            b"pos:\t0\nflags:\t00\ninotify wd:a ino:9e7e sdev:800013 mask:800afce ignored_mask:0 fhandle-bytes:8\n",
        );
        let expected = InotifyEntry {
            wd: 10,
            inode: 0x9e7e,
            device: 0x80_0013,
            mask: 0x800_afce,
        };
        assert_eq!(info.unwrap().inotify, [expected]);
        let info = FdInfo::parse(b"pos:\t0\nflags:\t02\nPid:\t-1\nNSpid:\t-1\n");
        assert_eq!(info.unwrap().pidfd, Some(-1));
        assert!(FdInfo::parse(b"pos:\t0\nflags:\t0\ninotify wd:1 ino:zz sdev:1 mask:1\n").is_err());
    }

    #[test]
    fn missing_and_odd_fields_are_refused() {
        assert!(FdInfo::parse(b"pos:\t0\n").is_err());
        assert!(FdInfo::parse(b"pos:\t0\nflags:\t09\n").is_err());
        assert!(
            FdInfo::parse(b"pos:\t0\nflags:\t0\ntfd: 1 events: zz data: 0 ino:1 sdev:1\n").is_err()
        );
        assert!(FdInfo::parse(b"pos:\t0\nflags:\t0\nlock:\t1: FLOCK\n").is_err());
    }
}
