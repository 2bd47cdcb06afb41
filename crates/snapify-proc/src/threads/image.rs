//! The image of one thread.

use super::numa::MemoryPolicy;
use crate::attributes::ThreadAttributes;
use crate::ids::RemoteAddr;
use crate::image::hex::HexBytes;
use crate::image::siginfo::SiginfoImage;
use crate::path::ImagePath;
use serde::{Deserialize, Serialize};
use snapify_sys::ptrace::Registers;

/// One thread.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ThreadImage {
    /// The id that it sees itself.
    pub tid: i32,
    /// Its name.
    pub name: ImagePath,
    /// General-purpose registers, made ready to go on: an interrupted system call is set up to be made again.
    pub registers: RegistersImage,
    /// Extended state in the kernel's XSAVE layout and size.
    pub extended_state: HexBytes,
    /// Extended features that the process asked permission for (`ARCH_GET_XCOMP_PERM`), for AMX.
    #[serde(default)]
    pub extended_permission: u64,
    /// Mask of blocked signals.
    pub signal_mask: u64,
    /// Signals queued for this thread.
    pub pending: Vec<SiginfoImage>,
    /// Registered restartable sequence area.
    pub rseq: Option<RseqImage>,
    /// Address and length of the list of robust futexes.
    pub robust_list: (RemoteAddr, u64),
    /// Address that the kernel clears and wakes at the thread's end.
    pub clear_tid: RemoteAddr,
    /// Alternate signal stack.
    pub alternate_stack: AlternateStackImage,
    /// Scheduling policy and nice value.
    pub scheduling: SchedulingImage,
    /// Allowed CPUs, 64 to a word.
    pub affinity: Vec<u64>,
    /// Timer slack in nanoseconds.
    pub timer_slack: u64,
    /// Where it takes memory on a NUMA machine, if it has chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_policy: Option<MemoryPolicy>,
    /// What it has set about itself.
    #[serde(default)]
    pub attributes: ThreadAttributes,
}

/// A registration of a restartable sequence area (rseq(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RseqImage {
    /// Its address.
    pub address: RemoteAddr,
    /// Its size in bytes.
    pub bytes: u32,
    /// Signature before abort handlers.
    pub signature: u32,
}

/// An alternate signal stack (sigaltstack(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlternateStackImage {
    /// Its lowest address.
    pub address: RemoteAddr,
    /// Its size in bytes.
    pub bytes: u64,
    /// `SS_DISABLE`, `SS_AUTODISARM`.
    pub flags: i32,
}

/// Scheduling policy (sched_setattr(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchedulingImage {
    /// `SCHED_*`
    pub policy: u32,
    /// `SCHED_FLAG_*`
    pub flags: u64,
    /// Nice value.
    pub nice: i32,
    /// Priority of the real-time policies.
    pub priority: u32,
    /// Run time, deadline and period of the deadline policy in nanoseconds.
    pub deadline: [u64; 3],
}

macro_rules! registers {
    ($($name:ident)*) => {
        /// General-purpose registers of an x86-64 thread.
        #[allow(missing_docs)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct RegistersImage { $(pub $name: u64),* }

        impl From<&Registers> for RegistersImage {
            fn from(r: &Registers) -> Self {
                Self { $($name: r.$name),* }
            }
        }

        impl From<&RegistersImage> for Registers {
            fn from(r: &RegistersImage) -> Self {
                Self { $($name: r.$name),* }
            }
        }
    };
}

registers! {
    r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base gs_base ds es fs gs
}
