//! Kernel structures that pass between us and a tracee's memory.

use snapify_sys::clone::CloneArgs;
use snapify_sys::ipc::{QueueStatus, SegmentStatus, SetStatus};

/// Plain data: any bytes are a valid value, and there is no padding that matters.
///
/// # Safety
/// The type must be `repr(C)`, consist of integers only, and have no padding bytes.
pub unsafe trait Pod: Copy {
    /// The bytes of the value.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: by the contract of the trait all bytes of a value are initialized.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// A value of zero bytes.
    fn zeroed() -> Self {
        // SAFETY: by the contract of the trait any bytes are a valid value.
        unsafe { std::mem::zeroed() }
    }

    /// The bytes of the value, to be overwritten.
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: by the contract of the trait all bytes are initialized and any bytes are valid.
        unsafe {
            std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<Self>())
        }
    }
}

// SAFETY: integers.
unsafe impl Pod for u8 {}
// SAFETY: integers.
unsafe impl Pod for i32 {}
// SAFETY: integers.
unsafe impl Pod for u32 {}
// SAFETY: integers.
unsafe impl Pod for i64 {}
// SAFETY: integers.
unsafe impl Pod for u64 {}
// SAFETY: an array has no padding between its elements.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}
// SAFETY: integers, whose padding is a member.
unsafe impl Pod for SegmentStatus {}
// SAFETY: as above.
unsafe impl Pod for SetStatus {}
// SAFETY: as above.
unsafe impl Pod for QueueStatus {}
// SAFETY: eleven 64-bit integers.
unsafe impl Pod for CloneArgs {}

/// `stack_t` of sigaltstack(2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SignalStack {
    /// Lowest address.
    pub pointer: u64,
    /// `SS_*`
    pub flags: i32,
    /// Padding.
    pub pad: i32,
    /// Bytes.
    pub size: u64,
}
// SAFETY: integers, the padding is a member.
unsafe impl Pod for SignalStack {}

/// `struct prctl_mm_map` of `PR_SET_MM_MAP`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MmMap {
    /// Start of the text.
    pub start_code: u64,
    /// End of the text.
    pub end_code: u64,
    /// Start of the data.
    pub start_data: u64,
    /// End of the data.
    pub end_data: u64,
    /// Start of the heap.
    pub start_brk: u64,
    /// End of the heap.
    pub brk: u64,
    /// Start of the stack.
    pub start_stack: u64,
    /// Start of the command line.
    pub arg_start: u64,
    /// End of the command line.
    pub arg_end: u64,
    /// Start of the environment.
    pub env_start: u64,
    /// End of the environment.
    pub env_end: u64,
    /// Address of the auxiliary vector.
    pub auxv: u64,
    /// Its bytes.
    pub auxv_size: u32,
    /// Descriptor of the executable, `u32::MAX` to leave it alone.
    pub exe_fd: u32,
}
// SAFETY: integers without padding between them.
unsafe impl Pod for MmMap {}

/// `struct rseq_cs` of rseq(2): one restartable sequence.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RseqSequence {
    /// Version and flags.
    pub version_and_flags: [u32; 2],
    /// Address of its first instruction.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where a thread that is interrupted within it goes on.
    pub abort: u64,
}
// SAFETY: integers without padding between them.
unsafe impl Pod for RseqSequence {}
