//! Reading what waits to be read, without taking it out, and making what waits to be sent arrive.
//!
//! What a sender has not sent, because its peer's buffer is full or because it waits for more
//! (`TCP_CORK`), nobody can read; but the peer is stopped and part of the image too, so it may as well
//! arrive. All that is changed for this is harmless if it stays: this process may be killed at any
//! moment, and the program goes on.

use super::observe;
use super::options::RECEIVE_LOCK;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, recvfrom};
use snapify_sys::inet_diag::TcpState;
use snapify_sys::sockopt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const SO_BUF_LOCK: i32 = 72;
const PEEK: RecvFlags = RecvFlags::PEEK.union(RecvFlags::DONTWAIT);

/// What waits to be read from a TCP socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unread {
    pub bytes: Vec<u8>,
    /// An urgent byte, which is not among the others, and how many precede it.
    pub urgent: Option<(usize, u8)>,
}

/// Reads what waits to be read. `received` is how much the kernel says that it holds, if it does: an
/// urgent mark (`MSG_OOB`) hides what is behind it.
///
/// # Errors
/// Those of the calls, or if not all of it can be read.
pub(super) fn unread(socket: BorrowedFd<'_>, received: Option<usize>) -> io::Result<Unread> {
    let before = usize::try_from(rustix::io::ioctl_fionread(socket)?).unwrap_or(0);
    let expected = received.unwrap_or(before).max(before);
    if expected == 0 {
        return Ok(Unread::default());
    }
    let mut bytes = vec![0; expected];
    // Reading nothing but the end, or an error, would take the error away.
    let mut have = if before > 0 {
        peek(socket, &mut bytes)?
    } else {
        0
    };
    let mark = have;
    let mut urgent = None;
    if have < expected {
        let mut byte = [0];
        // Not if it is in line or was read already.
        if recv(socket, &mut byte, PEEK | RecvFlags::OOB) == Ok((1, 1)) {
            urgent = Some((mark, byte[0]));
        }
        let is_inline = sockopt::get_int(socket, SOCKET, libc::SO_OOBINLINE)? != 0;
        have += at_offset(socket, mark, |socket| peek(socket, &mut bytes[mark..]))?;
        if is_inline && have > mark {
            urgent = Some((mark, bytes.remove(mark)));
            have -= 1;
        }
        // The mark itself takes a place, read or not.
        have += 1;
    }
    if have != expected {
        let text = format!("only {have} of {expected} bytes can be read");
        return Err(io::Error::other(text));
    }
    bytes.truncate(have - usize::from(mark < expected));
    Ok(Unread { bytes, urgent })
}

fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *buffer, PEEK) {
            Ok((length, _)) => return Ok(length),
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Does something while peeking begins at an offset (`SO_PEEK_OFF`), which TCP has since Linux 6.9.
fn at_offset<T>(
    socket: BorrowedFd<'_>,
    offset: usize,
    act: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let usual = sockopt::get_int(socket, SOCKET, libc::SO_PEEK_OFF)?;
    let offset = i32::try_from(offset).map_err(io::Error::other)?;
    sockopt::set_int(socket, SOCKET, libc::SO_PEEK_OFF, offset)?;
    let result = act(socket);
    sockopt::set_int(socket, SOCKET, libc::SO_PEEK_OFF, usual)?;
    result
}

/// Reads all datagrams that wait to be read, with their senders.
///
/// An empty one behind others is seen once only: the kernel marks it as seen, and passes it over the
/// next time.
///
/// # Errors
/// Those of the calls.
pub(super) fn datagrams(socket: BorrowedFd<'_>) -> io::Result<Vec<(SocketAddr, Vec<u8>)>> {
    const LONGEST: usize = 1 << 16;
    let mut buffer = vec![0; LONGEST];
    let mut all = Vec::new();
    at_offset(socket, 0, |socket| {
        loop {
            match recvfrom(socket, &mut *buffer, PEEK) {
                Ok((length, _, from)) => {
                    let from = from.ok_or(Errno::DESTADDRREQ)?;
                    all.push((SocketAddr::try_from(from)?, buffer[..length].to_vec()));
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    })?;
    Ok(all)
}

/// Makes everything arrive that `sender` was given to send, its FIN included.
///
/// # Errors
/// Those of the calls, or if the receiver's buffer cannot be made large enough.
pub(super) fn settle(sender: BorrowedFd<'_>, receiver: BorrowedFd<'_>) -> io::Result<()> {
    let quiet = |sender| match sockopt::unacknowledged(sender) {
        Ok(0) => Ok(true),
        Ok(_) => Ok(false),
        Err(error) => Err(error),
    };
    if quiet(sender)? {
        return Ok(());
    }
    let unsent = sockopt::unsent(sender)?;
    arrive(receiver, unsent, || {
        push(sender);
        quiet(sender)
    })
    .map_err(|error| match sockopt::unacknowledged(sender) {
        Ok(left) if error.kind() == io::ErrorKind::TimedOut => io::Error::other(format!(
            "{left} bytes do not fit into the buffer of the receiver"
        )),
        _ => error,
    })
}

/// Makes everything arrive that the kernel has still to send to `receiver` for a socket that was closed: `unsent` bytes and
/// the FIN.
///
/// # Errors
/// As [`settle`].
pub(super) fn settle_closed(receiver: BorrowedFd<'_>, unsent: usize) -> io::Result<()> {
    arrive(receiver, unsent, || Ok(!awaits_more(receiver))).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => io::Error::other("it does not fit into the buffer"),
        _ => error,
    })
}

/// Makes room for `unsent` bytes and waits until `quiet` tells that all has arrived.
fn arrive(
    receiver: BorrowedFd<'_>,
    unsent: usize,
    quiet: impl Fn() -> io::Result<bool>,
) -> io::Result<()> {
    // Data that found no room when it was sent comes again after a time-out of the sender, 0.2 s at
    // first and doubled each time.
    const PATIENCE: Duration = Duration::from_secs(5);
    let mut room = Room::new(receiver)?;
    acknowledge(receiver);
    let begin = Instant::now();
    while !quiet()? {
        if begin.elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        room.make(unsent)?;
        acknowledge(receiver);
        // Nothing tells when the acknowledgement has come: neither end becomes readable or writable by
        // it.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Has the sender send what it holds back.
fn push(sender: BorrowedFd<'_>) {
    // Switching Nagle's algorithm off sends even what is corked.
    if sockopt::get_int(sender, TCP, libc::TCP_NODELAY).is_ok_and(|on| on == 0)
        && sockopt::set_int(sender, TCP, libc::TCP_NODELAY, 1).is_ok()
    {
        let _ = sockopt::set_int(sender, TCP, libc::TCP_NODELAY, 0);
    }
}

/// Has the receiver acknowledge what it has, and tell of the room that there is.
fn acknowledge(receiver: BorrowedFd<'_>) {
    let _ = sockopt::set_int(receiver, TCP, libc::TCP_QUICKACK, 1);
    // Reading has the receiver tell the sender of new room, even if it takes nothing out. It would
    // take away an error, which an established connection has not.
    if awaits_more(receiver)
        && rustix::io::ioctl_fionread(receiver).is_ok_and(|waiting| waiting > 0)
    {
        let _ = recv(receiver, &mut [0; 1], PEEK);
    }
}

/// Whether the peer's FIN has not come yet.
fn awaits_more(receiver: BorrowedFd<'_>) -> bool {
    matches!(
        observe::state(receiver),
        Ok(TcpState::Established | TcpState::FinWait1 | TcpState::FinWait2)
    )
}

/// A receive buffer that is made larger for a while.
struct Room<'a> {
    socket: BorrowedFd<'a>,
    /// Its size, and whether the program has set it.
    usual: (i32, bool),
    changed: bool,
}

impl<'a> Room<'a> {
    fn new(socket: BorrowedFd<'a>) -> io::Result<Self> {
        let size = sockopt::get_int(socket, SOCKET, libc::SO_RCVBUF)?;
        let locks = sockopt::get_int(socket, SOCKET, SO_BUF_LOCK).unwrap_or(0);
        Ok(Self {
            socket,
            usual: (size, locks & RECEIVE_LOCK != 0),
            changed: false,
        })
    }

    /// Makes room for `more` bytes beside those that are there. Bookkeeping takes as much again.
    fn make(&mut self, more: usize) -> io::Result<()> {
        if self.changed || more == 0 {
            return Ok(());
        }
        self.changed = true;
        let waiting = usize::try_from(rustix::io::ioctl_fionread(self.socket)?).unwrap_or(0);
        enlarge(self.socket, waiting.saturating_add(more))
    }
}

impl Drop for Room<'_> {
    /// A buffer that is larger than the program thinks does no harm, so failures are passed over.
    fn drop(&mut self) {
        let (size, locked) = self.usual;
        if !self.changed {
            return;
        }
        // The kernel doubles what it is told, and limits it. It may have made the buffer larger than
        // anybody may ask for; then it stays as it is now.
        if locked || size / 2 <= most_to_ask_for() {
            let _ = sockopt::set_int(self.socket, SOCKET, libc::SO_RCVBUF, size / 2);
            if !locked {
                unlock(self.socket);
            }
        }
    }
}

/// Makes a receive buffer large enough for so many bytes, if anything does.
pub(super) fn enlarge(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    // Twice as much for small segments, each of which takes a kilobyte or so, and some.
    let wanted = i32::try_from(bytes.saturating_mul(2).saturating_add(1 << 17)).unwrap_or(i32::MAX);
    if wanted <= most_to_ask_for() {
        sockopt::set_int(socket, SOCKET, libc::SO_RCVBUF, wanted)?;
        unlock(socket);
        return Ok(());
    }
    // Whoever wants to be woken only when there is much to read gets a buffer for so much, within
    // the limits of the kernel's own tuning. Those are wider than what an ordinary user may ask for; but
    // they hold only for a size that is not set.
    unlock(socket);
    let usual = sockopt::get_int(socket, SOCKET, libc::SO_RCVLOWAT)?;
    sockopt::set_int(socket, SOCKET, libc::SO_RCVLOWAT, wanted)?;
    sockopt::set_int(socket, SOCKET, libc::SO_RCVLOWAT, usual)
}

fn unlock(socket: BorrowedFd<'_>) {
    if let Ok(locks) = sockopt::get_int(socket, SOCKET, SO_BUF_LOCK) {
        let _ = sockopt::set_int(socket, SOCKET, SO_BUF_LOCK, locks & !RECEIVE_LOCK);
    }
}

/// The largest `SO_RCVBUF`, before the kernel doubles it.
fn most_to_ask_for() -> i32 {
    std::fs::read_to_string("/proc/sys/net/core/rmem_max")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// Sends until nothing fits any more.
    fn stuff(sender: &TcpStream) -> Vec<u8> {
        sender.set_nonblocking(true).unwrap();
        let mut sent = Vec::new();
        loop {
            let block: Vec<u8> = (0..7777).map(|n| (n + sent.len() * 7) as u8).collect();
            match (&*sender).write(&block) {
                Ok(n) => sent.extend(&block[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return sent,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn what_waits_stays() {
        let (mut a, mut b) = pair();
        assert_eq!(unread(b.as_fd(), None).unwrap(), Unread::default());
        a.write_all(b"hello").unwrap();
        for _ in 0..2 {
            assert_eq!(unread(b.as_fd(), None).unwrap().bytes, b"hello");
        }
        drop(a);
        assert_eq!(unread(b.as_fd(), None).unwrap().bytes, b"hello");
        let mut text = String::new();
        b.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn full_queues_are_emptied_and_nothing_is_lost() {
        for size in [None, Some(4096), Some(100_000)] {
            let (a, b) = pair();
            if let Some(size) = size {
                sockopt::set_int(b.as_fd(), SOCKET, libc::SO_RCVBUF, size).unwrap();
            }
            let buffer = |socket: &TcpStream| {
                let read = |option| sockopt::get_int(socket.as_fd(), SOCKET, option).unwrap();
                (read(libc::SO_RCVBUF), read(SO_BUF_LOCK))
            };
            let usual = buffer(&b);
            let sent = stuff(&a);
            assert!(sockopt::unsent(&a).unwrap() > 0);
            settle(a.as_fd(), b.as_fd()).unwrap();
            assert_eq!(sockopt::unacknowledged(&a).unwrap(), 0);
            assert!(unread(b.as_fd(), None).unwrap().bytes == sent);
            if size.is_some() {
                assert_eq!(buffer(&b), usual);
            }
            drop(a);
            let mut received = Vec::new();
            (&b).read_to_end(&mut received).unwrap();
            assert!(received == sent, "{} of {}", received.len(), sent.len());
        }
    }

    #[test]
    fn what_a_closed_socket_has_not_sent_arrives() {
        let (a, b) = pair();
        sockopt::set_int(b.as_fd(), SOCKET, libc::SO_RCVBUF, 4096).unwrap();
        let sent = stuff(&a);
        let unsent = sockopt::unsent(&a).unwrap();
        assert!(unsent > 0);
        drop(a);
        settle_closed(b.as_fd(), unsent).unwrap();
        assert_eq!(observe::state(b.as_fd()).unwrap(), TcpState::CloseWait);
        assert!(unread(b.as_fd(), None).unwrap().bytes == sent);
        settle_closed(b.as_fd(), 0).unwrap();
    }

    #[test]
    fn corked_data_arrives() {
        let (mut a, b) = pair();
        sockopt::set_int(&a, TCP, libc::TCP_CORK, 1).unwrap();
        a.write_all(b"corked").unwrap();
        assert_eq!(sockopt::unsent(&a).unwrap(), 6);
        settle(a.as_fd(), b.as_fd()).unwrap();
        assert_eq!(unread(b.as_fd(), None).unwrap().bytes, b"corked");
        assert_eq!(sockopt::get_int(&a, TCP, libc::TCP_CORK).unwrap(), 1);
    }

    #[test]
    fn urgent_bytes_are_told_apart() {
        use rustix::net::{SendFlags, send};
        for inline in [0, 1] {
            let (a, b) = pair();
            sockopt::set_int(&b, SOCKET, libc::SO_OOBINLINE, inline).unwrap();
            send(&a, b"before", SendFlags::empty()).unwrap();
            send(&a, b"!", SendFlags::OOB).unwrap();
            send(&a, b"after", SendFlags::empty()).unwrap();
            let expected = Unread {
                bytes: b"beforeafter".to_vec(),
                urgent: Some((6, b'!')),
            };
            for _ in 0..2 {
                assert_eq!(unread(b.as_fd(), Some(12)).unwrap(), expected);
            }
        }
    }

    #[test]
    fn datagrams_keep_their_bounds_and_senders() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let senders = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let sent: [&[u8]; 4] = [b"one", b"", b"three", b"4"];
        let mut expected = Vec::new();
        for (n, content) in sent.iter().enumerate() {
            let sender = &senders[n % 2];
            sender
                .send_to(content, receiver.local_addr().unwrap())
                .unwrap();
            expected.push((sender.local_addr().unwrap(), content.to_vec()));
        }
        assert_eq!(datagrams(receiver.as_fd()).unwrap(), expected);
        let mut buffer = [0; 100];
        for (from, content) in expected {
            let (length, sender) = receiver.recv_from(&mut buffer).unwrap();
            assert_eq!((sender, &buffer[..length]), (from, &content[..]));
        }
    }
}
