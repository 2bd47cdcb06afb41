//! Asking the kernel about all sockets of this network namespace (sock_diag(7)): the netlink
//! transport, for any family. Needs no privilege.
//!
//! A request is one message with a body that the family defines (`struct inet_diag_req_v2`,
//! `struct unix_diag_req`). The answers are messages, each with a fixed part, which the family
//! defines too, and attributes.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};
use std::io;
use std::os::fd::OwnedFd;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const HEADER: usize = 16;

/// A connection to the kernel for such questions.
#[derive(Debug)]
pub struct SockDiag {
    socket: OwnedFd,
    sequence: u32,
}

impl SockDiag {
    /// Opens a connection.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` in a kernel without sock_diag.
    pub fn open() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Asks for all sockets that `body` describes, and hands every answer's payload to `each`. If
    /// sockets came and went meanwhile so that the kernel calls the list inconsistent, the question is
    /// repeated a few times, after `again` was called to forget what was handed out.
    ///
    /// # Errors
    /// `ENOENT` where the kernel cannot tell about this family, and `EAGAIN` if no list was
    /// consistent.
    pub fn dump<T: Default>(
        &mut self,
        body: &[u8],
        mut each: impl FnMut(&mut T, &[u8]),
    ) -> io::Result<T> {
        const ATTEMPTS: usize = 8;
        for _ in 0..ATTEMPTS {
            let mut collected = T::default();
            if self.dump_once(body, |payload| each(&mut collected, payload))? {
                return Ok(collected);
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Whether the list was consistent.
    fn dump_once(&mut self, body: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        self.sequence = self.sequence.wrapping_add(1);
        send(
            &self.socket,
            &request(body, self.sequence),
            SendFlags::empty(),
        )?;
        let mut consistent = true;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let (length, _) = match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            for message in messages(&buffer[..length]) {
                // What is left of a question that was given up is passed over.
                if message.sequence != self.sequence {
                    continue;
                }
                consistent &= message.flags & libc::NLM_F_DUMP_INTR as u16 == 0;
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(consistent),
                    libc::NLMSG_ERROR => return Err(error(message.payload)),
                    _ => each(message.payload),
                }
            }
        }
    }
}

fn request(body: &[u8], sequence: u32) -> Vec<u8> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend(((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend(body);
    message
}

fn error(payload: &[u8]) -> io::Error {
    let code = payload.first_chunk().copied().map(i32::from_ne_bytes);
    io::Error::from_raw_os_error(code.map_or(libc::EPROTO, i32::wrapping_neg))
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
}

/// The netlink messages of a datagram. Ends at the first that is not whole.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(rest, 0)? as usize;
        let whole = rest.get(..length).filter(|whole| whole.len() >= HEADER)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind: u16_at(whole, 4)?,
            flags: u16_at(whole, 6)?,
            sequence: u32_at(whole, 8)?,
            payload: &whole[HEADER..],
        })
    })
}

/// The attributes (`struct nlattr`) behind the fixed part of an answer: type and value. Ends at the
/// first that is not whole.
pub fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const NESTED_AND_ORDER: u16 = 0xc000;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & !NESTED_AND_ORDER;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u16::from_ne_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_messages_end_the_list() {
        assert_eq!(messages(&[]).count(), 0);
        assert_eq!(messages(&[255; 40]).count(), 0);
        let mut two = request(&[1, 2, 3, 4], 7);
        two.extend(request(&[5], 8));
        let seen: Vec<_> = messages(&two).map(|m| (m.sequence, m.payload)).collect();
        assert_eq!(seen, [(7, &[1, 2, 3, 4][..]), (8, &[5])]);
        assert_eq!(messages(&two[..two.len() - 2]).count(), 1);
    }

    #[test]
    fn attributes_are_aligned() {
        let bytes = [5, 0, 3, 0, 42, 0, 0, 0, 6, 0, 2, 0, 7, 8];
        let seen: Vec<_> = attributes(&bytes).collect();
        assert_eq!(seen, [(3, &[42][..]), (2, &[7, 8])]);
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[0, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn an_unknown_family_is_an_error() {
        let mut diag = SockDiag::open().unwrap();
        let result: io::Result<usize> = diag.dump(&[255; 8], |count, _| *count += 1);
        assert!(result.is_err());
    }
}
