//! `/proc/PID/status` and `/proc/PID/task/TID/status` (proc_pid_status(5)).

use super::text::{self, Malformed};
use crate::ids::{Pid, Tid};
use serde::{Deserialize, Serialize};

/// Real, effective, saved and file-system id of a user or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IdSet {
    /// The real id.
    pub real: u32,
    /// The effective id.
    pub effective: u32,
    /// The saved set-id.
    pub saved: u32,
    /// The id that file accesses are checked against.
    pub fs: u32,
}

impl IdSet {
    /// The one id that all four are, if they are.
    #[must_use]
    pub fn single(&self) -> Option<u32> {
        let same = self.real == self.effective && self.real == self.saved && self.real == self.fs;
        same.then_some(self.real)
    }
}

/// The five capability sets as bit masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CapSets {
    /// Inheritable over execve.
    pub inheritable: u64,
    /// Permitted.
    pub permitted: u64,
    /// Effective.
    pub effective: u64,
    /// Bounding set.
    pub bounding: u64,
    /// Ambient set.
    pub ambient: u64,
}

/// What a status file says, as far as a checkpoint needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// State letter: R, S, D, T, t, Z, X, I.
    pub state: u8,
    /// The file mode creation mask; absent for zombies.
    pub umask: Option<u32>,
    /// Thread-group id as the reader of this `/proc` sees it.
    pub tgid: Pid,
    /// Id of this thread as the reader of this `/proc` sees it.
    pub tid: Tid,
    /// Parent as the reader sees it.
    pub parent: Pid,
    /// Who traces this thread, 0 for nobody.
    pub tracer: i32,
    /// User ids as the reader's user namespace sees them.
    pub uid: IdSet,
    /// Group ids.
    pub gid: IdSet,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The thread's id in each nested PID namespace, outermost (the reader's) first.
    pub ns_tid: Vec<i32>,
    /// The thread-group id in each nested namespace.
    pub ns_tgid: Vec<i32>,
    /// Process group in each nested namespace; 0 where it lies outside.
    pub ns_pgrp: Vec<i32>,
    /// Session in each nested namespace; 0 where it lies outside.
    pub ns_session: Vec<i32>,
    /// Number of threads of the process.
    pub threads: u32,
    /// Signals pending for this thread alone (bit n-1 is signal n).
    pub pending: u64,
    /// Signals pending for the process.
    pub shared_pending: u64,
    /// Blocked signals.
    pub blocked: u64,
    /// Ignored signals.
    pub ignored: u64,
    /// Caught signals.
    pub caught: u64,
    /// Capabilities.
    pub caps: CapSets,
    /// Whether `PR_SET_NO_NEW_PRIVS` is on.
    pub no_new_privs: bool,
    /// Seccomp mode: 0 none, 1 strict, 2 filter.
    pub seccomp: u32,
    /// Number of its filters (Linux 5.9).
    pub seccomp_filters: u32,
    /// Whether a CET shadow stack is on (`x86_Thread_features: shstk`).
    pub shadow_stack: bool,
    /// Whether this is a kernel thread.
    pub kernel_thread: bool,
    /// KiB of mappings that are locked in memory (mlock(2)).
    pub locked_kib: u64,
    /// KiB of huge TLB pages.
    pub huge_tlb_kib: u64,
}

impl Status {
    /// Reads a status file.
    ///
    /// # Errors
    /// If a field that every supported kernel writes is missing or is no number.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(Vec::with_capacity(64));
        fields
            .0
            .extend(text::lines(text).filter_map(text::key_value));
        let flag = |name| fields.optional(name).is_some_and(|value| value != b"0");
        Ok(Self {
            state: *fields
                .value(b"State", "State")?
                .first()
                .ok_or_else(|| Malformed::new("State", text))?,
            umask: fields
                .optional(b"Umask")
                .and_then(|value| text::unsigned(value, 8))
                .and_then(|mask| u32::try_from(mask).ok()),
            tgid: Pid(fields.id(b"Tgid", "Tgid")?),
            tid: Tid(fields.id(b"Pid", "Pid")?),
            parent: Pid(fields.id(b"PPid", "PPid")?),
            tracer: fields.id(b"TracerPid", "TracerPid")?,
            uid: fields.id_set(b"Uid", "Uid")?,
            gid: fields.id_set(b"Gid", "Gid")?,
            groups: fields.unsigned_list(b"Groups"),
            ns_tid: fields.id_list(b"NSpid"),
            ns_tgid: fields.id_list(b"NStgid"),
            ns_pgrp: fields.id_list(b"NSpgid"),
            ns_session: fields.id_list(b"NSsid"),
            threads: fields
                .optional(b"Threads")
                .and_then(|value| text::unsigned(value, 10))
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(0),
            // A zombie has no signal lines: it has none pending that could matter.
            pending: fields.mask(b"SigPnd"),
            shared_pending: fields.mask(b"ShdPnd"),
            blocked: fields.mask(b"SigBlk"),
            ignored: fields.mask(b"SigIgn"),
            caught: fields.mask(b"SigCgt"),
            caps: CapSets {
                inheritable: fields.mask(b"CapInh"),
                permitted: fields.mask(b"CapPrm"),
                effective: fields.mask(b"CapEff"),
                bounding: fields.mask(b"CapBnd"),
                ambient: fields.mask(b"CapAmb"),
            },
            no_new_privs: flag(b"NoNewPrivs"),
            seccomp: fields
                .optional(b"Seccomp")
                .and_then(|value| text::unsigned(value, 10))
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(0),
            seccomp_filters: fields
                .optional(b"Seccomp_filters")
                .and_then(|value| text::unsigned(value, 10))
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(0),
            shadow_stack: fields
                .optional(b"x86_Thread_features")
                .is_some_and(|value| text::words(value).any(|word| word == b"shstk")),
            kernel_thread: flag(b"Kthread"),
            locked_kib: fields.kib(b"VmLck"),
            huge_tlb_kib: fields.kib(b"HugetlbPages"),
        })
    }

    /// The thread's id in its own, innermost PID namespace: the number it knows itself by.
    #[must_use]
    pub fn inner_tid(&self) -> Tid {
        self.ns_tid.last().map_or(self.tid, |&id| Tid(id))
    }

    /// The thread-group id in the innermost PID namespace.
    #[must_use]
    pub fn inner_tgid(&self) -> Pid {
        self.ns_tgid.last().map_or(self.tgid, |&id| Pid(id))
    }

    /// The process group in the innermost PID namespace; 0 if it lies outside of it.
    #[must_use]
    pub fn inner_pgrp(&self) -> i32 {
        self.ns_pgrp.last().copied().unwrap_or(0)
    }

    /// The session in the innermost PID namespace; 0 if it lies outside of it.
    #[must_use]
    pub fn inner_session(&self) -> i32 {
        self.ns_session.last().copied().unwrap_or(0)
    }

    /// Whether the thread is dead: a zombie or about to go.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// The `Key: value` lines. Searched from the front: a `Name:` line holds no colon-newline trick,
/// because the kernel escapes newlines in thread names.
struct Fields<'a>(Vec<(&'a [u8], &'a [u8])>);

impl<'a> Fields<'a> {
    fn optional(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.0
            .iter()
            .find(|(key, _)| *key == name)
            .map(|&(_, value)| value)
    }

    fn value(&self, name: &[u8], what: &'static str) -> Result<&'a [u8], Malformed> {
        self.optional(name).ok_or_else(|| Malformed::new(what, b""))
    }

    fn id(&self, name: &[u8], what: &'static str) -> Result<i32, Malformed> {
        let value = self.value(name, what)?;
        text::id(value).ok_or_else(|| Malformed::new(what, value))
    }

    fn id_set(&self, name: &[u8], what: &'static str) -> Result<IdSet, Malformed> {
        let value = self.value(name, what)?;
        match self.unsigned_list(name)[..] {
            [real, effective, saved, fs, ..] => Ok(IdSet {
                real,
                effective,
                saved,
                fs,
            }),
            _ => Err(Malformed::new(what, value)),
        }
    }

    fn unsigned_list(&self, name: &[u8]) -> Vec<u32> {
        let value = self.optional(name).unwrap_or_default();
        text::words(value)
            .filter_map(|word| text::unsigned(word, 10).and_then(|n| u32::try_from(n).ok()))
            .collect()
    }

    fn id_list(&self, name: &[u8]) -> Vec<i32> {
        text::words(self.optional(name).unwrap_or_default())
            .filter_map(text::id)
            .collect()
    }

    /// `123 kB`; nothing for what has no memory.
    fn kib(&self, name: &[u8]) -> u64 {
        let number = text::words(self.optional(name).unwrap_or_default()).next();
        number
            .and_then(|number| text::unsigned(number, 10))
            .unwrap_or(0)
    }

    fn mask(&self, name: &[u8]) -> u64 {
        self.optional(name)
            .and_then(|value| text::unsigned(value, 16))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"Name:\twork er\\n\nUmask:\t0027\nState:\tS (sleeping)\nTgid:\t500\nNgid:\t0\n\
Pid:\t501\nPPid:\t1\nTracerPid:\t0\nUid:\t1000\t1000\t1000\t1000\nGid:\t100\t100\t100\t7\n\
FDSize:\t64\nGroups:\t4 24 100 \nNStgid:\t500\t30\t2\nNSpid:\t501\t31\t3\nNSpgid:\t500\t0\t0\n\
NSsid:\t400\t0\t0\nKthread:\t0\nThreads:\t12\nSigPnd:\t0000000000000002\nShdPnd:\t0000000000000200\n\
SigBlk:\tfffffffe7ffbfeff\nSigIgn:\t0000000000001000\nSigCgt:\t0000000180000440\n\
CapInh:\t0\nCapPrm:\t1\nCapEff:\t2\nCapBnd:\t000001ffffffffff\nCapAmb:\t4\nNoNewPrivs:\t1\nSeccomp:\t2\n\
x86_Thread_features:\tshstk wrss \nVmLck:\t      12 kB\nHugetlbPages:\t    2048 kB\n";

    #[test]
    fn a_nested_thread_is_read() {
        let status = Status::parse(SAMPLE).unwrap();
        assert_eq!(status.state, b'S');
        assert_eq!(status.umask, Some(0o27));
        assert_eq!(
            (status.tgid, status.tid, status.parent),
            (Pid(500), Tid(501), Pid(1))
        );
        assert_eq!((status.inner_tgid(), status.inner_tid()), (Pid(2), Tid(3)));
        assert_eq!((status.inner_pgrp(), status.inner_session()), (0, 0));
        assert_eq!(status.uid.single(), Some(1000));
        assert_eq!(status.gid.single(), None);
        assert_eq!(status.groups, [4, 24, 100]);
        assert_eq!(status.blocked, 0xffff_fffe_7ffb_feff);
        assert_eq!((status.pending, status.shared_pending), (2, 0x200));
        assert_eq!((status.caps.permitted, status.caps.ambient), (1, 4));
        assert!(
            status.no_new_privs
                && status.shadow_stack
                && !status.kernel_thread
                && !status.is_dead()
        );
        assert_eq!((status.threads, status.seccomp), (12, 2));
        assert_eq!((status.locked_kib, status.huge_tlb_kib), (12, 2048));
    }

    #[test]
    fn our_own_status_is_read() {
        let status = Status::parse(&std::fs::read("/proc/self/status").unwrap()).unwrap();
        assert_eq!(status.tgid.0, std::process::id().cast_signed());
        assert!(status.threads >= 1 && status.umask.is_some());
    }

    #[test]
    fn missing_fields_are_named() {
        let error = Status::parse(b"State:\tR\nTgid:\tx\n").unwrap_err();
        assert_eq!(error.to_string(), "no Tgid in \"x\"");
        assert!(Status::parse(b"").is_err());
        assert!(Status::parse(b"State:\n").is_err());
    }

    #[test]
    fn cut_off_text_is_no_panic() {
        for end in 0..SAMPLE.len() {
            let _ = Status::parse(&SAMPLE[..end]);
        }
    }
}
