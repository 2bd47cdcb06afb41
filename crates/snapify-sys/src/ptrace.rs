//! ptrace(2) requests for tracees attached with `PTRACE_SEIZE`.
//!
//! All of them must be made by the thread that attached; the kernel answers `ESRCH` otherwise,
//! as it does for a tracee that has died or runs.

use std::io;
use std::mem::MaybeUninit;

/// Bytes of the kernel's `siginfo_t`, which is opaque here: `si_signo` is its first `i32`.
pub const SIGINFO_BYTES: usize = 128;

/// One `siginfo_t` as the kernel lays it out.
pub type RawSiginfo = [u8; SIGINFO_BYTES];

/// Register set of the general-purpose registers (`NT_PRSTATUS`).
pub const NT_PRSTATUS: u32 = 1;
/// Register set of the extended state in the layout of XSAVE (`NT_X86_XSTATE`).
pub const NT_X86_XSTATE: u32 = 0x202;
/// Register set of the user-mode shadow stack (`NT_X86_SHSTK`, Linux 6.6).
pub const NT_X86_SHSTK: u32 = 0x204;

/// `PTRACE_EVENT_STOP`: the stop of an interrupted tracee, of a new one, and group-stop.
pub const EVENT_STOP: i32 = 128;
/// The signal of a stop at the entry or the exit of a system call, with [`OPTION_SYSGOOD`].
pub const CALL_STOP: i32 = libc::SIGTRAP | 0x80;
/// `PTRACE_EVENT_CLONE`.
pub const EVENT_CLONE: i32 = libc::PTRACE_EVENT_CLONE;

/// Option: threads that the tracee creates are attached too, and start stopped.
pub const OPTION_TRACE_CLONE: u64 = libc::PTRACE_O_TRACECLONE as u64;
/// Children that the tracee forks are traced too.
pub const OPTION_TRACE_FORK: u64 = libc::PTRACE_O_TRACEFORK as u64;
/// Option: stops at system calls are reported with [`CALL_STOP`].
pub const OPTION_SYSGOOD: u64 = libc::PTRACE_O_TRACESYSGOOD as u64;
/// Option: the tracee dies with its tracer.
pub const OPTION_EXIT_KILL: u64 = libc::PTRACE_O_EXITKILL as u64;

const GETSIGMASK: libc::c_int = 0x420a;
const SETSIGMASK: libc::c_int = 0x420b;
const PEEKSIGINFO: libc::c_int = 0x4209;
const GET_RSEQ_CONFIGURATION: libc::c_int = 0x420f;
const PEEKSIGINFO_SHARED: u32 = 1;

/// General-purpose registers of an x86-64 thread (`struct user_regs_struct`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// r15
    pub r15: u64,
    /// r14
    pub r14: u64,
    /// r13
    pub r13: u64,
    /// r12
    pub r12: u64,
    /// rbp
    pub rbp: u64,
    /// rbx
    pub rbx: u64,
    /// r11
    pub r11: u64,
    /// r10
    pub r10: u64,
    /// r9
    pub r9: u64,
    /// r8
    pub r8: u64,
    /// rax: result of the system call the thread is in, if `orig_rax` is not negative.
    pub rax: u64,
    /// rcx
    pub rcx: u64,
    /// rdx
    pub rdx: u64,
    /// rsi
    pub rsi: u64,
    /// rdi
    pub rdi: u64,
    /// Number of the system call that the thread is in, or -1.
    pub orig_rax: u64,
    /// rip
    pub rip: u64,
    /// cs
    pub cs: u64,
    /// eflags
    pub eflags: u64,
    /// rsp
    pub rsp: u64,
    /// ss
    pub ss: u64,
    /// Base address of the fs segment (thread-local storage).
    pub fs_base: u64,
    /// Base address of the gs segment.
    pub gs_base: u64,
    /// ds
    pub ds: u64,
    /// es
    pub es: u64,
    /// fs
    pub fs: u64,
    /// gs
    pub gs: u64,
}

/// A thread's restartable-sequence registration (`struct ptrace_rseq_configuration`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RseqConfiguration {
    /// Address of the thread's `struct rseq`, 0 if none is registered.
    pub pointer: u64,
    /// Registered size in bytes.
    pub size: u32,
    /// Signature that precedes abort handlers.
    pub signature: u32,
    /// Registration flags.
    pub flags: u32,
    /// Padding.
    pub pad: u32,
}

#[repr(C)]
struct PeekSiginfoArgs {
    offset: u64,
    flags: u32,
    count: i32,
}

/// Issues one ptrace request whose `addr` and `data` are plain numbers or pointers.
///
/// # Safety
/// `data` and `addr` must be valid for what `request` makes the kernel read or write.
unsafe fn request(request: libc::c_int, tid: i32, addr: u64, data: u64) -> io::Result<u64> {
    // The raw call is used because glibc's wrapper is variadic and rewrites PEEK requests.
    // SAFETY: handed on to the caller.
    crate::check(unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            i64::from(request),
            i64::from(tid),
            addr,
            data,
        )
    })
}

/// `PTRACE_SEIZE`: attaches to thread `tid` without stopping it.
pub fn seize(tid: i32, options: u64) -> io::Result<()> {
    // SAFETY: no memory is read or written.
    unsafe { request(libc::PTRACE_SEIZE as i32, tid, 0, options) }.map(drop)
}

/// `PTRACE_SETOPTIONS`: replaces the options of a stopped thread.
pub fn set_options(tid: i32, options: u64) -> io::Result<()> {
    // SAFETY: no memory is read or written.
    unsafe { request(libc::PTRACE_SETOPTIONS as i32, tid, 0, options) }.map(drop)
}

/// `PTRACE_INTERRUPT`: asks a seized thread to stop; the stop is reported by wait.
pub fn interrupt(tid: i32) -> io::Result<()> {
    // SAFETY: no memory is read or written.
    unsafe { request(libc::PTRACE_INTERRUPT as i32, tid, 0, 0) }.map(drop)
}

/// `PTRACE_SINGLESTEP` without a signal.
pub fn single_step(tid: i32) -> io::Result<()> {
    // SAFETY: no memory is read or written.
    unsafe { request(libc::PTRACE_SINGLESTEP as i32, tid, 0, 0) }.map(drop)
}

/// `PTRACE_SYSCALL` without a signal: goes on to the next entry or exit of a system call.
pub fn resume_to_call(tid: i32) -> io::Result<()> {
    // SAFETY: no memory is read or written.
    unsafe { request(libc::PTRACE_SYSCALL as i32, tid, 0, 0) }.map(drop)
}

/// `PTRACE_CONT`; `signal` (0 for none) is delivered to the thread if it is in a signal-delivery-stop.
pub fn resume(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is read or written.
    unsafe { request(libc::PTRACE_CONT as i32, tid, 0, signal as u64) }.map(drop)
}

/// `PTRACE_DETACH` without a signal.
pub fn detach(tid: i32) -> io::Result<()> {
    // SAFETY: no memory is read or written.
    unsafe { request(libc::PTRACE_DETACH as i32, tid, 0, 0) }.map(drop)
}

/// `PTRACE_PEEKUSER` of rax: the result of a system call, at less than half the cost of all registers.
pub fn result_register(tid: i32) -> io::Result<u64> {
    let mut value = 0_u64;
    let offset = std::mem::offset_of!(libc::user_regs_struct, rax) as u64;
    // SAFETY: the raw call, unlike the C library's, stores the word at `data`.
    unsafe {
        request(
            libc::PTRACE_PEEKUSER as i32,
            tid,
            offset,
            &raw mut value as u64,
        )?
    };
    Ok(value)
}

/// `PTRACE_GETREGSET` for the general-purpose registers of a 64-bit thread.
///
/// A thread that executes 32-bit code answers with a shorter set; that is [`io::ErrorKind::Unsupported`].
pub fn registers(tid: i32) -> io::Result<Registers> {
    let mut registers = Registers::default();
    let mut iov = libc::iovec {
        iov_base: (&raw mut registers).cast(),
        iov_len: size_of::<Registers>(),
    };
    // SAFETY: `iov` describes `registers`, a plain structure of integers that outlives the call.
    unsafe {
        request(
            libc::PTRACE_GETREGSET as i32,
            tid,
            u64::from(NT_PRSTATUS),
            &raw mut iov as u64,
        )?
    };
    if iov.iov_len == size_of::<Registers>() {
        Ok(registers)
    } else {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the thread runs 32-bit code",
        ))
    }
}

/// `PTRACE_SETREGSET` for the general-purpose registers.
pub fn set_registers(tid: i32, registers: &Registers) -> io::Result<()> {
    let mut iov = libc::iovec {
        iov_base: std::ptr::from_ref(registers).cast_mut().cast(),
        iov_len: size_of::<Registers>(),
    };
    // SAFETY: the kernel only reads through `iov`, which describes `registers`.
    unsafe {
        request(
            libc::PTRACE_SETREGSET as i32,
            tid,
            u64::from(NT_PRSTATUS),
            &raw mut iov as u64,
        )
    }
    .map(drop)
}

/// `PTRACE_GETREGSET` of any register set, in the kernel's own size.
///
/// # Errors
/// `ENODEV` where the machine or kernel lacks the set.
pub fn register_set(tid: i32, kind: u32) -> io::Result<Vec<u8>> {
    // The largest set known is the extended state with AMX tiles, 11,008 bytes.
    let mut buffer = vec![0_u8; 64 * 1024];
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: `iov` describes `buffer`, which outlives the call.
    unsafe {
        request(
            libc::PTRACE_GETREGSET as i32,
            tid,
            u64::from(kind),
            &raw mut iov as u64,
        )?
    };
    buffer.truncate(iov.iov_len);
    buffer.shrink_to_fit();
    Ok(buffer)
}

/// `PTRACE_SETREGSET` of any register set. The kernel refuses sets shorter than its own.
pub fn set_register_set(tid: i32, kind: u32, bytes: &[u8]) -> io::Result<()> {
    let mut iov = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the kernel only reads through `iov`, which describes `bytes`.
    unsafe {
        request(
            libc::PTRACE_SETREGSET as i32,
            tid,
            u64::from(kind),
            &raw mut iov as u64,
        )
    }
    .map(drop)
}

/// `PTRACE_GETSIGMASK`: the mask of blocked signals. In a call that installs a temporary mask
/// (sigsuspend, ppoll) this is the mask to which the thread will return.
pub fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes 8 bytes, as told in `addr`, to `mask`.
    unsafe { request(GETSIGMASK, tid, 8, &raw mut mask as u64)? };
    Ok(mask)
}

/// `PTRACE_SETSIGMASK`.
pub fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads 8 bytes, as told in `addr`, from `mask`.
    unsafe { request(SETSIGMASK, tid, 8, &raw const mask as u64) }.map(drop)
}

/// `PTRACE_PEEKSIGINFO`: all signals queued for the thread, or for its whole process.
pub fn pending_signals(tid: i32, shared: bool) -> io::Result<Vec<RawSiginfo>> {
    const BATCH: usize = 32;
    let mut all = Vec::new();
    loop {
        let args = PeekSiginfoArgs {
            offset: all.len() as u64,
            flags: if shared { PEEKSIGINFO_SHARED } else { 0 },
            count: BATCH as i32,
        };
        let mut batch = MaybeUninit::<[Aligned; BATCH]>::zeroed();
        // SAFETY: the kernel reads `args` and writes at most `BATCH` siginfo_t to `batch`.
        let n = unsafe {
            request(
                PEEKSIGINFO,
                tid,
                &raw const args as u64,
                batch.as_mut_ptr() as u64,
            )?
        };
        // SAFETY: zeroed, and any bytes are a valid array of bytes.
        let batch = unsafe { batch.assume_init() };
        let n = (n as usize).min(BATCH);
        all.extend(batch[..n].iter().map(|info| info.0));
        if n < BATCH {
            return Ok(all);
        }
    }
}

/// `PTRACE_GET_RSEQ_CONFIGURATION` (Linux 5.13).
pub fn rseq_configuration(tid: i32) -> io::Result<RseqConfiguration> {
    let mut configuration = RseqConfiguration::default();
    let size = size_of::<RseqConfiguration>() as u64;
    // SAFETY: the kernel writes at most `size` bytes to `configuration`.
    unsafe {
        request(
            GET_RSEQ_CONFIGURATION,
            tid,
            size,
            &raw mut configuration as u64,
        )?
    };
    Ok(configuration)
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Aligned(RawSiginfo);
