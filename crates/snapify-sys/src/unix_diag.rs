//! What the kernel tells of UNIX sockets (`UNIX_DIAG`, linux/unix_diag.h).

use crate::sock_diag::{SockDiag, attributes, u32_at};
use std::io;

// Attributes of an answer.
const NAME: u16 = 0;
const FILE: u16 = 1;
const PEER: u16 = 2;
const PENDING: u16 = 3;
const QUEUES: u16 = 4;
const SHUTDOWN: u16 = 6;

/// Bytes of `struct unix_diag_msg`, before the attributes.
const FIXED: usize = 16;

/// A UNIX socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnixSocketInfo {
    /// Inode number, by which its descriptors show it.
    pub inode: u64,
    /// `SOCK_*`
    pub kind: u8,
    /// `TCP_ESTABLISHED` (1), `TCP_CLOSE` (7) or `TCP_LISTEN` (10).
    pub state: u8,
    /// The address that it is bound to: a path, or a zero byte and an abstract name. Empty if it is not bound.
    pub name: Vec<u8>,
    /// Device number, in the kernel's own encoding, and the low half of the inode number of the file that it
    /// was bound to.
    pub file: Option<(u32, u32)>,
    /// Inode number of its peer, 0 for one that has no descriptors: it was closed, or was not accepted yet.
    pub peer: Option<u64>,
    /// For a listening socket the peers of the connections that wait to be accepted, in that order; 0 for one
    /// that was closed.
    pub pending: Vec<u64>,
    /// For a listening socket how many connections may wait.
    pub backlog: u32,
    /// 1 if it receives no more, 2 if it sends no more, 3 for both.
    pub shutdown: u8,
}

/// All UNIX sockets of this network namespace that have descriptors, or are known otherwise to some process.
///
/// # Errors
/// `ENOENT` in a kernel without UNIX_DIAG.
pub fn all() -> io::Result<Vec<UnixSocketInfo>> {
    SockDiag::open()?.dump(&request(), |all: &mut Vec<_>, answer| {
        all.extend(parse(answer));
    })
}

/// `struct unix_diag_req` for sockets in all states.
fn request() -> [u8; 24] {
    // Name, file, peer, pending connections, queue lengths.
    const SHOW: u32 = 1 | 2 | 4 | 8 | 0x10;
    let mut body = [0; 24];
    body[0] = libc::AF_UNIX as u8;
    body[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    body[12..16].copy_from_slice(&SHOW.to_ne_bytes());
    // The cookie: any.
    body[16..].fill(0xff);
    body
}

fn parse(answer: &[u8]) -> Option<UnixSocketInfo> {
    let fixed = answer.get(..FIXED)?;
    let mut info = UnixSocketInfo {
        kind: fixed[1],
        state: fixed[2],
        inode: u32_at(fixed, 4)?.into(),
        ..UnixSocketInfo::default()
    };
    for (kind, value) in attributes(&answer[FIXED..]) {
        match kind {
            NAME => info.name = value.to_vec(),
            FILE => info.file = Some((u32_at(value, 4)?, u32_at(value, 0)?)),
            PEER => info.peer = Some(u32_at(value, 0)?.into()),
            PENDING => {
                let inodes = value.chunks_exact(4).filter_map(|word| u32_at(word, 0));
                info.pending = inodes.map(u64::from).collect();
            }
            // Of a listening socket: how many wait, and how many may.
            QUEUES => info.backlog = u32_at(value, 4)?,
            SHUTDOWN => info.shutdown = value.first().copied().unwrap_or(0),
            _ => {}
        }
    }
    if info.name.first().is_some_and(|&first| first != 0) {
        let end = info.name.iter().position(|&byte| byte == 0);
        info.name.truncate(end.unwrap_or(info.name.len()));
    }
    Some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn inode(socket: impl AsFd) -> u64 {
        rustix::fs::fstat(socket).unwrap().st_ino
    }

    fn of(socket: impl AsFd) -> UnixSocketInfo {
        let inode = inode(socket);
        let all = all().unwrap();
        all.into_iter().find(|info| info.inode == inode).unwrap()
    }

    #[test]
    fn pairs_know_each_other() {
        let (a, b) = UnixStream::pair().unwrap();
        assert_eq!(of(&a).peer, Some(inode(&b)));
        a.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!((of(&a).shutdown, of(&b).shutdown), (2, 1));
        drop(b);
        let orphan = of(&a);
        assert_eq!(
            (orphan.peer, orphan.shutdown, orphan.state),
            (Some(0), 3, 1)
        );
    }

    #[test]
    fn waiting_connections_are_listed() {
        let path = std::env::temp_dir().join(format!("snapify-diag-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let first = UnixStream::connect(&path).unwrap();
        let second = UnixStream::connect(&path).unwrap();
        let info = of(&listener);
        assert_eq!(info.pending, [inode(&first), inode(&second)]);
        assert_eq!(info.state, 10);
        assert_eq!(info.name, path.as_os_str().as_encoded_bytes());
        let file = rustix::fs::stat(&path).unwrap();
        assert_eq!(info.file.unwrap().1, file.st_ino as u32);
        assert_eq!(of(&first).peer, Some(0));
        drop(second);
        assert_eq!(of(&listener).pending, [inode(&first), 0]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn answers_that_are_cut_off_are_passed_over() {
        assert_eq!(parse(&[0; FIXED - 1]), None);
        assert!(parse(&[0; FIXED]).is_some());
        let mut answer = vec![0; FIXED];
        answer.extend([6, 0, 2, 0, 1, 2]);
        assert_eq!(parse(&answer), None);
    }
}
