//! userfaultfd(2) in asynchronous write-protect mode (Linux 6.7): the kernel notes which pages are written, and
//! tells nobody. `PAGEMAP_SCAN` reads what it has noted, see [`crate::pagemap`].

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;

/// For userfaultfd(2): only faults of user mode are reported (none are, in this mode), which needs no privilege.
pub const USER_MODE_ONLY: u64 = 1;

/// `UFFD_API`
const API: u64 = 0xaa;
/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`
const PAGE_FAULT_WP: u64 = 1;
/// `UFFD_FEATURE_WP_UNPOPULATED`
const WP_UNPOPULATED: u64 = 1 << 13;
/// `UFFD_FEATURE_WP_ASYNC`
const WP_ASYNC: u64 = 1 << 15;
/// `UFFDIO_REGISTER_MODE_WP`
const MODE_WP: u64 = 2;

/// `struct uffdio_api`
#[repr(C)]
#[derive(Clone, Copy)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`
#[repr(C)]
#[derive(Clone, Copy)]
struct Register {
    start: u64,
    bytes: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_range`
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    bytes: u64,
}

struct Request<T> {
    argument: T,
    number: u8,
    read_only: bool,
}

// SAFETY: the numbers used below are those of the requests that take these structures, which the kernel reads and, of
// `Api` and `Register`, writes.
unsafe impl<T> Ioctl for Request<T> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        // UFFDIO_UNREGISTER is declared as one that is only read from.
        if self.read_only {
            opcode::read::<T>(0xaa, self.number)
        } else {
            opcode::read_write::<T>(0xaa, self.number)
        }
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.argument).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

fn request<T>(uffd: impl AsFd, number: u8, argument: T) -> io::Result<()> {
    let request = Request {
        argument,
        number,
        read_only: number == 1,
    };
    // SAFETY: see the implementation of `Ioctl`; the structure lives as long as the call.
    unsafe { rustix::ioctl::ioctl(uffd, request) }.map_err(Into::into)
}

/// Sets a new userfaultfd up for tracking (`UFFDIO_API`). It may be that of another process.
///
/// # Errors
/// `EINVAL` before Linux 6.7, or if it is set up already.
pub fn begin_tracking(uffd: impl AsFd) -> io::Result<()> {
    let api = Api {
        api: API,
        features: PAGE_FAULT_WP | WP_UNPOPULATED | WP_ASYNC,
        ioctls: 0,
    };
    request(uffd, 0x3f, api)
}

/// Has the mappings from `start` to `end` tracked (`UFFDIO_REGISTER`), in the process that the userfaultfd was made
/// in. Such as are tracked by it already stay as they are.
///
/// # Errors
/// `EBUSY` if another userfaultfd watches one of them, `EINVAL` if one cannot be tracked, `ESRCH` if the address space
/// is gone.
pub fn register(uffd: impl AsFd, start: u64, end: u64) -> io::Result<()> {
    let register = Register {
        start,
        bytes: end - start,
        mode: MODE_WP,
        ioctls: 0,
    };
    request(uffd, 0, register)
}

/// Ends the tracking of the mappings from `start` to `end` (`UFFDIO_UNREGISTER`).
///
/// # Errors
/// `EINVAL` if one of them cannot be tracked, `ESRCH` if the address space is gone.
pub fn unregister(uffd: impl AsFd, start: u64, end: u64) -> io::Result<()> {
    let bytes = end - start;
    request(uffd, 1, Range { start, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::{Categories, Filter, Region, protect, scan};
    use std::fs::File;
    use std::os::fd::{FromRawFd, OwnedFd};

    const PAGE: u64 = 4096;

    fn userfaultfd() -> OwnedFd {
        let flags = USER_MODE_ONLY | (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel has just made it, for us alone.
        unsafe { OwnedFd::from_raw_fd(fd as i32) }
    }

    fn map(pages: u64) -> u64 {
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (pages * PAGE) as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        base as u64
    }

    fn write(address: u64) {
        // SAFETY: the tests write to mappings that they have made only.
        unsafe { (address as *mut u8).write_volatile(7) };
    }

    #[test]
    fn pages_that_are_written_show_and_others_do_not() {
        let uffd = userfaultfd();
        begin_tracking(&uffd).unwrap();
        let base = map(8);
        let end = base + 8 * PAGE;
        // SAFETY: advice about the mapping just made.
        unsafe { libc::madvise(base as *mut _, 8 * 4096, libc::MADV_NOHUGEPAGE) };
        for page in 0..6 {
            write(base + page * PAGE);
        }
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let filter = Filter {
            all: Categories::WRITTEN,
            any: Categories::PRESENT | Categories::SWAPPED,
            ..Filter::default()
        };
        let mut buffer = [Region::default(); 4];
        let refused = protect(&pagemap, base, end, filter, &mut buffer).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        register(&uffd, base, end).unwrap();
        register(&uffd, base, end).unwrap();
        let other = userfaultfd();
        begin_tracking(&other).unwrap();
        let refused = register(&other, base, end).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY));
        let mut written = || {
            let mut found = Vec::new();
            scan(&pagemap, base, end, filter, &mut buffer, |region| {
                found.extend(((region.start - base) / PAGE)..((region.end - base) / PAGE));
            })
            .unwrap();
            found
        };
        assert_eq!(written(), [0, 1, 2, 3, 4, 5]);
        let mut buffer = [Region::default(); 1];
        protect(&pagemap, base, end, filter, &mut buffer).unwrap();
        assert_eq!(written(), []);
        write(base + 2 * PAGE);
        write(base + 7 * PAGE);
        assert_eq!(written(), [2, 7]);
        unregister(&uffd, base, end).unwrap();
        assert_eq!(written(), [0, 1, 2, 3, 4, 5, 7]);
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(base as *mut _, 8 * 4096) };
    }
}
