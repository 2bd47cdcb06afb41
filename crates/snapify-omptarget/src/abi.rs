//! C structures and constants of the plugin interface, as in libomptarget 14 to 16 (`omptarget.h`, `omptargetplugin.h`).

use std::ffi::{c_char, c_void};

/// What a function returns when it has done its work.
pub const SUCCESS: i32 = 0;
/// What it returns when it has not.
pub const FAILURE: i32 = !0;

/// A function or global variable of an image, in the host's table of its own and in the table of the device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OffloadEntry {
    /// Its address, on the host or on the device.
    pub address: *mut c_void,
    /// Its name, the same on both sides; a C string.
    pub name: *const c_char,
    /// Bytes of a variable; 0 for a function.
    pub size: usize,
    /// Kind of variable, constructor or destructor. Only passed on.
    pub flags: i32,
    /// Only passed on.
    pub reserved: i32,
}

/// A device image within the host program.
#[repr(C)]
#[derive(Debug)]
pub struct DeviceImage {
    /// First byte of an ELF file.
    pub start: *const u8,
    /// The byte after its last.
    pub end: *const u8,
    /// First of the host's entries.
    pub entries_begin: *const OffloadEntry,
    /// The one after the last.
    pub entries_end: *const OffloadEntry,
}

/// The entries of an image on one device, in the order of the host's entries.
#[repr(C)]
#[derive(Debug)]
pub struct TargetTable {
    /// First entry.
    pub begin: *mut OffloadEntry,
    /// The one after the last.
    pub end: *mut OffloadEntry,
}

/// The beginning of the description of a launch, the same in versions 1 (clang 15), 2 (16) and 3 (17 to 22).
#[repr(C)]
#[derive(Debug)]
pub struct KernelArgs {
    /// Version of this structure.
    pub version: u32,
    /// How many arguments the target region has.
    pub count: u32,
}

/// From this version on, the function of a target region has a first argument in front of those that are counted. It points to
/// an environment that only GPUs have.
pub const VERSION_WITH_ENVIRONMENT: u32 = 3;

/// Kinds of memory that an allocation may ask for.
pub mod allocation {
    /// Memory of the device.
    pub const DEVICE: i32 = 0;
    /// Memory of the device, too.
    pub const DEFAULT: i32 = 3;
}

/// What a program may require by `#pragma omp requires`.
pub mod requires {
    /// Any address refers to the same memory on the host and on all devices.
    pub const UNIFIED_ADDRESS: i64 = 4;
    /// Devices work on the host's memory itself.
    pub const UNIFIED_SHARED_MEMORY: i64 = 8;
}

// The layout is the compiler's; LP64 only, as all of this.
const _: () = {
    assert!(size_of::<OffloadEntry>() == 32);
    assert!(size_of::<DeviceImage>() == 32);
    assert!(size_of::<TargetTable>() == 16);
    assert!(size_of::<KernelArgs>() == 8);
};
