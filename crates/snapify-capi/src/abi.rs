//! Types and constants of the interface, as in `include/coi`.

use crate::error::Code;

/// An event (`COIEVENT`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoiEvent {
    pub opaque: [u64; 2],
}

/// Kinds of engines (`COI_DEVICE_TYPE`): a card is a `COI_DEVICE_MIC`.
pub const DEVICE_SOURCE: i32 = 1;
pub const DEVICE_MIC: i32 = 2;
pub const DEVICE_MAX: i32 = 6;

/// Instead of a process's handle: this process.
pub const PROCESS_SOURCE: u64 = u64::MAX;
/// Instead of a process's handle: all in which the buffer is valid.
pub const SINK_OWNERS: u64 = u64::MAX - 1;

/// Instead of a place for an event: do not wait, and do not tell.
pub const EVENT_ASYNC: usize = 1;
/// Instead of a place for an event: wait.
pub const EVENT_SYNC: usize = 2;

pub const MAX_FILE_NAME: usize = 256;
pub const MAX_FUNCTION_NAME: usize = 256;
pub const MAX_BUFFERS: u32 = 16_384;
pub const MAX_MISC: u16 = 32_768;

/// Least stack of a pipeline's thread (`PTHREAD_STACK_MIN`).
pub const MIN_STACK: u32 = 16_384;

/// What is known of an engine (`COI_ENGINE_INFO`).
#[repr(C)]
pub struct EngineInfo {
    pub driver_version: [i32; 255],
    pub isa: i32,
    pub cores: u32,
    pub misc_flags: u32,
    pub threads: u32,
    /// MHz.
    pub frequency: u32,
    pub load: [u32; 1024],
    pub memory: u64,
    pub memory_free: u64,
    pub swap: u64,
    pub swap_free: u64,
    pub vendor: u16,
    pub device: u16,
    pub subsystem: u16,
    pub stepping: u16,
    pub sku: u16,
}

/// Flags of buffers.
pub mod flags {
    pub const SAME_ADDRESS_SINKS: u32 = 0x1;
    pub const SAME_ADDRESS_SINKS_AND_SOURCE: u32 = 0x2;
    pub const HUGE_PAGE_SIZE: u32 = 0x80;
    pub const SINK_MEMORY: u32 = 0x100;
    pub const ALL: u32 = 0x1ff;
}

/// Kinds of buffers.
pub const BUFFER_NORMAL: i32 = 1;
pub const BUFFER_OPENCL: i32 = 5;

/// What a run function does with a buffer (`COI_ACCESS_FLAGS`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Its content must be there before.
    pub reads: bool,
    /// What is elsewhere is outdated afterwards.
    pub writes: bool,
    /// The memory is referred to.
    pub refers: bool,
}

impl Access {
    pub fn parse(flags: i32) -> Result<Self, Code> {
        let (kind, refers) = match flags {
            1..=3 => (flags, false),
            4..=6 => (flags - 3, true),
            _ => return Err(Code::OutOfRange),
        };
        Ok(Self {
            reads: kind != 3,
            writes: kind != 1,
            refers,
        })
    }
}

/// How a buffer is mapped (`COI_MAP_TYPE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapKind {
    ReadWrite,
    ReadOnly,
    WriteEntire,
}

impl MapKind {
    pub fn parse(kind: i32) -> Result<Self, Code> {
        match kind {
            1 => Ok(Self::ReadWrite),
            2 => Ok(Self::ReadOnly),
            3 => Ok(Self::WriteEntire),
            _ => Err(Code::OutOfRange),
        }
    }
}

/// How to copy (`COI_COPY_TYPE`): by what means is all one here. True if the whole buffer moves to where is written.
pub fn moves_entire(copy: i32) -> Result<bool, Code> {
    match copy {
        0..=2 => Ok(false),
        3..=5 => Ok(true),
        _ => Err(Code::OutOfRange),
    }
}

/// One dimension of a section (`dim_desc`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dimension {
    /// Bytes from one index to the next.
    pub size: i64,
    /// Index of the first element that there is.
    pub first: i64,
    pub lower: i64,
    pub upper: i64,
    pub stride: i64,
}

/// A section of an array (`arr_desc`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Section {
    pub base: i64,
    pub rank: i64,
    pub dimensions: [Dimension; 3],
}

const _: () = {
    assert!(size_of::<CoiEvent>() == 16);
    assert!(size_of::<Dimension>() == 40);
    assert!(size_of::<Section>() == 136);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_mean_what_they_say() {
        let parse = |flags| Access::parse(flags).map(|a| (a.reads, a.writes, a.refers));
        assert_eq!(parse(1), Ok((true, false, false)));
        assert_eq!(parse(2), Ok((true, true, false)));
        assert_eq!(parse(3), Ok((false, true, false)));
        assert_eq!(parse(6), Ok((false, true, true)));
        assert_eq!(parse(0), Err(Code::OutOfRange));
        assert_eq!(parse(7), Err(Code::OutOfRange));
    }
}
