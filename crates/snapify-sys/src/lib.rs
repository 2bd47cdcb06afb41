//! The few kernel interfaces that rustix and nix lack, as thin safe functions.
//!
//! Every function names the call behind it; errors are the kernel's, unchanged, as
//! [`std::io::Error`]. Nothing here keeps state or knows what a snapshot is.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod area;
#[allow(unsafe_code)]
pub mod clone;
#[allow(unsafe_code)]
pub mod fd;
pub mod inet_diag;
#[allow(unsafe_code)]
pub mod ipc;
#[allow(unsafe_code)]
pub mod kcmp;
#[allow(unsafe_code)]
pub mod mqueue;
#[allow(unsafe_code)]
pub mod pagemap;
#[allow(unsafe_code)]
pub mod process;
#[allow(unsafe_code)]
pub mod ptrace;
pub mod sock_diag;
#[allow(unsafe_code)]
pub mod sockopt;
#[allow(unsafe_code)]
pub mod tty;
#[allow(unsafe_code)]
pub mod uffd;
pub mod unix_diag;
#[allow(unsafe_code)]
pub mod unix_socket;
#[allow(unsafe_code)]
pub mod vm;

use std::io;

/// Turns the result of a raw system call into the kernel's error or its value.
fn check(result: libc::c_long) -> io::Result<u64> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as u64)
    }
}
