//! Pipes within the tree: both ends are its processes', or the other end is closed. They come back with
//! their content and size.
//!
//! A pipe to another process that is no standard stream is refused, with one exception: one that
//! whatever started the program has merely left open for it comes back with its other end closed.
//! Shells, build tools and launchers leave such pipes open, to be told of the end of what they
//! start.

use super::inherit::standard_stream;
use super::survey::{Found, Recognized, Seen, View};
use super::{can_read, can_write, fifo, holders};
use crate::error::{Obstacle, ProcError};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};
use serde::{Deserialize, Serialize};
use snapify_store::SpaceId;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A pipe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipeImage {
    /// Its capacity in bytes (`F_GETPIPE_SZ`).
    pub capacity: usize,
    /// The object that holds its content, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<SpaceId>,
    /// Lengths of the packets that the content consists of, if it does (`O_DIRECT` at the writing end).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub packets: Vec<u32>,
    /// Where it is found, if it is a named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<fifo::FifoName>,
}

/// A description of an end of a pipe; its flags tell which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipeEnd {
    /// Index into [`FilesImage::pipes`](super::FilesImage::pipes).
    pub pipe: usize,
    /// For the reading end of a named pipe that no writer has opened since: poll(2) does not report that the writers are
    /// gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_writer: bool,
}

/// The kernel's greatest capacity of a pipe, whoever asks: 2 GiB (`F_SETPIPE_SZ`).
const GREATEST_CAPACITY: usize = 1 << 31;

/// Whether it is a pipe that has no name in a file system.
pub(crate) fn is_anonymous(seen: &Seen) -> bool {
    seen.file_type() == FileType::Fifo && seen.link.as_bytes().starts_with(b"pipe:[")
}

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    if !is_anonymous(seen) {
        return None;
    }
    let is_stream = standard_stream(seen, view).is_some();
    let within = match view.pipes.get(&seen.stat.st_ino) {
        Some((true, true)) => !view.holders.contains_key(&seen.stat.st_ino),
        Some((true, false)) => is_abandoned(seen, view),
        // Standard output to a reader that has gone is of no use to anybody; a restart may have a
        // better one.
        Some((false, true)) => !is_stream && is_abandoned(seen, view),
        _ => false,
    };
    if !within {
        if is_stream || !holders::has_inherited(seen, view) {
            return None;
        }
        tracing::warn!(
            "descriptor {} is a pipe that was left open for the program by what started it; \
             after a restart it leads to nobody",
            seen.fd
        );
    }
    Some(Ok(Found::PipeEnd))
}

/// Whether nobody has the other end: its readers see the end of the file, its writers an error.
fn is_abandoned(seen: &Seen, view: &View<'_>) -> bool {
    let Ok(end) = view.duplicate(seen) else {
        return false;
    };
    let mut polled = [PollFd::new(&end, PollFlags::empty())];
    let at_once = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut polled, Some(&at_once)).is_ok()
        && polled[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Why a pipe is not one within the process.
pub(crate) fn foreign(seen: &Seen, view: &View<'_>) -> Obstacle {
    let obstacle = match view.holders.get(&seen.stat.st_ino) {
        Some(holder) => seen.obstacle(format!(
            "{holder} has this pipe too, which is not supported"
        )),
        None => {
            seen.obstacle("another process has the other end of this pipe, which is not supported")
        }
    };
    obstacle.with_hint(format!(
        "if the program does not need it, start it with {}>&-",
        seen.fd
    ))
}

/// What a pipe holds, and the lengths of the packets if it consists of several. `reader` is a duplicate of its read end;
/// `in_packets` tells whether its writer sends packets.
///
/// It is not taken out (tee(2)), unless the user's pipes are so many that the kernel grants none that is large enough for a copy.
/// All who have its ends stand still, and what was taken out is put back.
pub(crate) fn content(reader: BorrowedFd<'_>, in_packets: bool) -> io::Result<(Vec<u8>, Vec<u32>)> {
    let waiting = usize::try_from(rustix::io::ioctl_fionread(reader)?).unwrap_or(0);
    if waiting == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    let (from, to) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // tee copies whole buffers, so that a pipe of the same size takes all of them. A packet stays one in the copy, and a
    // read ends with it.
    let size = rustix::pipe::fcntl_getpipe_size(reader)?;
    if rustix::pipe::fcntl_getpipe_size(&to)? != size
        && let Err(errno) = rustix::pipe::fcntl_setpipe_size(&to, size)
        && errno != Errno::PERM
    {
        return Err(errno.into());
    }
    if rustix::pipe::tee(reader, &to, waiting, SpliceFlags::NONBLOCK)? == waiting {
        drop(to);
        return read_out(&from, waiting);
    }
    let (bytes, packets) = read_out(reader, waiting)?;
    put(reader, &bytes, if in_packets { &packets } else { &[] })?;
    Ok((bytes, packets))
}

/// Takes what waits in a pipe out of it.
fn read_out(reader: impl AsFd, waiting: usize) -> io::Result<(Vec<u8>, Vec<u32>)> {
    let mut bytes = vec![0; waiting];
    let mut packets = Vec::new();
    let mut have = 0;
    while have < waiting {
        let n = rustix::io::read(&reader, &mut bytes[have..])?;
        if n == 0 {
            return Err(io::Error::other(format!(
                "only {have} of its {waiting} bytes could be copied"
            )));
        }
        have += n;
        packets.push(u32::try_from(n).map_err(io::Error::other)?);
    }
    Ok((bytes, packets))
}

/// Puts content into a pipe, through a description of our own that does not wait for room: in packets of these lengths if there
/// are any.
///
/// # Errors
/// If it does not fit, or the packets are not the content.
fn put(end: impl AsFd, content: &[u8], packets: &[u32]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", end.as_fd().as_raw_fd());
    let writer = rustix::fs::open(path, flags, Mode::empty())?;
    let mut rest = content;
    if packets.is_empty() {
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&writer, rest)?..];
        }
        return Ok(());
    }
    // A pipe takes the flag in this way only.
    rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK | OFlags::DIRECT)?;
    for &packet in packets {
        let packet = usize::try_from(packet).unwrap_or(usize::MAX);
        let bad = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "its packets are not its content",
            )
        };
        let (bytes, others) = rest.split_at_checked(packet).ok_or_else(bad)?;
        if bytes.is_empty() || rustix::io::write(&writer, bytes)? != packet {
            return Err(bad());
        }
        rest = others;
    }
    Ok(())
}

/// A new pipe, or a named one that is there, of which descriptions are handed out.
#[derive(Debug)]
pub(crate) struct NewPipe {
    reader: OwnedFd,
    /// A named pipe has none, so that nobody sees a writer that was not there.
    writer: Option<OwnedFd>,
    /// Whether the description of each end that was made with the pipe has been handed out.
    handed_out: (bool, bool),
    /// Whether others have a named pipe open, who then have its content too.
    in_use: bool,
}

impl NewPipe {
    /// Makes a pipe. Where the kernel refuses its size (an ordinary user's pipes may hold 64 MiB
    /// together) it has the usual one.
    ///
    /// # Errors
    /// Those of pipe2(2) and of opening a named one; [`ProcError::BadImage`] for a size that cannot be.
    pub fn new(image: &PipeImage, warn: impl Fn(String)) -> Result<Self, ProcError> {
        if image.capacity > GREATEST_CAPACITY {
            return Err(ProcError::BadImage(format!(
                "it has a pipe of {} bytes",
                image.capacity
            )));
        }
        let pipe = match &image.name {
            Some(name) => {
                let (reader, in_use) = name.open(&warn)?;
                Self {
                    reader,
                    writer: None,
                    handed_out: (true, true),
                    in_use,
                }
            }
            None => {
                let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)
                    .map_err(ProcError::system("making a pipe"))?;
                Self {
                    reader,
                    writer: Some(writer),
                    handed_out: (false, false),
                    in_use: false,
                }
            }
        };
        if !pipe.in_use
            && let Err(errno) = rustix::pipe::fcntl_setpipe_size(&pipe.reader, image.capacity)
        {
            warn(format!(
                "a pipe of {} bytes is made smaller: {errno}",
                image.capacity
            ));
        }
        Ok(pipe)
    }

    /// A description of one end, or of both, as its flags say. The first of each end is the one
    /// that was made with the pipe; others are opened, which shows in that they have `O_LARGEFILE`.
    ///
    /// # Errors
    /// Those of opening it through `/proc/self/fd`.
    pub fn description(&mut self, end: PipeEnd, flags: u32) -> Result<OwnedFd, ProcError> {
        let status =
            OFlags::from_bits_retain(flags) & (OFlags::NONBLOCK | OFlags::APPEND | OFlags::DIRECT);
        let set_status = |fd: &OwnedFd| {
            rustix::fs::fcntl_setfl(fd, status)
                .map_err(ProcError::system("setting the flags of a pipe"))
        };
        let was_opened = OFlags::from_bits_retain(flags).contains(OFlags::LARGEFILE);
        let first = match (can_read(flags), can_write(flags)) {
            _ if was_opened => None,
            (true, false) => {
                (!std::mem::replace(&mut self.handed_out.0, true)).then_some(&self.reader)
            }
            (false, true) => match &self.writer {
                Some(writer) => {
                    (!std::mem::replace(&mut self.handed_out.1, true)).then_some(writer)
                }
                None => None,
            },
            _ => None,
        };
        if let Some(end) = first {
            set_status(end)?;
            return end
                .try_clone()
                .map_err(ProcError::system("duplicating the end of a pipe"));
        }
        // For a reading end opened while there is a writer the kernel reports later that there is none any more.
        let is_named = self.writer.is_none();
        let _writer = if is_named && can_read(flags) && !end.awaits_writer {
            Some(open_again(&self.reader, OFlags::WRONLY | OFlags::NONBLOCK)?)
        } else {
            None
        };
        let access = OFlags::from_bits_retain(flags) & OFlags::RWMODE;
        let opened = open_again(&self.reader, access | OFlags::NONBLOCK)?;
        set_status(&opened)?;
        Ok(opened)
    }

    /// Puts its content in, in packets if it was in packets.
    ///
    /// # Errors
    /// If it does not fit; [`ProcError::BadImage`] if the packets are not the content.
    pub fn fill(&self, content: &[u8], packets: &[u32]) -> Result<(), ProcError> {
        if self.in_use {
            return Ok(());
        }
        let end = self.writer.as_ref().unwrap_or(&self.reader);
        put(end, content, packets).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ProcError::BadImage(format!("a pipe: {error}")),
            _ => ProcError::System {
                what: format!("putting the content of {} bytes into a pipe", content.len()),
                source: error,
            },
        })
    }
}

/// Another description of a pipe. Opening one end does not wait for the other: we hold both, or do not block.
fn open_again(end: &OwnedFd, flags: OFlags) -> Result<OwnedFd, ProcError> {
    let path = format!("/proc/self/fd/{}", end.as_raw_fd());
    rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(ProcError::file("open", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: PipeEnd = PipeEnd {
        pipe: 0,
        awaits_writer: false,
    };

    #[test]
    fn what_is_taken_out_is_put_back() {
        for packets in [false, true] {
            let flags = if packets {
                PipeFlags::DIRECT
            } else {
                PipeFlags::empty()
            };
            let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | flags).unwrap();
            for text in ["one", "another"] {
                rustix::io::write(&writer, text.as_bytes()).unwrap();
            }
            let expected = content(reader.as_fd(), packets).unwrap();
            let taken = read_out(&reader, 10).unwrap();
            assert_eq!(taken, expected);
            put(&reader, &taken.0, if packets { &taken.1 } else { &[] }).unwrap();
            assert_eq!(content(reader.as_fd(), packets).unwrap(), expected);
            let bad = put(&reader, b"abc", &[4]).unwrap_err();
            assert_eq!(bad.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn content_is_copied_and_stays() {
        let pipe = NewPipe::new(
            &PipeImage {
                capacity: 1 << 17,
                ..PipeImage::default()
            },
            |_| {},
        )
        .unwrap();
        assert_eq!(
            content(pipe.reader.as_fd(), false).unwrap(),
            (vec![], vec![])
        );
        // Many small writes take a buffer each, up to the number of buffers.
        let mut expected = Vec::new();
        for n in 0..32_u8 {
            let bytes = vec![n; 4096 - usize::from(n)];
            pipe.fill(&bytes, &[]).unwrap();
            expected.extend(bytes);
        }
        assert_eq!(content(pipe.reader.as_fd(), false).unwrap().0, expected);
        assert_eq!(content(pipe.reader.as_fd(), false).unwrap().0, expected);
        assert!(pipe.fill(&[0; 8192], &[]).is_err());
        let again = NewPipe::new(
            &PipeImage {
                capacity: 1 << 17,
                ..PipeImage::default()
            },
            |_| {},
        )
        .unwrap();
        again.fill(&expected, &[]).unwrap();
        assert_eq!(content(again.reader.as_fd(), false).unwrap().0, expected);
    }

    #[test]
    fn descriptions_are_of_the_end_that_their_flags_say() {
        let mut pipe = NewPipe::new(
            &PipeImage {
                capacity: 65536,
                ..PipeImage::default()
            },
            |_| {},
        )
        .unwrap();
        let writer = pipe
            .description(END, libc::O_WRONLY.cast_unsigned())
            .unwrap();
        let reader = pipe
            .description(END, (libc::O_RDONLY | libc::O_NONBLOCK).cast_unsigned())
            .unwrap();
        let other_reader = pipe
            .description(END, libc::O_RDONLY.cast_unsigned())
            .unwrap();
        let both = pipe.description(END, libc::O_RDWR.cast_unsigned()).unwrap();
        drop(pipe);
        let flags = |fd: &OwnedFd| rustix::fs::fcntl_getfl(fd).unwrap() - OFlags::LARGEFILE;
        assert_eq!(flags(&reader), OFlags::RDONLY | OFlags::NONBLOCK);
        assert_eq!(flags(&other_reader), OFlags::RDONLY);
        assert_eq!(flags(&writer), OFlags::WRONLY);
        assert_eq!(flags(&both), OFlags::RDWR);
        drop((both, other_reader));
        let mut buffer = [0; 8];
        assert_eq!(
            rustix::io::read(&reader, &mut buffer),
            Err(rustix::io::Errno::AGAIN)
        );
        assert_eq!(rustix::io::write(&writer, b"abc"), Ok(3));
        drop(writer);
        assert_eq!(rustix::io::read(&reader, &mut buffer), Ok(3));
        // A child that another test has just forked may hold the writing end for a moment longer, up to its exec.
        let mut ends = [rustix::event::PollFd::new(
            &reader,
            rustix::event::PollFlags::empty(),
        )];
        rustix::event::poll(&mut ends, None).unwrap();
        assert_eq!(rustix::io::read(&reader, &mut buffer), Ok(0));
    }

    #[test]
    fn packets_stay_packets() {
        let image = PipeImage {
            capacity: 65536,
            ..PipeImage::default()
        };
        let pipe = NewPipe::new(&image, |_| {}).unwrap();
        pipe.fill(b"abcdefghij", &[1, 5, 4]).unwrap();
        let found = content(pipe.reader.as_fd(), false).unwrap();
        assert_eq!(found, (b"abcdefghij".to_vec(), vec![1, 5, 4]));
        let mut buffer = [0; 64];
        assert_eq!(rustix::io::read(&pipe.reader, &mut buffer), Ok(1));
        assert_eq!(rustix::io::read(&pipe.reader, &mut buffer), Ok(5));
        for bad in [&[4, 4][..], &[0, 1], &[u32::MAX]] {
            assert!(pipe.fill(b"abc", bad).is_err());
        }
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(
            NewPipe::new(
                &PipeImage {
                    capacity: usize::MAX,
                    ..PipeImage::default()
                },
                |_| {}
            )
            .is_err()
        );
    }
}
