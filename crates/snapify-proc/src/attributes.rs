//! What processes and threads set about themselves by prctl(2) and its like, apart from privileges.
//!
//! The kernel hands most of it to threads and children that are made later, so that it is mostly the same for all threads;
//! but each thread may change its own.

use crate::error::ProcError;
use crate::ids::Tid;
use crate::procfs::ProcDir;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use serde::{Deserialize, Serialize};
use snapify_sys::process;

/// Attributes of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// `PR_SET_DUMPABLE`
    pub dumpable: u64,
    /// `PR_SET_CHILD_SUBREAPER`
    pub child_subreaper: bool,
    /// `PR_SET_THP_DISABLE`: bit 0 is the switch, bit 1 exempts memory for which huge pages were asked (`MADV_HUGEPAGE`).
    pub no_huge_pages: u64,
    /// `PR_SET_MDWE`: refusal of memory that is written and executed.
    pub no_write_execute: u64,
    /// Which kinds of mappings a core dump holds (`/proc/PID/coredump_filter`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_dump_filter: Option<u32>,
    /// Registrations for membarrier(2), as a mask of the commands that made them.
    #[serde(default)]
    pub barriers: u64,
}

/// Attributes of a thread. Zeros are what threads start with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadAttributes {
    /// I/O scheduling class and priority (ioprio_set(2)).
    pub io_priority: u32,
    /// `PR_SET_PDEATHSIG`: the signal it gets when its parent ends, 0 for none.
    pub parent_death_signal: i32,
    /// Whether reading the time stamp counter is an error (`PR_SET_TSC`).
    pub no_time_stamp: bool,
    /// Whether the `cpuid` instruction is an error (`ARCH_SET_CPUID`).
    pub no_cpuid: bool,
    /// `PR_MCE_KILL`: how it is told of broken memory; 0 early, 1 late, 2 as the system has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken_memory: Option<u64>,
    /// `PR_SET_IO_FLUSHER`
    pub flushes_io: bool,
    /// `PR_SET_SPECULATION_CTRL`: state of store bypass, indirect branches and first-level cache flushes.
    pub speculation: [u64; 3],
}

const PR_GET_THP_DISABLE: i32 = 42;
const PR_SET_THP_DISABLE: i32 = 41;
const PR_GET_MDWE: i32 = 66;
const PR_SET_MDWE: i32 = 65;
const PR_SET_IO_FLUSHER: i32 = 57;
const PR_GET_IO_FLUSHER: i32 = 58;
const PR_GET_SPECULATION_CTRL: i32 = 52;
const PR_SET_SPECULATION_CTRL: i32 = 53;
const PR_MCE_KILL_DEFAULT: u64 = 2;
/// A speculation state that the thread has chosen.
const PR_SPEC_PRCTL: u64 = 1;
const PR_SPEC_ENABLE: u64 = 2;
/// The choices of `PR_SET_SPECULATION_CTRL`.
const PR_SPEC_CHOICES: u64 = 0b1_1110;
const ARCH_GET_CPUID: u64 = 0x1011;
const ARCH_SET_CPUID: u64 = 0x1012;

/// `MEMBARRIER_CMD_GET_REGISTRATIONS` (Linux 6.3).
const GET_REGISTRATIONS: u64 = 1 << 9;
/// The commands of membarrier(2) that register a process: global, private, private with serialized cores, private with
/// restartable sequences.
const REGISTER: [u64; 4] = [1 << 2, 1 << 4, 1 << 6, 1 << 8];

impl Attributes {
    pub(crate) fn capture(tracee: &mut Tracee<'_>, proc: &ProcDir) -> Result<Self, ProcError> {
        let at = tracee.scratch().addr;
        let leader = tracee.leader();
        prctl(tracee, leader, libc::PR_GET_CHILD_SUBREAPER, [at.0, 0, 0])?;
        let child_subreaper = tracee.get::<i32>(at)? != 0;
        let query = [GET_REGISTRATIONS, 0, 0, 0, 0, 0];
        let barriers = unless_unknown(tracee.syscall("membarrier", libc::SYS_membarrier, query))?;
        Ok(Self {
            dumpable: prctl(tracee, leader, libc::PR_GET_DUMPABLE, [0; 3])?,
            child_subreaper,
            no_huge_pages: unless_unknown(prctl(tracee, leader, PR_GET_THP_DISABLE, [0; 3]))?
                .unwrap_or(0),
            no_write_execute: unless_unknown(prctl(tracee, leader, PR_GET_MDWE, [0; 3]))?
                .unwrap_or(0),
            core_dump_filter: core_dump_filter(proc),
            barriers: barriers.unwrap_or(0),
        })
    }

    /// Sets what has no effect on later steps.
    pub(crate) fn restore(
        self,
        tracee: &mut Tracee<'_>,
        ctx: &RestoreContext<'_>,
    ) -> Result<(), ProcError> {
        let leader = tracee.leader();
        if self.child_subreaper {
            prctl(tracee, leader, libc::PR_SET_CHILD_SUBREAPER, [1, 0, 0])?;
        }
        for command in REGISTER
            .into_iter()
            .filter(|command| self.barriers & command != 0)
        {
            let args = [command, 0, 0, 0, 0, 0];
            if let Err(error) = tracee.syscall("membarrier", libc::SYS_membarrier, args) {
                ctx.warn(format!(
                    "its registration for memory barriers is lost: {error}"
                ));
            }
        }
        // The process under construction has been cloned off us and has what we have.
        let present = ProcDir::open(crate::ids::Pid(std::process::id().cast_signed()))
            .ok()
            .and_then(|proc| core_dump_filter(&proc));
        match self.core_dump_filter {
            Some(filter) if present != Some(filter) => write_own(
                tracee,
                "/proc/self/coredump_filter",
                &format!("{filter:#x}"),
                ctx,
            ),
            _ => Ok(()),
        }
    }

    /// Sets what would be in the way before: no page of the image could be made executable any
    /// more, and we could not read its memory.
    pub(crate) fn restore_last(self, tracee: &mut Tracee<'_>) -> Result<(), ProcError> {
        let leader = tracee.leader();
        if self.no_huge_pages != 0 {
            let exempt = self.no_huge_pages & 2;
            prctl(tracee, leader, PR_SET_THP_DISABLE, [1, exempt, 0])?;
        }
        if self.no_write_execute != 0 {
            prctl(tracee, leader, PR_SET_MDWE, [self.no_write_execute, 0, 0])?;
        }
        // Value 2 (core dumps for root only) is the kernel's to give; 0 is the strictest that a
        // program can set.
        let dumpable = u64::from(self.dumpable == 1);
        prctl(tracee, leader, libc::PR_SET_DUMPABLE, [dumpable, 0, 0]).map(drop)
    }
}

impl ThreadAttributes {
    pub(crate) fn capture(tracee: &mut Tracee<'_>, tid: Tid) -> Result<Self, ProcError> {
        let at = tracee.scratch().addr;
        prctl(tracee, tid, libc::PR_GET_PDEATHSIG, [at.0, 0, 0])?;
        let parent_death_signal = tracee.get::<i32>(at)?;
        prctl(tracee, tid, libc::PR_GET_TSC, [at.0, 0, 0])?;
        let no_time_stamp = tracee.get::<i32>(at)? == libc::PR_TSC_SIGSEGV;
        // ENODEV where the processor cannot be told to refuse it.
        let args = [ARCH_GET_CPUID, 0, 0, 0, 0, 0];
        let cpuid = tracee.syscall_in(
            tid,
            "arch_prctl(ARCH_GET_CPUID)",
            libc::SYS_arch_prctl,
            args,
        );
        let broken_memory = unless_unknown(prctl(tracee, tid, libc::PR_MCE_KILL_GET, [0; 3]))?;
        // Who may not ask (EPERM) may not have set it either.
        let flushes_io = unless_unknown(prctl(tracee, tid, PR_GET_IO_FLUSHER, [0; 3]))?;
        let mut speculation = [0; 3];
        for (which, state) in (0..).zip(&mut speculation) {
            let found = unless_unknown(prctl(tracee, tid, PR_GET_SPECULATION_CTRL, [which, 0, 0]))?;
            *state = found.filter(|&state| is_chosen(state)).unwrap_or(0);
        }
        Ok(Self {
            io_priority: process::io_priority(tid.0)
                .map_err(ProcError::ptrace("read I/O priority", tid))?,
            parent_death_signal,
            no_time_stamp,
            no_cpuid: matches!(cpuid, Ok(0)),
            broken_memory: broken_memory.filter(|&policy| policy != PR_MCE_KILL_DEFAULT),
            flushes_io: flushes_io == Some(1),
            speculation,
        })
    }

    /// Sets what only the thread itself can set.
    pub(crate) fn restore(
        &self,
        tracee: &mut Tracee<'_>,
        tid: Tid,
        warn: impl Fn(String),
    ) -> Result<(), ProcError> {
        if self.parent_death_signal != 0 {
            let signal = self.parent_death_signal as u64;
            prctl(tracee, tid, libc::PR_SET_PDEATHSIG, [signal, 0, 0])?;
        }
        if self.no_time_stamp {
            let refuse = libc::PR_TSC_SIGSEGV as u64;
            prctl(tracee, tid, libc::PR_SET_TSC, [refuse, 0, 0])?;
        }
        let or_warn = |result: Result<u64, ProcError>, what: &str| match result {
            Err(ProcError::RemoteSyscall { source, .. }) => {
                warn(format!("thread {tid} comes back without {what}: {source}"));
                Ok(())
            }
            other => other.map(drop),
        };
        if self.no_cpuid {
            let args = [ARCH_SET_CPUID, 0, 0, 0, 0, 0];
            let set = tracee.syscall_in(
                tid,
                "arch_prctl(ARCH_SET_CPUID)",
                libc::SYS_arch_prctl,
                args,
            );
            or_warn(set, "faults of its cpuid instructions")?;
        }
        if let Some(policy) = self.broken_memory {
            let set = prctl(
                tracee,
                tid,
                libc::PR_MCE_KILL,
                [libc::PR_MCE_KILL_SET as u64, policy, 0],
            );
            or_warn(set, "its policy for broken memory")?;
        }
        if self.flushes_io {
            let set = prctl(tracee, tid, PR_SET_IO_FLUSHER, [1, 0, 0]);
            or_warn(set, "its role as I/O flusher")?;
        }
        for (which, &state) in (0..).zip(&self.speculation) {
            if state == 0 {
                continue;
            }
            let present =
                unless_unknown(prctl(tracee, tid, PR_GET_SPECULATION_CTRL, [which, 0, 0]))?;
            if present != Some(state) {
                let choice = state & PR_SPEC_CHOICES;
                let set = prctl(tracee, tid, PR_SET_SPECULATION_CTRL, [which, choice, 0]);
                or_warn(set, "its speculation control")?;
            }
        }
        Ok(())
    }

    /// Sets from outside, after the last remote call, what only concerns scheduling.
    pub(crate) fn schedule(&self, tid: i32, warnings: &mut Vec<String>) {
        if process::io_priority(tid).ok() != Some(self.io_priority)
            && let Err(e) = process::set_io_priority(tid, self.io_priority)
        {
            warnings.push(format!("thread {tid} keeps the caller's I/O priority: {e}"));
        }
    }
}

/// Whether a speculation state is one that the thread has chosen, and not what all have.
fn is_chosen(state: u64) -> bool {
    state & PR_SPEC_PRCTL != 0 && state & PR_SPEC_CHOICES != PR_SPEC_ENABLE
}

fn core_dump_filter(proc: &ProcDir) -> Option<u32> {
    // Absent in kernels that write no core dumps.
    let text = proc.read("coredump_filter").ok()?;
    let mask = crate::procfs::text::unsigned(text.trim_ascii(), 16)?;
    u32::try_from(mask).ok()
}

/// prctl(2) in a thread.
fn prctl(tracee: &mut Tracee<'_>, tid: Tid, what: i32, args: [u64; 3]) -> Result<u64, ProcError> {
    let [a, b, c] = args;
    tracee.syscall_in(tid, "prctl", libc::SYS_prctl, [what as u64, a, b, c, 0, 0])
}

/// Takes the refusals of kernels and processors that do not have an attribute for "it is not set".
fn unless_unknown(result: Result<u64, ProcError>) -> Result<Option<u64>, ProcError> {
    match result {
        Err(ProcError::RemoteSyscall { source, .. })
            if matches!(
                source.raw_os_error(),
                Some(libc::EINVAL | libc::ENODEV | libc::EPERM | libc::ENOSYS)
            ) =>
        {
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Has the process write to a file of `/proc` about itself. A value that cannot be had here is warned of.
///
/// # Errors
/// If the process dies.
pub(crate) fn write_own(
    tracee: &mut Tracee<'_>,
    file: &str,
    text: &str,
    ctx: &RestoreContext<'_>,
) -> Result<(), ProcError> {
    let path = tracee.put_cstr(file)?;
    let content = tracee.scratch().addr.offset(512);
    tracee.write(content, text.as_bytes())?;
    let flags = (libc::O_WRONLY | libc::O_CLOEXEC) as u64;
    let args = [libc::AT_FDCWD as u64, path.0, flags, 0, 0, 0];
    let written = tracee
        .syscall("openat", libc::SYS_openat, args)
        .and_then(|fd| {
            let args = [fd, content.0, text.len() as u64, 0, 0, 0];
            let written = tracee.syscall("write", libc::SYS_write, args);
            tracee.syscall("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
            written
        });
    match written {
        Err(ProcError::RemoteSyscall { source, .. }) => {
            ctx.warn(format!("{file} cannot have {text} here: {source}"));
            Ok(())
        }
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chosen_speculation_is_saved() {
        assert!(!is_chosen(0));
        assert!(!is_chosen(PR_SPEC_PRCTL | PR_SPEC_ENABLE));
        assert!(!is_chosen(PR_SPEC_ENABLE));
        // Disabled for everyone by the system.
        assert!(!is_chosen(4));
        assert!(is_chosen(PR_SPEC_PRCTL | 4) && is_chosen(PR_SPEC_PRCTL | 8));
    }

    #[test]
    fn attributes_of_threads_read_well() {
        let plain: ThreadAttributes = serde_json::from_str("{}").unwrap();
        assert_eq!(plain, ThreadAttributes::default());
    }
}
