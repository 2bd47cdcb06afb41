//! Socket options by number (socket(7), ip(7), ipv6(7), tcp(7)), for tables of options, and the queue
//! lengths that only ioctls tell.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Reads an option into `value` and tells how many bytes the kernel wrote (getsockopt(2)).
///
/// # Errors
/// `ENOPROTOOPT` and the like, where the socket or the kernel has no such option.
pub fn get(socket: impl AsFd, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the kernel writes at most `length` bytes, which is no more than `value` has.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    crate::check(result.into())?;
    Ok(length as usize)
}

/// Sets an option (setsockopt(2)).
///
/// # Errors
/// Those of the kernel for this option.
pub fn set(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `length` bytes, which is what `value` has.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            length,
        )
    };
    crate::check(result.into()).map(drop)
}

/// Reads an option that is a number. A few IPv4 options are written as a single byte: that is the
/// number then.
///
/// # Errors
/// As [`get`].
pub fn get_int(socket: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; 4];
    match get(socket, level, name, &mut value)? {
        1 => Ok(i32::from(value[0])),
        4 => Ok(i32::from_ne_bytes(value)),
        other => Err(io::Error::other(format!(
            "option {name} of level {level} has {other} bytes, not those of a number"
        ))),
    }
}

/// Sets an option that is a number.
///
/// # Errors
/// As [`set`].
pub fn set_int(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set(socket, level, name, &value.to_ne_bytes())
}

/// Bytes that a stream socket has been given to send and its peer has not acknowledged (`SIOCOUTQ`);
/// a FIN counts as one.
///
/// # Errors
/// `EINVAL` for a listening socket.
pub fn unacknowledged(socket: impl AsFd) -> io::Result<usize> {
    queue_length(socket, libc::TIOCOUTQ)
}

/// Bytes that a stream socket has been given to send and has not sent even once (`SIOCOUTQNSD`).
///
/// # Errors
/// `EINVAL` for a listening socket.
pub fn unsent(socket: impl AsFd) -> io::Result<usize> {
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;
    queue_length(socket, SIOCOUTQNSD)
}

fn queue_length(socket: impl AsFd, request: libc::Ioctl) -> io::Result<usize> {
    let mut length: libc::c_int = 0;
    // SAFETY: both requests write one int.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), request, &raw mut length) };
    crate::check(result.into())?;
    Ok(usize::try_from(length).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn numbers_are_read_as_set() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        for (level, name, value) in [
            (libc::IPPROTO_IP, libc::IP_TTL, 17),
            (libc::IPPROTO_IP, libc::IP_TOS, 0x10),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 33),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        ] {
            set_int(&socket, level, name, value).unwrap();
            assert_eq!(get_int(&socket, level, name).unwrap(), value);
        }
        assert!(get_int(&socket, libc::IPPROTO_TCP, 9999).is_err());
    }

    #[test]
    fn what_is_not_acknowledged_is_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(unacknowledged(&sender).unwrap(), 0);
        assert_eq!(unsent(&sender).unwrap(), 0);
        sender.set_nonblocking(true).unwrap();
        // Nobody reads: sooner or later nothing fits any more, and some of it has never been sent.
        let block = vec![0; 1 << 20];
        while rustix::io::write(&sender, &block).is_ok() {}
        assert!(unsent(&sender).unwrap() > 0);
        assert!(unacknowledged(&sender).unwrap() >= unsent(&sender).unwrap());
        assert!(unacknowledged(&listener).is_err());
    }
}
