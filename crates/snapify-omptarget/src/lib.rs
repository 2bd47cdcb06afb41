//! OpenMP offloading to cards, for programs that were compiled by stock clang 14, 15 or 16 with
//! `-fopenmp -fopenmp-targets=x86_64-pc-linux-gnu`.
//!
//! This is a device plugin of `libomptarget`, the part of LLVM's OpenMP runtime that keeps track of which host memory is
//! mapped to which device memory. `libomptarget` loads plugins by file name (`libomptarget.rtl.x86_64.nextgen.so` in version
//! 16, `libomptarget.rtl.x86_64.so` in 14 and 15), so that a directory which comes first in `LD_LIBRARY_PATH` is all that it takes
//! to put this one in place of the stock one. Each card is one OpenMP device; its offload process is started when the device
//! is first used.
//!
//! All functions are synchronous: those of `libomptarget` that would be asynchronous are left out, and it then runs `nowait` regions
//! on helper threads of its own.
//!
//! - `abi`: the C structures of the plugin interface.
//! - `ffi`: its functions. All that is unsafe is there.
//! - `plugin`, `device`: what they do, in terms of the offload runtime's host library.
#![deny(unsafe_code)]

mod abi;
mod device;
mod error;
#[allow(unsafe_code)]
mod ffi;
mod image;
mod plugin;
mod region;
