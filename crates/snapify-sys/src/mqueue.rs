//! POSIX message queues (mq_overview(7)) by their descriptors, which are ordinary ones.

use crate::clone::{Fork, fork};
use crate::process;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `struct mq_attr`.
#[allow(missing_docs)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub flags: i64,
    pub most_messages: i64,
    pub message_bytes: i64,
    pub messages: i64,
    reserved: [i64; 4],
}

/// A message and its priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its priority.
    pub priority: u32,
    /// Its text.
    pub text: Vec<u8>,
}

/// More bytes than this in one queue are not looked at.
const MOST: usize = 64 << 20;

/// The attributes of a queue.
///
/// # Errors
/// `EBADF` for any other descriptor.
pub fn attributes(queue: BorrowedFd<'_>) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes one structure.
    crate::check(unsafe {
        libc::syscall(
            libc::SYS_mq_getsetattr,
            queue.as_raw_fd(),
            0,
            &raw mut attributes,
        )
    })?;
    Ok(attributes)
}

/// Makes a queue (mq_open(3), `O_CREAT | O_EXCL | O_RDWR`); `name` is without the slash.
///
/// # Errors
/// `EEXIST`; `EINVAL` and `EMFILE` beyond the limits of the IPC namespace or of the user.
pub fn make(name: &CStr, mode: u32, most: i64, bytes: i64) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        most_messages: most,
        message_bytes: bytes,
        ..Attributes::default()
    };
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the kernel reads the name and one structure.
    let fd = crate::check(unsafe {
        libc::syscall(
            libc::SYS_mq_open,
            name.as_ptr(),
            flags,
            mode,
            &raw const attributes,
        )
    })?;
    // SAFETY: the kernel has just made it, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Removes the name of a queue (mq_unlink(3)).
///
/// # Errors
/// `ENOENT`, `EACCES`.
pub fn unlink(name: &CStr) -> io::Result<()> {
    // SAFETY: the kernel reads the name.
    crate::check(unsafe { libc::syscall(libc::SYS_mq_unlink, name.as_ptr()) }).map(drop)
}

/// Sends a message (mq_send(3)).
///
/// # Errors
/// `EAGAIN` if the queue is full and the descriptor non-blocking, `EMSGSIZE`, `EINVAL` for a priority that is none.
pub fn send(queue: BorrowedFd<'_>, message: &Message) -> io::Result<()> {
    send_raw(queue.as_raw_fd(), message.priority, &message.text)
}

fn send_raw(queue: i32, priority: u32, text: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads the text.
    crate::check(unsafe {
        libc::syscall(
            libc::SYS_mq_timedsend,
            queue,
            text.as_ptr(),
            text.len(),
            priority,
            &AT_ONCE,
        )
    })
    .map(drop)
}

/// A time that has passed: a call that would have to wait fails with `ETIMEDOUT` or `EAGAIN`.
const AT_ONCE: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Where a child leaves the messages that it has taken out and put back.
#[repr(C)]
struct Slot {
    bytes: usize,
    priority: u32,
}

/// Copies of all messages of a queue, in the order in which they would be received. `queue` must be open for reading and writing.
///
/// The kernel has no call to look at messages: they are taken out and sent again. A child of this process does that, so that
/// nothing is lost if this process is killed meanwhile. Whoever else uses the queue must be stopped.
///
/// # Errors
/// Those of receiving and sending, `E2BIG` for very large queues.
pub fn peek(queue: BorrowedFd<'_>) -> io::Result<Vec<Message>> {
    let attributes = attributes(queue)?;
    let count = usize::try_from(attributes.messages).unwrap_or(0);
    let room = usize::try_from(attributes.message_bytes).unwrap_or(0);
    if count == 0 {
        return Ok(Vec::new());
    }
    let stride = (size_of::<Slot>() + room).next_multiple_of(align_of::<Slot>());
    let bytes = stride
        .checked_mul(count)
        .filter(|&bytes| bytes <= MOST)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::E2BIG))?;
    // SAFETY: a mapping at a place of the kernel's choice is in nobody's way.
    let shared = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if shared == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the child makes system calls only, on memory that was mapped before.
    let result = match unsafe { fork(0, None) } {
        Ok(Fork::Child) => {
            // SAFETY: `shared` has room for `count` slots, and the parent waits.
            let done =
                unsafe { take_and_put_back(queue.as_raw_fd(), shared.cast(), count, stride, room) };
            process::exit_now(done.err().and_then(|e| e.raw_os_error()).unwrap_or(0));
        }
        Ok(Fork::Parent { pid, .. }) => process::wait(pid, true).and_then(|ended| {
            match ended.and_then(|(_, status)| status.exit_code()) {
                // SAFETY: the child has filled the slots, and has ended.
                Some(0) => Ok(unsafe { collect(shared.cast(), count, stride, room) }),
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Err(io::Error::other(
                    "the process that looked at the messages was killed",
                )),
            }
        }),
        Err(e) => Err(e),
    };
    // SAFETY: mapped above; nothing points into it any more.
    unsafe { libc::munmap(shared, bytes) };
    result
}

/// # Safety
/// `slots` must have room for `count` slots of `stride` bytes each.
unsafe fn take_and_put_back(
    queue: i32,
    slots: *mut u8,
    count: usize,
    stride: usize,
    room: usize,
) -> io::Result<()> {
    let mut taken = 0;
    let mut result = Ok(());
    while taken < count {
        // SAFETY: within the slots, and aligned.
        let slot = unsafe { slots.add(taken * stride) }.cast::<Slot>();
        // SAFETY: the kernel writes at most `room` bytes behind the slot's head, and the priority.
        let received = crate::check(unsafe {
            libc::syscall(
                libc::SYS_mq_timedreceive,
                queue,
                slot.add(1).cast::<u8>(),
                room,
                &raw mut (*slot).priority,
                &AT_ONCE,
            )
        });
        match received {
            // SAFETY: within the slot.
            Ok(bytes) => unsafe { (*slot).bytes = bytes as usize },
            Err(e) => {
                result = Err(e);
                break;
            }
        }
        taken += 1;
    }
    for number in 0..taken {
        // SAFETY: filled above.
        let (text, priority) = unsafe {
            let slot = slots.add(number * stride).cast::<Slot>();
            let text = std::slice::from_raw_parts(slot.add(1).cast::<u8>(), (*slot).bytes);
            (text, (*slot).priority)
        };
        result = result.and(send_raw(queue, priority, text));
    }
    result
}

/// # Safety
/// `slots` must hold `count` filled slots of `stride` bytes each.
unsafe fn collect(slots: *const u8, count: usize, stride: usize, room: usize) -> Vec<Message> {
    let message = |number: usize| {
        // SAFETY: within the slots, aligned, and nobody else writes there.
        unsafe {
            let slot = slots.add(number * stride).cast::<Slot>();
            let bytes = (*slot).bytes.min(room);
            Message {
                priority: (*slot).priority,
                text: std::slice::from_raw_parts(slot.add(1).cast::<u8>(), bytes).to_vec(),
            }
        }
    };
    (0..count).map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn messages_stay_where_they_are() {
        let name = std::ffi::CString::new(format!("snapify-peek-{}", std::process::id())).unwrap();
        let queue = make(&name, 0o600, 4, 100).unwrap();
        unlink(&name).unwrap();
        assert_eq!(peek(queue.as_fd()).unwrap(), []);
        for (priority, text) in [(1, "low"), (7, "high"), (7, ""), (0, "lowest")] {
            let text = text.into();
            send(queue.as_fd(), &Message { priority, text }).unwrap();
        }
        let first = peek(queue.as_fd()).unwrap();
        let shown: Vec<_> = first
            .iter()
            .map(|m| (m.priority, m.text.as_slice()))
            .collect();
        assert_eq!(
            shown,
            [(7, &b"high"[..]), (7, b""), (1, b"low"), (0, b"lowest")]
        );
        assert_eq!(peek(queue.as_fd()).unwrap(), first);
        assert_eq!(attributes(queue.as_fd()).unwrap().messages, 4);
    }
}
