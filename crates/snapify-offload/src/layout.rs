//! Where things lie in the local store of an offload process.
//!
//! ```text
//! 0         128 KiB                    8320 KiB   9 MiB     10 MiB    16 MiB                      1 TiB
//! | command | 64 rings of pipelines     |         | bounce  |         | buffers ... (sparse)        |
//! | ring    |                           |         | area    |         |                             |
//! ```
//!
//! The file is as long as any card may be large, and sparse: what counts is the memory set aside in it, which
//! the card's file system limits. So a process can be restored on a card of another size, at the same
//! addresses.

/// Address of the local store in the offload process, the same after every restore: device pointers are stored
/// in device memory.
pub const STORE_BASE: u64 = 0x2000_0000_0000;

/// Length of the local store's file and mappings in bytes.
pub const STORE_BYTES: u64 = 1 << 40;

/// Bytes of a command ring.
pub const RING_BYTES: u64 = 128 << 10;

/// Offset of the ring for commands to the process as a whole.
pub const COMMAND_RING: u64 = 0;

/// Most pipelines of a process.
pub const MAX_PIPELINES: usize = 64;

/// Offset of the ring of a pipeline.
pub const fn pipeline_ring(index: usize) -> u64 {
    RING_BYTES * (1 + index as u64)
}

/// Offset of the area through which bytes pass that come from or go to memory outside the store.
pub const BOUNCE: u64 = 9 << 20;

/// Bytes of the bounce area.
pub const BOUNCE_BYTES: u64 = 1 << 20;

/// Offset of the first buffer.
pub const BUFFERS: u64 = 16 << 20;

const _: () = assert!(pipeline_ring(MAX_PIPELINES) <= BOUNCE && BOUNCE + BOUNCE_BYTES <= BUFFERS);
const _: () = assert!(RING_BYTES >= snapify_fabric::ring::MIN_BYTES);

/// Descriptor number of an offload process's connection to its daemon.
pub const CONTROL_FD: i32 = 3;

/// Descriptor number of the local store in the offload process.
pub const STORE_FD: i32 = 4;

/// Descriptor number of the executable, in an offload process whose program the host process brought along.
pub const PROGRAM_FD: i32 = 5;

/// Stack of each server thread in the offload process, in bytes; only what is touched takes memory.
pub const SERVER_STACK: usize = 64 << 20;
