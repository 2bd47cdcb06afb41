//! What clients have sent before their connections were accepted.
//!
//! Nobody can read that but who accepts the connection; and a connection that was accepted cannot be put
//! back. So, where there is such content, all connections that wait are accepted and read here, and then made again: each
//! client's process connects a new socket, which takes the place of the old one under all its numbers, and the same is sent
//! again. The processes are stopped meanwhile, and find everything as it was, but for the inode numbers of clients. If
//! this process is killed within these microseconds, the clients see their connections closed.

use super::image::Kind;
use super::options::{self, Defaults};
use super::queue::{self, Queued};
use super::set::SocketSet;
use crate::error::{Obstacle, ProcError};
use crate::ids::{Pid, RemoteFd};
use crate::remote::Tracee;
use rustix::fs::OFlags;
use rustix::net::{Shutdown, SocketFlags};
use snapify_sys::unix_socket::{self, Outgoing};
use snapify_sys::{sockopt, unix_diag::UnixSocketInfo};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What had been sent on a connection that waits.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(super) messages: Vec<Queued>,
    /// The process that has connected it, as we see it; 0 if that cannot be seen.
    pub(super) by: i32,
}

/// What was found, by the listening socket's inode number and the place in its queue.
pub(crate) type Unread = HashMap<(u64, usize), Sent>;

/// The descriptors of a client, all in one process.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub pid: Pid,
    /// Each with whether exec closes it.
    pub fds: Vec<(RemoteFd, bool)>,
    /// Status flags of their description.
    pub flags: u32,
}

/// The programs whose sockets are looked at.
pub(crate) trait Programs {
    /// All descriptors of the socket with this inode number; `None` if it cannot be replaced: several
    /// processes have it, or an epoll instance watches it.
    fn numbers(&self, inode: u64) -> Option<Numbers>;
    /// Our own descriptor of one of a process.
    fn duplicate(&self, pid: Pid, fd: RemoteFd) -> io::Result<OwnedFd>;
    /// Makes remote calls in a process.
    fn within(
        &mut self,
        pid: Pid,
        work: &mut dyn FnMut(&mut Tracee<'_>) -> Result<i32, ProcError>,
    ) -> Result<i32, ProcError>;
}

/// Reads what was sent to the listening sockets of a set, where it was.
pub(crate) fn requeue(
    set: &SocketSet,
    address_of: impl Fn(u64) -> Option<Vec<u8>>,
    programs: &mut impl Programs,
) -> Result<Unread, Vec<Obstacle>> {
    let mut unread = Unread::new();
    let mut obstacles = Vec::new();
    for listener in set.with_content() {
        let member = &set.members[set.place[&listener.inode]];
        let refuse = |why: String| Obstacle::new(member.label.clone(), why);
        let Some(address) = address_of(listener.inode) else {
            obstacles.push(refuse(
                "something was sent on a connection that was not accepted yet, and its address leads nowhere".into(),
            ));
            continue;
        };
        let mut queue = Queue {
            set,
            listener,
            address: &address,
            programs,
        };
        let result = queue.clients().map_err(refuse).and_then(|clients| {
            queue.read(&clients).map_err(|error| {
                refuse(format!(
                    "what was sent before it was accepted cannot be read and sent again: {error}"
                ))
            })
        });
        match result {
            Ok(sent) => {
                let places = sent.into_iter().enumerate();
                unread.extend(places.map(|(at, sent)| ((listener.inode, at), sent)));
            }
            Err(obstacle) => obstacles.push(obstacle),
        }
    }
    match obstacles.is_empty() {
        true => Ok(unread),
        false => Err(obstacles),
    }
}

struct Queue<'a, P> {
    set: &'a SocketSet,
    listener: &'a UnixSocketInfo,
    address: &'a [u8],
    programs: &'a mut P,
}

/// A client of ours, or one that is gone.
type Client = Option<(u64, Numbers)>;

impl<P: Programs> Queue<'_, P> {
    /// All who wait.
    fn clients(&self) -> Result<Vec<Client>, String> {
        let wants_credentials = |socket: &OwnedFd| {
            sockopt::get_int(socket, libc::SOL_SOCKET, libc::SO_PASSCRED).is_ok_and(|on| on != 0)
        };
        let member = |inode: &u64| self.set.place.get(inode).map(|&at| &self.set.members[at]);
        let refused = |why: &str| {
            Err(format!(
                "something was sent on a connection that was not accepted yet, and {why}"
            ))
        };
        if member(&self.listener.inode).is_some_and(|one| wants_credentials(&one.socket)) {
            return refused("it asks for the credentials of senders");
        }
        let mut clients = Vec::with_capacity(self.listener.pending.len());
        for inode in &self.listener.pending {
            if *inode == 0 {
                clients.push(None);
                continue;
            }
            let Some(client) = member(inode) else {
                return refused("a client is not being saved");
            };
            let has_name = unix_socket::name(client.socket.as_fd()).map_or(true, |n| !n.is_empty());
            if has_name || wants_credentials(&client.socket) {
                return refused("a client has an address or asks for credentials");
            }
            match self.programs.numbers(*inode) {
                Some(numbers) => clients.push(Some((*inode, numbers))),
                None => {
                    return refused(
                        "a client's socket belongs to several processes or is watched by epoll",
                    );
                }
            }
        }
        Ok(clients)
    }

    fn read(&mut self, clients: &[Client]) -> io::Result<Vec<Sent>> {
        let kind = Kind::of(self.listener.kind).ok_or(rustix::io::Errno::INVAL)?;
        let listener = &self.set.members[self.set.place[&self.listener.inode]].socket;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut accepted = Vec::with_capacity(clients.len());
        for _ in clients {
            accepted.push(rustix::net::accept_with(listener, flags)?);
        }
        let mut failed = None;
        let mut all = Vec::with_capacity(clients.len());
        // Whatever goes wrong with one, the others are made again.
        for (client, socket) in clients.iter().zip(&accepted) {
            // A client that sends no more, or is gone, shows as the end.
            let sends = |(inode, _): &(u64, Numbers)| self.set.all[inode].shutdown & 2 == 0;
            let receives = client.as_ref().is_some_and(sends);
            let messages = queue::look(socket.as_fd(), kind, receives);
            let messages = messages.unwrap_or_else(|why| {
                failed = Some(io::Error::other(why));
                Vec::new()
            });
            if messages.iter().any(|one| !one.descriptors.is_empty()) {
                failed = Some(io::Error::other("descriptors are among it"));
            }
            let result = match client {
                None => self.make_gone(kind, &messages),
                Some((inode, numbers)) => self.make_again(kind, *inode, numbers, &messages),
            };
            if let Err(error) = result {
                failed = Some(error);
            }
            let by = unix_socket::peer_credentials(socket.as_fd())?.pid;
            all.push(Sent { messages, by });
        }
        failed.map_or(Ok(all), Err)
    }

    /// The connection of a client that is gone, from here.
    fn make_gone(&self, kind: Kind, messages: &[Queued]) -> io::Result<()> {
        let socket = options::Origin::from(kind).make()?;
        unix_socket::connect(socket.as_fd(), self.address)?;
        send_all(socket.as_fd(), messages)
    }

    fn make_again(
        &mut self,
        kind: Kind,
        inode: u64,
        numbers: &Numbers,
        messages: &[Queued],
    ) -> io::Result<()> {
        let old = &self.set.members[self.set.place[&inode]].socket;
        let pid = numbers.pid;
        let mut connect = |tracee: &mut Tracee<'_>| connect(tracee, kind, self.address);
        let number = self
            .programs
            .within(pid, &mut connect)
            .map_err(io::Error::other)?;
        let made = self.programs.duplicate(pid, RemoteFd(number))?;
        send_all(made.as_fd(), messages)?;
        let how = match self.set.all[&inode].shutdown {
            1 => Some(Shutdown::Read),
            2 => Some(Shutdown::Write),
            3 => Some(Shutdown::Both),
            _ => None,
        };
        if let Some(how) = how {
            rustix::net::shutdown(&made, how)?;
        }
        let changed = Defaults::default().changed(old.as_fd(), kind)?;
        options::set_usual_size(made.as_fd(), options::usual_size()?).map_err(io::Error::other)?;
        options::set(made.as_fd(), &changed, &|text| tracing::warn!("{text}"));
        let status = OFlags::from_bits_retain(numbers.flags) & (OFlags::NONBLOCK | OFlags::APPEND);
        rustix::fs::fcntl_setfl(&made, status)?;
        let mut replace = |tracee: &mut Tracee<'_>| replace(tracee, number, &numbers.fds);
        self.programs
            .within(pid, &mut replace)
            .map_err(io::Error::other)?;
        Ok(())
    }
}

fn send_all(socket: BorrowedFd<'_>, messages: &[Queued]) -> io::Result<()> {
    options::enlarge(socket).map_err(io::Error::other)?;
    for message in messages {
        let descriptors: Vec<BorrowedFd<'_>> =
            message.descriptors.iter().map(AsFd::as_fd).collect();
        let mut outgoing = Outgoing {
            bytes: &message.bytes,
            descriptors: &descriptors,
            urgent: message.urgent,
            ..Outgoing::default()
        };
        loop {
            let sent = unix_socket::send(socket, &outgoing)?;
            if sent >= outgoing.bytes.len() {
                break;
            }
            outgoing.bytes = &outgoing.bytes[sent..];
            outgoing.descriptors = &[];
        }
    }
    Ok(())
}

/// Connects a new socket in the process, and returns its number.
fn connect(tracee: &mut Tracee<'_>, kind: Kind, address: &[u8]) -> Result<i32, ProcError> {
    // A connection that would have to wait is refused.
    let kind =
        kind.socket_type().as_raw() | (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).cast_unsigned();
    let args = [libc::AF_UNIX as u64, kind.into(), 0, 0, 0, 0];
    let socket = tracee.syscall("socket", libc::SYS_socket, args)?;
    let mut name = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    name.extend_from_slice(address);
    let at = tracee.scratch().addr;
    tracee.write(at, &name)?;
    let args = [socket, at.0, name.len() as u64, 0, 0, 0];
    match tracee.syscall("connect", libc::SYS_connect, args) {
        Ok(_) => Ok(socket as i32),
        Err(error) => {
            tracee.syscall("close", libc::SYS_close, [socket, 0, 0, 0, 0, 0])?;
            Err(error)
        }
    }
}

/// Puts a new descriptor in the place of others.
fn replace(
    tracee: &mut Tracee<'_>,
    from: i32,
    numbers: &[(RemoteFd, bool)],
) -> Result<i32, ProcError> {
    for &(to, close_on_exec) in numbers {
        let flags = if close_on_exec {
            libc::O_CLOEXEC as u64
        } else {
            0
        };
        let args = [from as u64, to.0 as u64, flags, 0, 0, 0];
        tracee.syscall("dup3", libc::SYS_dup3, args)?;
    }
    tracee.syscall("close", libc::SYS_close, [from as u64, 0, 0, 0, 0, 0])?;
    Ok(0)
}
