//! Looking at what a socket has received without taking it out: the program must find it there, even if this
//! program is killed half-way.
//!
//! Peeking shows the first message only, and of a stream what comes before the end of the first descriptors. A
//! stream is cut into the pieces in which it was sent: descriptors come with the first byte of their piece, a full buffer
//! would not be full with other pieces. Behind what is shown leads the socket's offset for peeking (`SO_PEEK_OFF`), which is set for the time and set back.
//!
//! Corner cases of the kernel:
//! - Peeking at an empty queue takes a pending error (`sock_error`), so that none must be tried there.
//! - A datagram without bytes is shown at an offset only once ever (`skb->peeked`): one behind the first place
//!   that an earlier checkpoint has seen is not seen again.
//! - A message without bytes and the end of a connection look the same, but for the credentials
//!   that come with any message if they are asked for.

use super::image::Kind;
use rustix::event::{PollFd, PollFlags, Timespec};
use snapify_sys::sockopt;
use snapify_sys::unix_socket::{self, Credentials, Peeked};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A message in a queue, or a part of a stream.
#[derive(Debug, Default)]
pub(super) struct Queued {
    pub bytes: Vec<u8>,
    pub sender: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
    pub credentials: Option<Credentials>,
    pub urgent: bool,
}

/// Bytes of a message that are looked at first; most are shorter.
const USUAL_MESSAGE: usize = 1 << 16;
/// Longest message: the size of a buffer is an `int`.
const LONGEST_MESSAGE: usize = 1 << 31;
/// Messages in a queue: each takes memory of the kernel, and all together no more than a buffer may have.
const MOST_MESSAGES: usize = 1 << 22;
/// Bytes that are copied at most to learn into which pieces a stream was cut: every piece takes a copy of all
/// before it. Who has sent gigabytes in small pieces will find them in larger ones.
const MOST_EFFORT: usize = 1 << 28;

/// Whether the next call on the socket reports an error, whether there is something to read, and whether a
/// byte has come out of band.
pub(super) struct Events {
    pub error: bool,
    pub readable: bool,
    pub urgent: bool,
}

impl Events {
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let wanted = PollFlags::IN | PollFlags::PRI;
        let mut polled = [PollFd::new(&socket, wanted)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut polled, Some(&at_once))?;
        let seen = polled[0].revents();
        Ok(Self {
            error: seen.contains(PollFlags::ERR),
            readable: seen.contains(PollFlags::IN),
            urgent: seen.contains(PollFlags::PRI),
        })
    }
}

/// All that a socket has received. `receives` is false if it has been shut down for that, which shows as the
/// end of the file.
///
/// # Errors
/// In words for its user, what cannot be seen.
pub(super) fn look(
    socket: BorrowedFd<'_>,
    kind: Kind,
    receives: bool,
) -> Result<Vec<Queued>, String> {
    let unreadable = |error: io::Error| format!("what it has received cannot be read: {error}");
    let events = Events::of(socket).map_err(unreadable)?;
    let waiting = rustix::io::ioctl_fionread(socket)
        .map_err(|errno| unreadable(errno.into()))
        .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))?;
    if kind == Kind::Stream {
        return match (waiting, events.urgent) {
            (0, _) => Ok(Vec::new()),
            (_, false) => stream(socket, waiting).map_err(unreadable),
            (_, true) => urgent(socket, waiting).map_err(unreadable)?.ok_or_else(|| {
                "it has received a byte out of band among descriptors, which is not supported"
                    .into()
            }),
        };
    }
    if events.error && events.readable && waiting > 0 {
        return Err(
            "an error is pending before the messages that it has received, which is not supported"
                .into(),
        );
    }
    if events.error || !events.readable {
        return Ok(Vec::new());
    }
    messages(socket, kind == Kind::Packet && !receives).map_err(unreadable)
}

/// A stream with a byte that was sent out of band. What is shown at once ends before that byte; at its place it is
/// passed over, unless it is wanted inline. `None` if descriptors make that unclear.
fn urgent(socket: BorrowedFd<'_>, waiting: usize) -> io::Result<Option<Vec<Queued>>> {
    let inline = sockopt::get_int(socket, libc::SOL_SOCKET, libc::SO_OOBINLINE)? != 0;
    let at_mark = unix_socket::at_mark(socket)?;
    if at_mark && !inline {
        let mut queued = vec![Queued {
            bytes: vec![unix_socket::peek_urgent(socket)?],
            urgent: true,
            ..Queued::default()
        }];
        queued.extend(stream(socket, waiting - 1)?);
        return Ok(Some(queued));
    }
    let mut buffer = vec![0; waiting];
    let mark = match at_mark {
        true => 0,
        false => unix_socket::peek(socket, &mut buffer)?.bytes,
    };
    let mut queued = stream(socket, waiting)?;
    let mut at = 0;
    for piece in &mut queued {
        if at == mark && piece.bytes.len() == 1 && piece.descriptors.is_empty() {
            piece.urgent = true;
            return Ok(Some(queued));
        }
        at += piece.bytes.len();
    }
    Ok(None)
}

/// The options that peeking changes, put back when dropped.
pub(super) struct Options<'a> {
    socket: BorrowedFd<'a>,
    changed: Vec<(i32, i32)>,
}

impl<'a> Options<'a> {
    pub fn of(socket: BorrowedFd<'a>) -> Self {
        Self {
            socket,
            changed: Vec::new(),
        }
    }

    fn set(&mut self, option: i32, value: i32) -> io::Result<()> {
        let level = libc::SOL_SOCKET;
        if !self.changed.iter().any(|&(known, _)| known == option) {
            let before = sockopt::get_int(self.socket, level, option)?;
            if before == value {
                return Ok(());
            }
            self.changed.push((option, before));
        }
        sockopt::set_int(self.socket, level, option, value)
    }

    /// Where the next look begins; `None` for the front.
    pub fn aim(&mut self, offset: Option<usize>) -> io::Result<()> {
        let offset = offset.map_or(Ok(-1), i32::try_from);
        self.set(libc::SO_PEEK_OFF, offset.map_err(io::Error::other)?)
    }
}

impl Drop for Options<'_> {
    fn drop(&mut self) {
        for &(option, before) in &self.changed {
            if let Err(error) = sockopt::set_int(self.socket, libc::SOL_SOCKET, option, before) {
                tracing::warn!("setting option {option} of a socket back to {before}: {error}");
            }
        }
    }
}

fn stream(socket: BorrowedFd<'_>, waiting: usize) -> io::Result<Vec<Queued>> {
    let mut options = Options::of(socket);
    let mut buffer = vec![0; waiting];
    let mut again = vec![0; waiting];
    let mut effort = 0;
    let mut queued: Vec<Queued> = Vec::new();
    let mut at = 0;
    while at < waiting {
        // Most streams are seen at once, so that nothing is changed.
        options.aim((at > 0).then_some(at))?;
        let seen = unix_socket::peek(socket, &mut buffer[at..])?;
        if seen.bytes == 0 {
            return Err(io::Error::other(format!(
                "only {at} of its {waiting} bytes are there"
            )));
        }
        let mut ends = vec![seen.bytes];
        let mut rest = seen.bytes;
        // From the last piece to the first, until the work gets out of hand.
        while rest > 0 && (effort < MOST_EFFORT || ends.len() == 1) {
            options.aim((at > 0).then_some(at))?;
            let begin = unix_socket::peek_whole(socket, &mut again[..rest - 1])?;
            effort += rest;
            rest = begin.min(rest - 1);
            ends.push(rest);
        }
        ends.extend((rest > 0).then_some(0));
        for piece in ends.windows(2).rev() {
            queued.push(Queued {
                bytes: buffer[at + piece[1]..at + piece[0]].to_vec(),
                credentials: seen.credentials,
                ..Queued::default()
            });
        }
        // What is shown at once ends with the piece that has descriptors.
        if let Some(last) = queued.last_mut() {
            last.descriptors = seen.descriptors;
        }
        at += seen.bytes;
    }
    Ok(queued)
}

fn messages(socket: BorrowedFd<'_>, may_be_end: bool) -> io::Result<Vec<Queued>> {
    let mut options = Options::of(socket);
    if may_be_end {
        options.set(libc::SO_PASSCRED, 1)?;
    }
    let mut queued: Vec<Queued> = Vec::new();
    let mut buffer = vec![0; USUAL_MESSAGE];
    let mut at = None;
    loop {
        let Some(seen) = message(socket, &mut options, at, &mut buffer)? else {
            return Ok(queued);
        };
        if seen.bytes == 0 && may_be_end && seen.credentials.is_none() {
            return Ok(queued);
        }
        if queued.len() >= MOST_MESSAGES {
            return Err(io::Error::other("there are more messages than can be"));
        }
        // The first is looked at without an offset: it is shown whatever was looked at before.
        at = Some(at.unwrap_or(0) + seen.bytes);
        queued.push(Queued {
            bytes: buffer[..seen.bytes].to_vec(),
            sender: seen.sender,
            descriptors: seen.descriptors,
            credentials: seen.credentials,
            urgent: false,
        });
    }
}

/// The message at an offset; `None` if there are no more. Makes the buffer larger as needed.
fn message(
    socket: BorrowedFd<'_>,
    options: &mut Options<'_>,
    at: Option<usize>,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Peeked>> {
    loop {
        options.aim(at)?;
        match unix_socket::peek(socket.as_fd(), buffer) {
            Ok(seen) if !seen.truncated => return Ok(Some(seen)),
            Ok(_) if buffer.len() >= LONGEST_MESSAGE => {
                return Err(io::Error::other("a message is longer than possible"));
            }
            Ok(_) => buffer.resize(buffer.len() * 2, 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, socketpair};
    use snapify_sys::unix_socket::{Outgoing, send};

    fn pair(kind: Kind) -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, kind.socket_type(), flags, None).unwrap()
    }

    fn put(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let message = Outgoing {
            bytes,
            descriptors,
            ..Outgoing::default()
        };
        assert_eq!(send(socket.as_fd(), &message).unwrap(), bytes.len());
    }

    fn seen(socket: &OwnedFd, kind: Kind) -> Vec<(Vec<u8>, usize)> {
        let all = look(socket.as_fd(), kind, true).unwrap();
        all.into_iter()
            .map(|one| (one.bytes, one.descriptors.len()))
            .collect()
    }

    #[test]
    fn a_stream_is_cut_into_what_was_sent() {
        let (a, b) = pair(Kind::Stream);
        assert_eq!(seen(&b, Kind::Stream), []);
        put(&a, b"hello", &[]);
        put(&a, b"world", &[a.as_fd(), b.as_fd()]);
        put(&a, b"and", &[a.as_fd()]);
        put(&a, b"mo", &[]);
        put(&a, b"re", &[]);
        let offset = |value| sockopt::set_int(&b, libc::SOL_SOCKET, libc::SO_PEEK_OFF, value);
        for before in [-1, 7] {
            offset(before).unwrap();
            let expected = [
                (b"hello".to_vec(), 0),
                (b"world".to_vec(), 2),
                (b"and".to_vec(), 1),
                (b"mo".to_vec(), 0),
                (b"re".to_vec(), 0),
            ];
            assert_eq!(seen(&b, Kind::Stream), expected);
            let after = sockopt::get_int(&b, libc::SOL_SOCKET, libc::SO_PEEK_OFF).unwrap();
            assert_eq!(after, before);
        }
        offset(-1).unwrap();
        let mut buffer = [0; 100];
        assert_eq!(rustix::io::read(&b, &mut buffer).unwrap(), 10);
    }

    #[test]
    fn messages_keep_their_boundaries() {
        for kind in [Kind::Datagram, Kind::Packet] {
            let (a, b) = pair(kind);
            assert_eq!(seen(&b, kind), []);
            put(&a, b"", &[]);
            put(&a, b"12345", &[]);
            put(&a, b"", &[]);
            put(&a, &[7; 100_000], &[a.as_fd()]);
            put(&a, b"", &[]);
            put(&a, b"x", &[]);
            let expected = [
                (b"".to_vec(), 0),
                (b"12345".to_vec(), 0),
                (b"".to_vec(), 0),
                (vec![7; 100_000], 1),
                (b"".to_vec(), 0),
                (b"x".to_vec(), 0),
            ];
            assert_eq!(seen(&b, kind), expected, "{kind:?}");
            let mut buffer = [0; 100];
            assert_eq!(rustix::io::read(&b, &mut buffer).unwrap(), 0);
            assert_eq!(rustix::io::read(&b, &mut buffer).unwrap(), 5);
        }
    }

    #[test]
    fn the_end_is_no_message() {
        for sent in [0, 1, 2] {
            let (a, b) = pair(Kind::Packet);
            for _ in 0..sent {
                put(&a, b"", &[]);
            }
            drop(a);
            let queued = look(b.as_fd(), Kind::Packet, false).unwrap();
            assert_eq!(queued.len(), sent);
            let option = sockopt::get_int(&b, libc::SOL_SOCKET, libc::SO_PASSCRED);
            assert_eq!(option.unwrap(), 0);
        }
    }

    #[test]
    fn a_byte_out_of_band_keeps_its_place() {
        for (before, behind, inline) in [
            (&b""[..], &b""[..], 0),
            (b"before", b"behind", 0),
            (b"", b"behind", 0),
            (b"before", b"", 0),
            (b"before", b"behind", 1),
            (b"", b"behind", 1),
        ] {
            let (a, b) = pair(Kind::Stream);
            sockopt::set_int(&b, libc::SOL_SOCKET, libc::SO_OOBINLINE, inline).unwrap();
            put(&a, before, &[]);
            let urgent = Outgoing {
                bytes: b"!",
                urgent: true,
                ..Outgoing::default()
            };
            send(a.as_fd(), &urgent).unwrap();
            put(&a, behind, &[]);
            let seen = look(b.as_fd(), Kind::Stream, true).unwrap();
            let seen: Vec<_> = seen.iter().map(|one| (&*one.bytes, one.urgent)).collect();
            let mut expected = vec![(before, false), (b"!", true), (behind, false)];
            expected.retain(|(bytes, _)| !bytes.is_empty());
            assert_eq!(seen, expected, "inline {inline}");
        }
    }

    #[test]
    fn a_pending_error_stays() {
        for kind in [Kind::Stream, Kind::Packet] {
            let (a, b) = pair(kind);
            put(&a, b"unread", &[]);
            drop(b);
            assert_eq!(look(a.as_fd(), kind, false).unwrap().len(), 0);
            let mut buffer = [0; 10];
            let reset = Err(rustix::io::Errno::CONNRESET);
            assert_eq!(rustix::io::read(&a, &mut buffer), reset, "{kind:?}");
        }
    }
}
