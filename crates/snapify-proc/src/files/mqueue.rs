//! POSIX message queues (mq_overview(7)): files of a file system that every IPC namespace has of its own. A restart
//! makes the queues again in its namespace, with their names and what waits in them.

use super::regular;
use super::survey::Seen;
use crate::error::{Obstacle, ProcError};
use crate::image::hex::HexBytes;
use crate::path::ImagePath;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use snapify_sys::mqueue::{self, Message};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueImage {
    /// Its name, with the slash that it begins with.
    pub name: ImagePath,
    /// Whether the name is gone.
    #[serde(default)]
    pub unlinked: bool,
    /// Permission bits.
    pub mode: u32,
    /// How many messages it takes.
    pub most_messages: i64,
    /// How many bytes a message may have.
    pub message_bytes: i64,
    /// What waits in it, in the order in which it would be received.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<MessageImage>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageImage {
    /// Its priority.
    pub priority: u32,
    /// Its text.
    pub text: HexBytes,
}

/// A description of a queue; its flags tell what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenQueue {
    /// Index into [`FilesImage::queues`](super::FilesImage::queues).
    pub queue: usize,
}

const DELETED: &[u8] = b" (deleted)";

/// Saves a queue. `path` leads to the open one, as `/proc/PID/fd/N` does.
///
/// # Errors
/// An obstacle, if it cannot be opened for reading and writing, or somebody waits to be notified.
pub(super) fn capture(seen: &Seen, path: &std::path::Path) -> Result<QueueImage, Obstacle> {
    let unreadable = |e: io::Error| seen.obstacle(format!("its messages cannot be read: {e}"));
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let queue =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| unreadable(errno.into()))?;
    let queue = File::from(queue);
    // Messages are taken out and put back, which would notify; and what a notification carries is not shown.
    let mut text = [0; 256];
    let bytes = queue.read_at(&mut text, 0).map_err(unreadable)?;
    if is_watched(&String::from_utf8_lossy(&text[..bytes])) {
        let why = "a process waits to be notified of a message (mq_notify), which is not supported";
        return Err(seen.obstacle(why));
    }
    let attributes = mqueue::attributes(queue.as_fd()).map_err(unreadable)?;
    let messages = mqueue::peek(queue.as_fd()).map_err(unreadable)?;
    let unlinked = seen.stat.st_nlink == 0;
    let name = seen.link.as_bytes();
    let name = match unlinked {
        true => name.strip_suffix(DELETED).unwrap_or(name),
        false => name,
    };
    Ok(QueueImage {
        name: ImagePath::from_bytes(name),
        unlinked,
        mode: seen.stat.st_mode & 0o777,
        most_messages: attributes.most_messages,
        message_bytes: attributes.message_bytes,
        messages: messages
            .into_iter()
            .map(|message| MessageImage {
                priority: message.priority,
                text: HexBytes(message.text),
            })
            .collect(),
    })
}

/// Whether the content of a queue's file says that a process waits to be notified:
/// `QSIZE:129 NOTIFY:2 SIGNO:0 NOTIFY_PID:8260`.
fn is_watched(text: &str) -> bool {
    let mut words = text.split_whitespace();
    words.any(|word| {
        word.strip_prefix("NOTIFY_PID:")
            .is_some_and(|pid| pid != "0")
    })
}

impl QueueImage {
    /// Whether it can be.
    pub(super) fn is_sound(&self) -> bool {
        let name = self.name.as_bytes();
        let name_fine = name.len() > 1
            && name.len() < 256
            && name[0] == b'/'
            && !name[1..].iter().any(|&byte| byte == b'/' || byte == 0);
        let size = |message: &MessageImage| message.text.0.len() as i64;
        name_fine
            && self.mode & !0o777 == 0
            && self.most_messages > 0
            && self.message_bytes > 0
            && self.messages.len() as i64 <= self.most_messages
            && self.messages.iter().all(|m| size(m) <= self.message_bytes)
    }

    /// Makes the queue in the IPC namespace of this process, and fills it.
    ///
    /// # Errors
    /// If the limits here are lower (`fs.mqueue`, `RLIMIT_MSGQUEUE`), or the name is taken.
    pub(super) fn make(&self) -> Result<OwnedFd, ProcError> {
        let error = |what: &str| {
            let what = format!("{what} message queue {}", self.name);
            move |source| ProcError::System { what, source }
        };
        let name = CString::new(&self.name.as_bytes()[1..]).map_err(io::Error::other);
        let name = name.map_err(error("name"))?;
        // The owner's own mode may forbid what is still to be done.
        let mode = self.mode | 0o600;
        let queue = mqueue::make(&name, mode, self.most_messages, self.message_bytes)
            .map_err(error("make"))?;
        for message in &self.messages {
            let message = Message {
                priority: message.priority,
                text: message.text.0.clone(),
            };
            mqueue::send(queue.as_fd(), &message).map_err(error("fill"))?;
        }
        if self.unlinked {
            mqueue::unlink(&name).map_err(error("unlink"))?;
        }
        Ok(queue)
    }

    /// When all descriptions are there.
    ///
    /// # Errors
    /// Those of fchmod(2).
    pub(super) fn set_mode(&self, queue: &OwnedFd) -> Result<(), ProcError> {
        rustix::fs::fchmod(queue, Mode::from_raw_mode(self.mode)).map_err(ProcError::system(
            format!("set the mode of message queue {}", self.name),
        ))
    }
}

/// A description of a queue that has been made.
///
/// # Errors
/// Those of open(2).
pub(super) fn open(queue: &OwnedFd, flags: u32) -> Result<OwnedFd, ProcError> {
    let path = format!("/proc/self/fd/{}", queue.as_raw_fd());
    regular::open_at(path.as_ref(), flags, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_to_be_notified_is_seen() {
        let line = |pid| format!("QSIZE:129        NOTIFY:0     SIGNO:0     NOTIFY_PID:{pid}\n");
        assert!(is_watched(&line("8260   ")) && !is_watched(&line("0     ")));
    }

    #[test]
    fn queues_that_cannot_be_are_refused() {
        let queue = QueueImage {
            name: ImagePath::from_bytes("/name"),
            unlinked: false,
            mode: 0o600,
            most_messages: 1,
            message_bytes: 4,
            messages: vec![MessageImage {
                priority: 0,
                text: HexBytes(b"text".to_vec()),
            }],
        };
        assert!(queue.is_sound());
        let refused = |change: &dyn Fn(&mut QueueImage)| {
            let mut queue = queue.clone();
            change(&mut queue);
            assert!(!queue.is_sound());
        };
        for name in ["", "/", "name", "/a/b", "/a\0b"] {
            refused(&|queue| queue.name = ImagePath::from_bytes(name));
        }
        refused(&|queue| queue.message_bytes = 3);
        refused(&|queue| queue.most_messages = 0);
        refused(&|queue| queue.mode = 0o4600);
    }
}
