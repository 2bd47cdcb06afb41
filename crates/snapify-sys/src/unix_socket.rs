//! UNIX domain sockets (unix(7)): addresses of any bytes, and messages with all that comes along.
//!
//! An address is the content of `sun_path`: a path without the zero byte at its end, or a zero byte
//! and an abstract name, or nothing for a socket that is not bound.

use crate::sockopt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Longest address in bytes: a path of that length needs no zero byte.
pub const LONGEST_ADDRESS: usize = 108;
/// Most descriptors that one message can carry (`SCM_MAX_FD`).
pub const MOST_DESCRIPTORS: usize = 253;
/// `SCM_PIDFD`: a pidfd of the sender.
const SCM_PIDFD: i32 = 4;
/// Room for a full load of descriptors, credentials, a pidfd and a security label.
const CONTROL_WORDS: usize = 8192 / 8;

/// Ids of a process as sockets show them: those of the reader's namespaces, 0 and 65534 for what is
/// unknown there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl Credentials {
    /// From a `struct ucred`.
    fn from_bytes(bytes: [u8; 12]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(word)
        };
        Self {
            pid: word(0).cast_signed(),
            uid: word(4),
            gid: word(8),
        }
    }

    /// As a `struct ucred`.
    fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.uid.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.gid.to_ne_bytes());
        bytes
    }
}

/// Who is at the other end (`SO_PEERCRED`); process 0 and user -1 where nobody has been noted.
///
/// # Errors
/// `ENOPROTOOPT` for sockets of other families.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut value = [0; 12];
    sockopt::get(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut value)?;
    Ok(Credentials::from_bytes(value))
}

/// A message that was looked at.
#[derive(Debug)]
pub struct Peeked {
    /// How many bytes of it are in the buffer.
    pub bytes: usize,
    /// Whether it has more than the buffer holds.
    pub truncated: bool,
    /// Address of its sender.
    pub sender: Vec<u8>,
    /// Duplicates of the descriptors that it carries. They are closed on exec.
    pub descriptors: Vec<OwnedFd>,
    /// Who has sent it, if the socket asks for that (`SO_PASSCRED`).
    pub credentials: Option<Credentials>,
}

/// What to send.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing<'a> {
    /// The content.
    pub bytes: &'a [u8],
    /// To whom, if not to the socket's peer.
    pub to: Option<&'a [u8]>,
    /// Descriptors to go with it.
    pub descriptors: &'a [BorrowedFd<'a>],
    /// Whom the message shall seem to be from; others than oneself need privileges.
    pub credentials: Option<Credentials>,
    /// Whether its last byte is sent out of band (`MSG_OOB`).
    pub urgent: bool,
}

struct Address {
    raw: libc::sockaddr_un,
    length: libc::socklen_t,
}

const PATH_OFFSET: usize = std::mem::offset_of!(libc::sockaddr_un, sun_path);

impl Address {
    fn new(name: &[u8]) -> io::Result<Self> {
        let mut address = Self::empty();
        if name.len() > LONGEST_ADDRESS {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        for (to, from) in address.raw.sun_path.iter_mut().zip(name) {
            *to = from.cast_signed();
        }
        address.length = (PATH_OFFSET + name.len()) as libc::socklen_t;
        Ok(address)
    }

    fn empty() -> Self {
        // SAFETY: all-zero bytes are a valid `sockaddr_un`.
        let mut raw: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
        Self {
            raw,
            length: size_of::<libc::sockaddr_un>() as libc::socklen_t,
        }
    }

    /// What the kernel has filled in. It counts the zero byte at the end of a path, which does not
    /// even fit in if the path has 108 bytes.
    fn name(&self) -> Vec<u8> {
        let length = (self.length as usize)
            .saturating_sub(PATH_OFFSET)
            .min(LONGEST_ADDRESS);
        let bytes = self.raw.sun_path[..length].iter();
        let mut name: Vec<u8> = bytes.map(|byte| byte.cast_unsigned()).collect();
        if name.first().is_some_and(|&first| first != 0) {
            let end = name.iter().position(|&byte| byte == 0);
            name.truncate(end.unwrap_or(length));
        }
        name
    }
}

/// bind(2).
///
/// # Errors
/// `EADDRINUSE` if the name is taken, `EINVAL` if the socket has one.
pub fn bind(socket: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    let address = Address::new(name)?;
    // SAFETY: the kernel reads `address.length` bytes of an address of that length.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address.raw).cast(),
            address.length,
        )
    };
    crate::check(result.into()).map(drop)
}

/// connect(2).
///
/// # Errors
/// `ECONNREFUSED`, `ENOENT` if nobody has the name, `EAGAIN` if a non-blocking socket would have to wait.
pub fn connect(socket: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
    connect_to(socket, &Address::new(name)?)
}

/// Takes the peer of a datagram socket away (connect(2) with `AF_UNSPEC`).
///
/// # Errors
/// Those of connect(2).
pub fn disconnect(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut address = Address::new(b"")?;
    address.raw.sun_family = libc::AF_UNSPEC as libc::sa_family_t;
    connect_to(socket, &address)
}

fn connect_to(socket: BorrowedFd<'_>, address: &Address) -> io::Result<()> {
    // SAFETY: the kernel reads `address.length` bytes of an address of that length.
    let result = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&raw const address.raw).cast(),
            address.length,
        )
    };
    crate::check(result.into()).map(drop)
}

/// The address that a socket is bound to (getsockname(2)); empty for none.
///
/// # Errors
/// `ENOTSOCK`.
pub fn name(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut address = Address::empty();
    // SAFETY: the kernel writes at most `length` bytes of an address of that length.
    let result = unsafe {
        libc::getsockname(
            socket.as_raw_fd(),
            (&raw mut address.raw).cast(),
            &raw mut address.length,
        )
    };
    crate::check(result.into()).map(|_| address.name())
}

/// The address of a socket's peer (getpeername(2)); empty for one that is not bound.
///
/// # Errors
/// `ENOTCONN` if it has no peer.
pub fn peer_name(socket: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut address = Address::empty();
    // SAFETY: as in `name`.
    let result = unsafe {
        libc::getpeername(
            socket.as_raw_fd(),
            (&raw mut address.raw).cast(),
            &raw mut address.length,
        )
    };
    crate::check(result.into()).map(|_| address.name())
}

/// Looks at the message that the socket would receive next, or that is at its `SO_PEEK_OFF`, without taking
/// it out and without waiting.
///
/// # Errors
/// `EAGAIN` if there is none.
pub fn peek(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Peeked> {
    receive(
        socket,
        buffer,
        libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
    )
}

/// Looks at as many bytes of a stream as were sent in whole pieces that fit into the buffer, and tells how many that
/// are. Where one piece ends and the next begins shows nowhere else: here the kernel fails to copy a piece
/// that does not fit, because what is behind the buffer may not be written to.
///
/// # Errors
/// `EAGAIN` if there is nothing to be seen.
pub fn peek_whole(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    const BEHIND: usize = 4096;
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let wall = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            BEHIND,
            rustix::mm::ProtFlags::empty(),
            rustix::mm::MapFlags::PRIVATE,
        )
    }?;
    let mut vectors = [
        libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        },
        libc::iovec {
            iov_base: wall,
            iov_len: BEHIND,
        },
    ];
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len();
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the header points to the live buffer, and to memory that cannot be written to.
    let seen = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let result = crate::check(seen as libc::c_long);
    // SAFETY: the mapping was made above, and nothing refers to it any more.
    let _ = unsafe { rustix::mm::munmap(wall, BEHIND) };
    match result {
        // The first piece is too long.
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
        other => other.map(|bytes| bytes as usize),
    }
}

/// Looks at the byte that was sent out of band, without taking it out.
///
/// # Errors
/// `EINVAL` if there is none.
pub fn peek_urgent(socket: BorrowedFd<'_>) -> io::Result<u8> {
    let mut byte = [0];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_OOB;
    match receive(socket, &mut byte, flags)?.bytes {
        1 => Ok(byte[0]),
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Whether the next byte that the socket would receive is the one that was sent out of band (`SIOCATMARK`).
///
/// # Errors
/// `EOPNOTSUPP`, `ENOTTY` in a kernel without that for UNIX sockets.
pub fn at_mark(socket: BorrowedFd<'_>) -> io::Result<bool> {
    const SIOCATMARK: libc::Ioctl = 0x8905;
    let mut answer: libc::c_int = 0;
    // SAFETY: the kernel writes one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCATMARK, &raw mut answer) };
    crate::check(result.into()).map(|_| answer != 0)
}

fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: i32) -> io::Result<Peeked> {
    let mut address = Address::empty();
    let mut control = [0_u64; CONTROL_WORDS];
    let mut vector = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = (&raw mut address.raw).cast();
    header.msg_namelen = address.length;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the header points to live buffers of the lengths that it tells.
    let received = crate::check(
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) } as libc::c_long,
    )?;
    address.length = header.msg_namelen;
    let mut peeked = Peeked {
        bytes: received as usize,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        sender: if header.msg_namelen == 0 {
            Vec::new()
        } else {
            address.name()
        },
        descriptors: Vec::new(),
        credentials: None,
    };
    take_control(&header, &mut peeked);
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        // Descriptors that did not come along, for the limit of open files.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok(peeked)
}

/// Takes over all that came with a message.
fn take_control(header: &libc::msghdr, peeked: &mut Peeked) {
    // SAFETY: the kernel has filled in the header and its control messages.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a control message within the buffer.
        let (message, data) = unsafe { (*at, libc::CMSG_DATA(at)) };
        // SAFETY: computes a length.
        let overhead = unsafe { libc::CMSG_LEN(0) } as usize;
        // SAFETY: a control message has that many bytes of data behind its header.
        let data =
            unsafe { std::slice::from_raw_parts(data, message.cmsg_len.saturating_sub(overhead)) };
        if message.cmsg_level == libc::SOL_SOCKET {
            take_one(message.cmsg_type, data, peeked);
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
}

fn take_one(kind: i32, data: &[u8], peeked: &mut Peeked) {
    let descriptors = data.chunks_exact(4).map(|chunk| {
        let mut number = [0; 4];
        number.copy_from_slice(chunk);
        // SAFETY: the kernel has just installed these descriptors for us.
        unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes(number)) }
    });
    match kind {
        libc::SCM_RIGHTS => peeked.descriptors.extend(descriptors),
        // Made for the reader, no part of the message.
        SCM_PIDFD => descriptors.for_each(drop),
        libc::SCM_CREDENTIALS => {
            if let Ok(bytes) = data.try_into() {
                peeked.credentials = Some(Credentials::from_bytes(bytes));
            }
        }
        _ => {}
    }
}

/// Sends one message without waiting; a signal for a closed peer is suppressed. Returns how many of its bytes have gone.
///
/// # Errors
/// `EAGAIN` if there is no room; `EPERM`, `ESRCH` for credentials that one may not give; others of sendmsg(2).
pub fn send(socket: BorrowedFd<'_>, message: &Outgoing<'_>) -> io::Result<usize> {
    if message.descriptors.len() > MOST_DESCRIPTORS {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut address = message.to.map(Address::new).transpose()?;
    let mut control = [0_u64; CONTROL_WORDS];
    let mut vector = libc::iovec {
        iov_base: message.bytes.as_ptr().cast_mut().cast(),
        iov_len: message.bytes.len(),
    };
    // SAFETY: all-zero bytes are a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    if let Some(address) = &mut address {
        header.msg_name = (&raw mut address.raw).cast();
        header.msg_namelen = address.length;
    }
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    let mut used = 0;
    if let Some(credentials) = message.credentials {
        used += put_control(
            &mut control,
            used,
            libc::SCM_CREDENTIALS,
            &credentials.to_bytes(),
        );
    }
    if !message.descriptors.is_empty() {
        let numbers = message.descriptors.iter();
        let bytes: Vec<u8> = numbers
            .flat_map(|descriptor| descriptor.as_raw_fd().to_ne_bytes())
            .collect();
        used += put_control(&mut control, used, libc::SCM_RIGHTS, &bytes);
    }
    if used > 0 {
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = used;
    }
    let urgent = if message.urgent { libc::MSG_OOB } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | urgent;
    // SAFETY: the header points to live buffers of the lengths that it tells; the kernel only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    crate::check(sent as libc::c_long).map(|bytes| bytes as usize)
}

/// Writes a control message at byte `at`, and tells the room that it takes. The buffer holds any load that [`send`] accepts.
fn put_control(buffer: &mut [u64; CONTROL_WORDS], at: usize, kind: i32, data: &[u8]) -> usize {
    // SAFETY: these compute lengths.
    let (length, space) = unsafe {
        (
            libc::CMSG_LEN(data.len() as u32) as usize,
            libc::CMSG_SPACE(data.len() as u32) as usize,
        )
    };
    assert!(
        at + space <= size_of_val(buffer),
        "the control buffer is large enough"
    );
    let header = libc::cmsghdr {
        cmsg_len: length,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: kind,
    };
    // SAFETY: `at` is a sum of CMSG_SPACEs, so that it is aligned; header and data lie within the buffer.
    unsafe {
        let place = buffer.as_mut_ptr().cast::<u8>().add(at);
        place.cast::<libc::cmsghdr>().write(header);
        let body = libc::CMSG_DATA(place.cast());
        std::ptr::copy_nonoverlapping(data.as_ptr(), body, data.len());
    }
    space
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    #[test]
    fn a_message_is_looked_at_with_all_that_comes_along() {
        let (a, b) = UnixStream::pair().unwrap();
        sockopt::set_int(&b, libc::SOL_SOCKET, libc::SO_PASSCRED, 1).unwrap();
        let us = peer_credentials(b.as_fd()).unwrap();
        assert_eq!(us.pid, std::process::id().cast_signed());
        let null = std::fs::File::open("/dev/null").unwrap();
        let descriptors = [null.as_fd(), a.as_fd()];
        let message = Outgoing {
            bytes: b"abc",
            descriptors: &descriptors,
            credentials: Some(us),
            ..Outgoing::default()
        };
        assert_eq!(send(a.as_fd(), &message).unwrap(), 3);
        for _ in 0..2 {
            let mut buffer = [0; 10];
            let peeked = peek(b.as_fd(), &mut buffer).unwrap();
            assert_eq!((peeked.bytes, &buffer[..3]), (3, &b"abc"[..]));
            assert_eq!(peeked.descriptors.len(), 2);
            assert_eq!(peeked.credentials, Some(us));
        }
    }

    #[test]
    fn pieces_of_a_stream_are_told_apart() {
        let (a, b) = UnixStream::pair().unwrap();
        for length in [3, 5, 70, 5000] {
            let bytes = vec![7; length];
            let message = Outgoing {
                bytes: &bytes,
                ..Outgoing::default()
            };
            assert_eq!(send(a.as_fd(), &message).unwrap(), length);
        }
        let mut buffer = [0; 6000];
        let pieces = [
            (2, 0),
            (3, 3),
            (4, 3),
            (7, 3),
            (8, 8),
            (77, 8),
            (78, 78),
            (5077, 78),
            (5078, 5078),
        ];
        for (room, whole) in pieces {
            let seen = peek_whole(b.as_fd(), &mut buffer[..room]).unwrap();
            assert_eq!(seen, whole, "{room}");
        }
    }

    #[test]
    fn addresses_are_any_bytes() {
        let directory = std::env::temp_dir().join(format!("snapify-sys-{}", std::process::id()));
        let path = std::os::unix::ffi::OsStrExt::as_bytes(directory.as_os_str());
        let abstract_name = [
            b"\0snapify\xff\0x",
            std::process::id().to_string().as_bytes(),
        ]
        .concat();
        for wanted in [path, &abstract_name] {
            let receiver = UnixDatagram::unbound().unwrap();
            bind(receiver.as_fd(), wanted).unwrap();
            assert_eq!(name(receiver.as_fd()).unwrap(), wanted);
            let sender = UnixDatagram::unbound().unwrap();
            assert_eq!(name(sender.as_fd()).unwrap(), b"");
            connect(sender.as_fd(), wanted).unwrap();
            assert_eq!(peer_name(sender.as_fd()).unwrap(), wanted);
            disconnect(sender.as_fd()).unwrap();
            assert_eq!(
                peer_name(sender.as_fd()).unwrap_err().raw_os_error(),
                Some(libc::ENOTCONN)
            );
        }
        std::fs::remove_file(&directory).unwrap();
        let socket = UnixDatagram::unbound().unwrap();
        assert!(bind(socket.as_fd(), &[b'x'; 109]).is_err());
    }
}
