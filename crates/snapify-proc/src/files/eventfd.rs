//! Event counters (eventfd(2)). `/proc` shows all of their state.

use super::survey::{Found, Recognized, Seen};
use super::{Object, has_flag};
use crate::error::ProcError;
use rustix::event::EventfdFlags;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// An event counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventFd {
    /// Its count; `u64::MAX` cannot be.
    pub count: u64,
    /// Whether a read takes one (`EFD_SEMAPHORE`) or all.
    pub semaphore: bool,
}

pub(crate) fn recognize(seen: &Seen) -> Recognized {
    if seen.link.as_bytes() != b"anon_inode:[eventfd]" {
        return None;
    }
    let count = seen.info.eventfd_count?;
    Some(Ok(Found::Whole(Object::EventFd(EventFd {
        count,
        semaphore: seen.info.eventfd_semaphore,
    }))))
}

impl EventFd {
    /// Makes a counter with this count.
    ///
    /// # Errors
    /// Those of eventfd2(2); [`ProcError::BadImage`] for a count that cannot be.
    pub(crate) fn make(&self, flags: u32) -> Result<OwnedFd, ProcError> {
        // Never block on a count that does not fit; the flag is set as wanted afterwards.
        let mut how = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        how.set(EventfdFlags::SEMAPHORE, self.semaphore);
        let fd = rustix::event::eventfd(0, how).map_err(ProcError::system("making an eventfd"))?;
        if self.count > 0 {
            rustix::io::write(&fd, &self.count.to_ne_bytes()).map_err(|_| {
                ProcError::BadImage(format!("an eventfd cannot have the count {}", self.count))
            })?;
        }
        if !has_flag(flags, libc::O_NONBLOCK) {
            rustix::io::ioctl_fionbio(&fd, false)
                .map_err(ProcError::system("making an eventfd blocking"))?;
        }
        Ok(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_come_back() {
        let read = |fd: &OwnedFd| {
            let mut buffer = [0; 8];
            rustix::io::read(fd, &mut buffer).map(|_| u64::from_ne_bytes(buffer))
        };
        let nonblocking = libc::O_NONBLOCK.cast_unsigned();
        let fd = EventFd {
            count: 7,
            semaphore: false,
        }
        .make(nonblocking)
        .unwrap();
        assert_eq!(
            (read(&fd), read(&fd)),
            (Ok(7), Err(rustix::io::Errno::AGAIN))
        );
        let fd = EventFd {
            count: 2,
            semaphore: true,
        }
        .make(nonblocking)
        .unwrap();
        assert_eq!(
            (read(&fd), read(&fd), read(&fd)),
            (Ok(1), Ok(1), Err(rustix::io::Errno::AGAIN))
        );
        assert!(
            EventFd {
                count: u64::MAX,
                semaphore: false
            }
            .make(0)
            .is_err()
        );
        EventFd {
            count: u64::MAX - 1,
            semaphore: false,
        }
        .make(0)
        .unwrap();
    }
}
