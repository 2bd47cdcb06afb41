//! Waiting for tracees, and small things about other threads.

use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;

/// A raw wait status, as waitpid(2) gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitStatus(pub i32);

impl WaitStatus {
    /// The exit code, if it exited.
    #[must_use]
    pub fn exit_code(self) -> Option<i32> {
        libc::WIFEXITED(self.0).then(|| libc::WEXITSTATUS(self.0))
    }

    /// The signal that killed it, if one did.
    #[must_use]
    pub fn termination_signal(self) -> Option<i32> {
        libc::WIFSIGNALED(self.0).then(|| libc::WTERMSIG(self.0))
    }

    /// The signal of a stop (`SIGTRAP` for most ptrace stops), if it is one.
    #[must_use]
    pub fn stop_signal(self) -> Option<i32> {
        libc::WIFSTOPPED(self.0).then(|| libc::WSTOPSIG(self.0))
    }

    /// The ptrace event of a stop, 0 if it has none.
    #[must_use]
    pub fn event(self) -> i32 {
        self.0 >> 16
    }
}

/// Waits for thread or process `tid` (-1: any child) as waitpid(2) with `__WALL`. With `block` false, `None` means
/// that nothing has happened yet. Interruptions by signals are hidden.
pub fn wait(tid: i32, block: bool) -> io::Result<Option<(i32, WaitStatus)>> {
    let mut status = 0;
    let options = libc::__WALL | if block && tid <= 0 { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: `status` is a live integer.
        let result = unsafe { libc::waitpid(tid, &raw mut status, options) };
        if result > 0 {
            return Ok(Some((result, WaitStatus(status))));
        }
        if result == 0 {
            if !block {
                return Ok(None);
            }
            wait_for_any(tid)?;
            continue;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// As [`wait`] with `block`, for a thread whose end is reported as soon as it ends: one that leads no other threads that this
/// one traces. The kernel then looks at `tid` alone, however many children and tracees there are.
///
/// # Errors
/// Those of waitpid(2).
pub fn wait_alone(tid: i32) -> io::Result<WaitStatus> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a live integer.
        if unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) } > 0 {
            return Ok(WaitStatus(status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Waits for any child to end or to be stopped, as waitpid(2) with `__WALL` and `WUNTRACED`.
pub fn wait_for_change() -> io::Result<(i32, WaitStatus)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is a live integer.
        let result = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WUNTRACED) };
        if result > 0 {
            return Ok((result, WaitStatus(status)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Blocks until `tid`, or another child or tracee of this thread, has something to tell.
///
/// Waiting for `tid` alone could last for ever: the end of a thread-group leader is reported only once all its other
/// threads have been reaped (`delay_group_leader` in the kernel's exit.c), and those that we trace are ours to reap. Such
/// a thread is reaped here; a later wait for it fails with `ECHILD`.
fn wait_for_any(tid: i32) -> io::Result<()> {
    const WNOTHREAD: i32 = 0x2000_0000;
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL | WNOTHREAD;
    // SAFETY: the kernel writes one `siginfo_t`, which is live.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted {
            Ok(())
        } else {
            Err(error)
        };
    }
    // SAFETY: all bytes are initialized, and zero is a valid value of every field; a successful wait fills these in.
    let (other, code) = unsafe {
        let info = info.assume_init();
        (info.si_pid(), info.si_code)
    };
    if other == tid {
        return Ok(());
    }
    let has_ended = matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED);
    if has_ended && std::path::Path::new(&format!("/proc/{tid}/task/{other}")).exists() {
        let mut status = 0;
        // SAFETY: `status` is a live integer.
        unsafe { libc::waitpid(other, &raw mut status, libc::__WALL | libc::WNOHANG) };
    } else {
        // Somebody else's business, which stays to be told: it must not keep us busy.
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
    Ok(())
}

/// get_robust_list(2): address and length of a thread's list of robust futexes.
pub fn robust_list(tid: i32) -> io::Result<(u64, u64)> {
    let mut head = 0_u64;
    let mut length = 0_u64;
    // SAFETY: the kernel writes one pointer and one size.
    crate::check(unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            tid,
            &raw mut head,
            &raw mut length,
        )
    })?;
    Ok((head, length))
}

/// sched_getaffinity(2) as the kernel's bit mask, in words, shortened to what the kernel fills in.
pub fn affinity(tid: i32) -> io::Result<Vec<u64>> {
    let mut mask = vec![0_u64; 1024 / 64];
    loop {
        // SAFETY: the kernel writes at most the given bytes.
        let result = crate::check(unsafe {
            libc::syscall(
                libc::SYS_sched_getaffinity,
                tid,
                size_of_val(mask.as_slice()),
                mask.as_mut_ptr(),
            )
        });
        match result {
            Ok(bytes) => {
                mask.truncate((bytes as usize).div_ceil(8));
                return Ok(mask);
            }
            // More CPUs than bits.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) && mask.len() < 1024 => {
                mask = vec![0; mask.len() * 4];
            }
            Err(e) => return Err(e),
        }
    }
}

/// sched_setaffinity(2) with the kernel's bit mask.
pub fn set_affinity(tid: i32, mask: &[u64]) -> io::Result<()> {
    // SAFETY: the kernel reads the given bytes.
    crate::check(unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            tid,
            size_of_val(mask),
            mask.as_ptr(),
        )
    })
    .map(drop)
}

/// The CPU that the calling thread runs on now.
#[must_use]
pub fn current_cpu() -> usize {
    // SAFETY: takes no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Scheduling attributes of a thread (`struct sched_attr`, version 0).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulingAttributes {
    /// Size of this structure.
    pub size: u32,
    /// `SCHED_*`
    pub policy: u32,
    /// `SCHED_FLAG_*`
    pub flags: u64,
    /// Nice value.
    pub nice: i32,
    /// Static priority of the real-time policies.
    pub priority: u32,
    /// Deadline policy: run time in nanoseconds.
    pub runtime: u64,
    /// Deadline policy: deadline in nanoseconds.
    pub deadline: u64,
    /// Deadline policy: period in nanoseconds.
    pub period: u64,
}

/// sched_getattr(2).
pub fn scheduling(tid: i32) -> io::Result<SchedulingAttributes> {
    let mut attributes = SchedulingAttributes::default();
    let size = size_of::<SchedulingAttributes>();
    // SAFETY: the kernel writes at most `size` bytes.
    crate::check(unsafe {
        libc::syscall(libc::SYS_sched_getattr, tid, &raw mut attributes, size, 0)
    })?;
    Ok(attributes)
}

/// sched_setattr(2).
pub fn set_scheduling(tid: i32, attributes: &SchedulingAttributes) -> io::Result<()> {
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        ..*attributes
    };
    // SAFETY: the kernel reads `size` bytes.
    crate::check(unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0) })
        .map(drop)
}

/// ioprio_get(2): I/O scheduling class and priority of a thread.
pub fn io_priority(tid: i32) -> io::Result<u32> {
    // SAFETY: no memory is passed.
    crate::check(unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid) })
        .map(|priority| priority as u32)
}

/// ioprio_set(2): sets I/O scheduling class and priority of a thread.
pub fn set_io_priority(tid: i32, priority: u32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    crate::check(unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, tid, priority) })
        .map(drop)
}

const IOPRIO_WHO_PROCESS: i32 = 1;

/// Closes all descriptors from `first` to `last`, both included, by close_range(2).
///
/// # Safety
/// Nothing that still lives may own one of them.
pub unsafe fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the caller's promise.
    crate::check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(drop)
}

/// Duplicates `fd` to the first free number not below `lowest`, close-on-exec.
pub fn duplicate_above(fd: BorrowedFd<'_>, lowest: i32) -> io::Result<i32> {
    // SAFETY: no memory is passed.
    crate::check(i64::from(unsafe {
        libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest)
    }))
    .map(|fd| fd as i32)
}

/// Duplicates `from` to exactly `to` without close-on-exec, as dup2(2); what was at `to` is closed.
///
/// # Safety
/// Nothing that still lives may own `to`.
pub unsafe fn duplicate_to(from: i32, to: i32) -> io::Result<()> {
    // SAFETY: the caller's promise.
    crate::check(i64::from(unsafe { libc::dup2(from, to) })).map(drop)
}

/// Restricts descriptors that the caller knows by number only: takes ownership of `fd`.
///
/// # Safety
/// `fd` must be open and owned by nobody else.
pub unsafe fn own(fd: i32) -> std::os::fd::OwnedFd {
    // SAFETY: the caller's promise.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

/// Borrows a descriptor known by number.
///
/// # Safety
/// `fd` must stay open for `'a`.
pub unsafe fn borrow<'a>(fd: i32) -> BorrowedFd<'a> {
    // SAFETY: the caller's promise.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// prctl(PR_SET_PDEATHSIG): the signal that the caller gets when the thread that created it ends.
pub fn set_parent_death_signal(signal: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    crate::check(i64::from(unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, signal as u64, 0, 0, 0)
    }))
    .map(drop)
}

/// prctl(PR_SET_NAME): names the calling thread; longer than 15 bytes is cut.
pub fn set_name(name: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: `name` ends with a zero byte.
    crate::check(i64::from(unsafe {
        libc::prctl(libc::PR_SET_NAME, name.as_ptr() as u64, 0, 0, 0)
    }))
    .map(drop)
}

/// Ends the calling process at once, without running anything.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(code) }
}

/// Waits in the kernel for ever; only a signal with its default action ends it. For a child that is about to be traced.
pub fn pause_for_ever() -> ! {
    loop {
        // SAFETY: takes no arguments.
        unsafe { libc::syscall(libc::SYS_pause) };
    }
}

/// Sends `signal` to process `pid`.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    crate::check(i64::from(unsafe { libc::kill(pid, signal) })).map(drop)
}

/// Gives all signals their default disposition and unblocks them, in the calling process and thread.
pub fn default_signals() {
    for signal in 1..=64 {
        // SAFETY: the default disposition needs no handler. Refusals (SIGKILL, SIGSTOP, the C library's own) do not matter.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero set is initialized by sigemptyset.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Marks all descriptors from `first` on to be closed by exec, with close_range(2).
pub fn close_all_on_exec(first: u32) -> io::Result<()> {
    // SAFETY: no memory is passed, and nothing is closed now.
    crate::check(unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    })
    .map(drop)
}
