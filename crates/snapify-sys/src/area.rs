//! Memory of this process that is shared with others and only ever touched by the kernel's copies: what
//! cannot be written by write(2), such as files of huge pages and segments of System V shared memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A shared mapping. Nothing points into it: its content is changed by process_vm_writev(2), for which a page that
/// does not exist is an error and no signal.
#[derive(Debug)]
pub struct Area {
    address: usize,
    bytes: usize,
    segment: bool,
}

impl Area {
    /// Maps the first `bytes` of a file, for reading and writing.
    ///
    /// # Errors
    /// Those of mmap(2); `ENOMEM` if there are not enough huge pages.
    pub fn of_file(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: a mapping at a place of the kernel's choice is in nobody's way.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            address: address as usize,
            bytes,
            segment: false,
        })
    }

    /// Attaches a System V segment of `bytes` (shmat(2)).
    ///
    /// # Errors
    /// Those of shmat(2).
    pub fn of_segment(segment: i32, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: as above.
        let address = unsafe { libc::shmat(segment, std::ptr::null(), 0) };
        if address as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            address: address as usize,
            bytes,
            segment: true,
        })
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// `EINVAL` beyond the end (in whole pages), `EFAULT` where the file has no page.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        const PAGE: u64 = 4096;
        let room = (self.bytes as u64).next_multiple_of(PAGE);
        if offset
            .checked_add(data.len() as u64)
            .is_none_or(|end| end > room)
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let ourselves = std::process::id() as i32;
        crate::vm::write_all(ourselves, self.address as u64 + offset, data)
    }

    /// Reads into `buffer` from `offset`.
    ///
    /// # Errors
    /// As [`Self::write_all_at`].
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        const PAGE: u64 = 4096;
        let room = (self.bytes as u64).next_multiple_of(PAGE);
        if offset
            .checked_add(buffer.len() as u64)
            .is_none_or(|end| end > room)
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let ourselves = std::process::id() as i32;
        crate::vm::read_exact(ourselves, self.address as u64 + offset, buffer)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        let address = self.address as *mut libc::c_void;
        // SAFETY: the mapping is ours, and nothing points into it.
        unsafe {
            if self.segment {
                libc::shmdt(address);
            } else {
                libc::munmap(address, self.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_written_is_in_the_file() {
        // SAFETY: the name is a literal; the descriptor is nobody else's.
        let file: std::fs::File = unsafe {
            use std::os::fd::FromRawFd;
            std::os::fd::OwnedFd::from_raw_fd(libc::memfd_create(
                c"area".as_ptr(),
                libc::MFD_CLOEXEC,
            ))
        }
        .into();
        file.set_len(8192).unwrap();
        let area = Area::of_file(file.as_fd(), 8192).unwrap();
        area.write_all_at(b"hello", 4094).unwrap();
        let mut back = [0; 5];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut back, 4094).unwrap();
        assert_eq!(&back, b"hello");
        assert!(area.write_all_at(b"hello", 8190).is_err());
        assert!(area.write_all_at(b"hello", u64::MAX - 1).is_err());
        // A page that the file has lost is an error, not a signal.
        file.set_len(4096).unwrap();
        assert!(area.write_all_at(b"hello", 4096).is_err());
    }
}
