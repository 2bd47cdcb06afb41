//! All TCP and UDP sockets of the processes that are looked at.

use super::image::{
    Connected, Datagram, InetImage, InetSocket, OtherEnd, Protocol, SocketState, Urgent, Waiting,
};
use super::observe::{self, Observed};
use super::options::{self, Options};
use super::queue;
use super::relate::{self, Numbered, Relation, Relations, is_connected};
use super::requeue::{self, Client};
use crate::error::{Obstacle, ProcError};
use crate::external::Outside;
use snapify_store::SpaceId;
use snapify_sys::inet_diag::TcpState;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A socket that the processes have a descriptor of.
#[derive(Debug)]
pub(crate) struct Held {
    /// Its inode number.
    pub inode: u64,
    /// Our own descriptor of it.
    pub socket: OwnedFd,
    /// What it is called in messages.
    pub name: String,
}

/// Whether a socket is one of IPv4 or IPv6.
pub(super) fn is_inet(socket: BorrowedFd<'_>) -> bool {
    use rustix::net::{AddressFamily, sockopt::socket_domain};
    matches!(
        socket_domain(socket),
        Ok(AddressFamily::INET | AddressFamily::INET6)
    )
}

/// What becomes of a socket.
#[derive(Clone, Debug)]
pub(super) enum Verdict {
    /// It is saved: its index in the image.
    Saved(usize),
    /// It is connected to somebody outside.
    Outside(Obstacle),
    /// It cannot be saved.
    Refused(Obstacle),
}

/// All TCP and UDP sockets, and what is known of them without reading anything.
#[derive(Debug, Default)]
pub(crate) struct InetSurvey {
    /// Those that are supported.
    held: Vec<Held>,
    /// The same sockets with what they show.
    observed: Vec<Numbered>,
    relations: Relations,
    /// By inode number.
    verdicts: HashMap<u64, Verdict>,
    outside: Outside,
}

impl InetSurvey {
    /// Looks at sockets. Those that are connected to somebody outside are saved as closed by the peer
    /// if `outside` says so.
    ///
    /// # Errors
    /// If the kernel does not tell about its sockets.
    pub fn new(held: Vec<Held>, outside: Outside) -> Result<Self, ProcError> {
        let mut survey = Self {
            outside,
            ..Self::default()
        };
        for one in held {
            match look(&one) {
                Ok(seen) => {
                    survey.observed.push((one.inode, seen));
                    survey.held.push(one);
                }
                Err(why) => {
                    let obstacle = Obstacle::new(one.name, why);
                    survey
                        .verdicts
                        .insert(one.inode, Verdict::Refused(obstacle));
                }
            }
        }
        survey.relations = Relations::new(&survey.observed, outside == Outside::CloseTcp)
            .map_err(ProcError::system("listing the sockets of this machine"))?;
        survey.judge();
        Ok(survey)
    }

    fn judge(&mut self) {
        let mut saved = 0;
        for (index, (inode, seen)) in self.observed.iter().enumerate() {
            let mut refused = self.relations.refused.iter();
            let reason = refused.find(|(listener, _)| *listener == index);
            let verdict = match (self.outside(index, seen), reason) {
                (Some(obstacle), _) => Verdict::Outside(obstacle),
                (None, Some((_, why))) => {
                    Verdict::Refused(Obstacle::new(&self.held[index].name, why))
                }
                (None, None) => {
                    saved += 1;
                    Verdict::Saved(saved - 1)
                }
            };
            self.verdicts.insert(*inode, verdict);
        }
    }

    fn outside(&self, index: usize, seen: &Observed) -> Option<Obstacle> {
        let Some(Relation::Outside(who)) = self.relations.of.get(&index) else {
            return None;
        };
        if self.outside == Outside::CloseTcp {
            return None;
        }
        let show = |address: Option<_>| {
            address.map_or_else(String::new, |at: std::net::SocketAddr| at.to_string())
        };
        let why = format!(
            "it is connected from {} to {} ({who}), which is not part of the snapshot",
            show(seen.local),
            show(seen.remote)
        );
        Some(
            Obstacle::new(&self.held[index].name, why)
                .with_hint("with --tcp=close it comes back as closed by the peer"),
        )
    }

    /// What becomes of the socket with this inode number; nothing if it was not among them.
    pub(super) fn verdict(&self, inode: u64) -> Option<&Verdict> {
        self.verdicts.get(&inode)
    }

    fn image_index(&self, index: usize) -> Option<usize> {
        match self.verdicts.get(&self.held.get(index)?.inode) {
            Some(Verdict::Saved(index)) => Some(*index),
            _ => None,
        }
    }

    /// Saves the sockets, whose processes must be stopped. Contents go to `add`, with a name. What
    /// cannot be saved is told as well.
    pub fn save(
        &self,
        mut add: impl FnMut(String, Vec<u8>) -> SpaceId,
    ) -> (InetImage, Vec<Obstacle>) {
        let mut image = InetImage::default();
        let mut obstacles = Vec::new();
        let waiting = self.read_waiting(&mut obstacles);
        self.settle(&mut obstacles);
        let received = match self.received() {
            Ok(received) => received,
            Err(error) => {
                obstacles.push(Obstacle::new(
                    "TCP sockets",
                    format!("how much waits to be read cannot be told: {error}"),
                ));
                HashMap::new()
            }
        };
        for (index, (inode, seen)) in self.observed.iter().enumerate() {
            if self.image_index(index).is_none() {
                continue;
            }
            let received = received.get(inode).copied();
            match self.save_one(index, seen, received, &mut add) {
                Ok(socket) => image.sockets.push(socket),
                Err(error) => {
                    let why = format!("it cannot be read: {error}");
                    obstacles.push(Obstacle::new(&self.held[index].name, why));
                }
            }
        }
        for (waiting, bytes) in waiting {
            let client = waiting.client.and_then(|client| self.image_index(client));
            let Some(listener) = self.image_index(waiting.listener) else {
                continue;
            };
            image.waiting.push(Waiting {
                listener,
                client,
                unread: (!bytes.is_empty())
                    .then(|| add(format!("unread of {}", waiting.from), bytes)),
                ..waiting
            });
        }
        (image, obstacles)
    }

    /// All connections that wait to be accepted, with what was sent to them.
    fn read_waiting(&self, obstacles: &mut Vec<Obstacle>) -> Vec<(Waiting, Vec<u8>)> {
        let with_content = &self.relations.with_content;
        let mut all = Vec::new();
        let (read, plain): (Vec<Waiting>, Vec<Waiting>) = self
            .relations
            .waiting
            .iter()
            .partition(|waiting| with_content.contains(&waiting.listener));
        all.extend(plain.into_iter().map(|waiting| (waiting, Vec::new())));
        for &listener in with_content {
            if self.image_index(listener).is_none() {
                continue;
            }
            let held = &self.held[listener];
            let known: Vec<Waiting> = read
                .iter()
                .copied()
                .filter(|waiting| waiting.listener == listener)
                .collect();
            let client = |index: usize| Client {
                socket: self.held[index].socket.as_fd(),
                shut_write: self.observed[index].1.shut_write(),
            };
            match requeue::requeue(held.socket.as_fd(), &known, client) {
                Ok(requeued) => all.extend(requeued),
                Err(error) => obstacles.push(Obstacle::new(
                    &held.name,
                    format!("connections that wait to be accepted cannot be read: {error}"),
                )),
            }
        }
        all
    }

    /// Makes all arrive that is on its way between the sockets.
    fn settle(&self, obstacles: &mut Vec<Obstacle>) {
        for (&index, relation) in &self.relations.of {
            let Relation::Socket(other) = relation else {
                continue;
            };
            let (sender, receiver) = (&self.held[index], &self.held[*other]);
            if let Err(error) = queue::settle(sender.socket.as_fd(), receiver.socket.as_fd()) {
                let why = format!(
                    "what it sends to {} does not arrive: {error}",
                    receiver.name
                );
                obstacles.push(Obstacle::new(&sender.name, why));
            }
        }
        for (&index, &unsent) in &self.relations.leaving {
            let receiver = &self.held[index];
            if let Err(error) = queue::settle_closed(receiver.socket.as_fd(), unsent) {
                let why =
                    format!("what its peer sent before it was closed does not arrive: {error}");
                obstacles.push(Obstacle::new(&receiver.name, why));
            }
        }
    }

    fn received(&self) -> io::Result<HashMap<u64, usize>> {
        match self.observed.iter().any(|(_, seen)| is_connected(seen)) {
            true => relate::received(),
            false => Ok(HashMap::new()),
        }
    }

    fn save_one(
        &self,
        index: usize,
        seen: &Observed,
        received: Option<usize>,
        add: &mut impl FnMut(String, Vec<u8>) -> SpaceId,
    ) -> io::Result<InetSocket> {
        let held = &self.held[index];
        let socket = held.socket.as_fd();
        let mut content = |bytes: Vec<u8>| {
            let what = || format!("unread of {}", held.name);
            (!bytes.is_empty()).then(|| add(what(), bytes))
        };
        let state = match seen.state {
            _ if seen.kind.protocol == Protocol::Udp => SocketState::Datagrams {
                peer: seen.remote,
                unread: unread_datagrams(socket, seen)?
                    .into_iter()
                    .map(|(from, bytes)| Datagram {
                        from,
                        content: content(bytes),
                    })
                    .collect(),
                shut_read: seen.shut_read(),
            },
            TcpState::Listen => SocketState::Listening {
                backlog: seen.tcp.backlog,
            },
            TcpState::SynSent => match self.relations.connecting.get(&index) {
                Some(&peer) => SocketState::Connecting { peer },
                None => return Err(io::Error::other("its peer's address is not known")),
            },
            TcpState::Close => match seen.ending() {
                None => SocketState::Idle,
                Some(ending) => SocketState::Ended {
                    ending,
                    pending: seen.has_error(),
                    unread: content(queue::unread(socket, None)?.bytes),
                },
            },
            TcpState::SynReceived | TcpState::TimeWait => {
                return Err(io::Error::other("it is between two states"));
            }
            _ => {
                let unread = queue::unread(socket, received)?;
                SocketState::Connected(Connected {
                    peer: seen.remote.ok_or(rustix::io::Errno::NOTCONN)?,
                    other: match self.relations.of.get(&index) {
                        Some(Relation::Socket(other)) => self
                            .image_index(*other)
                            .map_or(OtherEnd::Outside, OtherEnd::Socket),
                        Some(Relation::Waits) => OtherEnd::Waits,
                        Some(Relation::Closed) => OtherEnd::Closed,
                        Some(Relation::Outside(_)) | None => OtherEnd::Outside,
                    },
                    unread: content(unread.bytes),
                    urgent: unread.urgent.map(|(after, byte)| Urgent { after, byte }),
                    shut_read: seen.shut_read(),
                    shut_write: seen.shut_write(),
                })
            }
        };
        Ok(InetSocket {
            family: seen.kind.family,
            protocol: seen.kind.protocol,
            local: seen.local,
            options: Options::of(socket, seen.kind, is_connected(seen))?,
            state,
        })
    }
}

/// The datagrams of a UDP socket. One with a pending error (a datagram of its own was not wanted) and
/// nothing to read is left alone, because reading takes the error away.
fn unread_datagrams(
    socket: BorrowedFd<'_>,
    seen: &Observed,
) -> io::Result<Vec<(std::net::SocketAddr, Vec<u8>)>> {
    match seen.is_readable() {
        true => queue::datagrams(socket),
        false => Ok(Vec::new()),
    }
}

fn look(held: &Held) -> Result<Observed, String> {
    let socket = held.socket.as_fd();
    let unreadable = |error: io::Error| format!("it cannot be looked at: {error}");
    let Some(kind) = observe::kind(socket).map_err(unreadable)? else {
        return Err(format!("it is {}, which is not supported", name(socket)));
    };
    if let Some(why) = options::unsupported(socket) {
        return Err(format!("{why}, which is not supported"));
    }
    let seen = Observed::new(socket, kind).map_err(unreadable)?;
    match (kind.protocol, seen.state) {
        (Protocol::Mptcp, TcpState::Close) if seen.ending().is_none() => Ok(seen),
        (Protocol::Mptcp, TcpState::Listen) => Ok(seen),
        (Protocol::Mptcp, _) => {
            Err("it is a multipath TCP connection, which is not supported".into())
        }
        _ => Ok(seen),
    }
}

fn name(socket: BorrowedFd<'_>) -> String {
    use rustix::net::{AddressFamily, SocketType, sockopt as typed};
    let family = match typed::socket_domain(socket) {
        Ok(AddressFamily::INET6) => "an IPv6",
        _ => "an IPv4",
    };
    let kind = match typed::socket_type(socket) {
        Ok(SocketType::STREAM) => "stream",
        Ok(SocketType::DGRAM) => "datagram",
        Ok(SocketType::SEQPACKET) => "packet",
        _ => "raw",
    };
    let number =
        snapify_sys::sockopt::get_int(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL).unwrap_or(0);
    format!("{family} {kind} socket of protocol {number}")
}
