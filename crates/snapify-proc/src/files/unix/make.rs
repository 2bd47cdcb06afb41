//! Making, binding and connecting sockets, before the program's processes exist.
//!
//! Connections whose accepted end has a name are made through a temporary listening socket of that name: the program's own
//! listening socket, if it still has one, comes later. Sockets for datagrams are connected when
//! their queues are full, for a connected socket takes messages from its peer only; but to one without a name only
//! a pair leads, which is made here.

use super::image::{Kind, Link, Name, UnixSocket, accepted_end, owns_name};
use super::maker::{Maker, Place, failed};
use super::names::{bind, bind_nowhere, nowhere};
use crate::error::ProcError;
use rustix::fs::OFlags;
use rustix::io::DupFlags;
use rustix::net::{AddressFamily, SocketFlags, socket_with, socketpair};
use snapify_sys::unix_socket;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How many connections wait for a temporary listening socket at a time.
const BATCH: usize = 1024;

/// All sockets of an image, which get their contents later.
#[derive(Debug)]
pub(crate) struct NewSockets {
    /// In the order of the image.
    pub(super) sockets: Vec<OwnedFd>,
    /// Peers of those whose own peer was closed, by their index.
    pub(super) lost_peers: HashMap<usize, OwnedFd>,
    /// Sockets for datagrams that were made as a pair: the other end of each.
    pub(super) partners: HashMap<usize, usize>,
    /// How many sockets before each had the same address and have lost its file as well.
    earlier: Vec<usize>,
    pub(super) maker: Maker,
}

fn earlier(images: &[UnixSocket]) -> Vec<usize> {
    let mut seen: HashMap<&[u8], usize> = HashMap::new();
    let lost = |index: usize| {
        let name = images[index].name.as_ref()?;
        let is_lost = name.file.is_none() && owns_name(images, index);
        is_lost.then(|| name.address.as_bytes())
    };
    let count = |index| {
        lost(index).map_or(0, |address| {
            let count = seen.entry(address).or_default();
            *count += 1;
            *count - 1
        })
    };
    (0..images.len()).map(count).collect()
}

/// One end of a connection to be made.
#[derive(Clone, Copy, Debug)]
enum End {
    /// This socket.
    Own(usize),
    /// The lost peer of this one.
    Lost(usize),
}

/// A connection whose accepted end has a name.
struct Connection {
    connecting: End,
    accepted: End,
}

/// Pairs that can be made together: those of one type, noted by one process.
type Pairs = HashMap<(Kind, Option<i32>), Vec<[End; 2]>>;

/// Connections that can be made together: type, address, who listens and who connects.
type Way = (Kind, Vec<u8>, Option<i32>, Option<i32>);

impl NewSockets {
    /// Makes the sockets of a valid image.
    ///
    /// # Errors
    /// Those of the calls; [`ProcError::BadImage`] for connections that cannot be.
    pub fn new(images: &[UnixSocket], warn: &dyn Fn(String)) -> Result<Self, ProcError> {
        let sockets = images.iter().map(|image| new(image.kind));
        let mut made = Self {
            sockets: sockets.collect::<Result<_, _>>()?,
            lost_peers: HashMap::new(),
            partners: HashMap::new(),
            earlier: earlier(images),
            maker: Maker::default(),
        };
        let mut ways: HashMap<Way, Vec<Connection>> = HashMap::new();
        let mut pairs = Pairs::new();
        for index in 0..images.len() {
            if images[index].kind == Kind::Datagram {
                made.pair_datagrams(images, index, &mut pairs)?;
            } else {
                made.connect(images, index, &mut ways, &mut pairs)?;
            }
        }
        for ((kind, pid), ends) in pairs {
            made.pair(kind, &ends, pid)?;
        }
        for (way, connections) in ways {
            for batch in connections.chunks(BATCH) {
                made.connect_all(&way, batch, warn)?;
            }
        }
        for index in 0..images.len() {
            if let Some(name) = &images[index].name
                && owns_name(images, index)
            {
                let place = made.place(name, index);
                bind(made.sockets[index].as_fd(), name, place, &made.maker, warn)?;
            }
        }
        made.name_lost_peers(images, warn);
        for index in 0..images.len() {
            made.listen(images, index)?;
        }
        Ok(made)
    }

    /// Where the name of a socket is resolved.
    pub(super) fn place<'a>(&self, name: &'a Name, index: usize) -> Place<'a> {
        name.place(self.earlier[index])
    }

    /// The socket with the status flags of its description.
    ///
    /// # Errors
    /// If it cannot be duplicated.
    pub fn description(&self, index: usize, flags: u32) -> Result<OwnedFd, ProcError> {
        let socket = &self.sockets[index];
        let status = OFlags::from_bits_retain(flags) & (OFlags::NONBLOCK | OFlags::APPEND);
        rustix::fs::fcntl_setfl(socket, status).map_err(failed("setting the flags of"))?;
        socket.try_clone().map_err(failed("duplicating"))
    }

    fn end(&self, end: End) -> BorrowedFd<'_> {
        match end {
            End::Own(index) => self.sockets[index].as_fd(),
            End::Lost(index) => self.lost_peers[&index].as_fd(),
        }
    }

    /// Puts another socket where a fresh one was.
    fn replace(&mut self, end: End, socket: &OwnedFd) -> Result<(), ProcError> {
        let place = match end {
            End::Own(index) => &mut self.sockets[index],
            End::Lost(index) => self.lost_peers.get_mut(&index).expect("was just made"),
        };
        rustix::io::dup3(socket, place, DupFlags::CLOEXEC).map_err(failed("duplicating"))
    }

    /// Makes pairs. The process that does so is noted in all of them.
    fn pair(&mut self, kind: Kind, pairs: &[[End; 2]], pid: Option<i32>) -> Result<(), ProcError> {
        let fresh = pairs.iter().map(|_| Ok([new(kind)?, new(kind)?]));
        let mut fresh: Vec<[OwnedFd; 2]> = fresh.collect::<Result<_, ProcError>>()?;
        self.maker
            .run(pid, Place::Here, || {
                for [a, b] in &mut fresh {
                    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                    let (one, other) =
                        socketpair(AddressFamily::UNIX, kind.socket_type(), flags, None)?;
                    // Memory is not shared with a child, but numbers are.
                    rustix::io::dup3(&one, a, DupFlags::CLOEXEC)?;
                    rustix::io::dup3(&other, b, DupFlags::CLOEXEC)?;
                }
                Ok(())
            })
            .map_err(failed("making a pair of"))?;
        for (ends, sockets) in pairs.iter().zip(&fresh) {
            self.replace(ends[0], &sockets[0])?;
            self.replace(ends[1], &sockets[1])?;
        }
        Ok(())
    }

    /// Makes the pair that a socket for datagrams belongs to, if it must be one: its peer has no name, or the kernel
    /// has noted who made the pair.
    fn pair_datagrams(
        &mut self,
        images: &[UnixSocket],
        index: usize,
        pairs: &mut Pairs,
    ) -> Result<(), ProcError> {
        let image = &images[index];
        if matches!(image.link, Link::Orphaned { .. }) {
            self.lost_peers.insert(index, new(image.kind)?);
            let ends = [End::Own(index), End::Lost(index)];
            pairs
                .entry((image.kind, image.peer_pid))
                .or_default()
                .push(ends);
            return Ok(());
        }
        let Link::Connected { peer } = image.link else {
            return Ok(());
        };
        let other = &images[peer];
        let is_mutual = other.link == Link::Connected { peer: index };
        let must = other.name.is_none() || is_mutual && image.peer_pid.is_some();
        if !must || self.partners.get(&index) == Some(&peer) {
            return Ok(());
        }
        let is_paired = |at: &usize| self.partners.contains_key(at);
        if index == peer || is_paired(&index) || is_paired(&peer) {
            return Err(ProcError::BadImage(format!(
                "UNIX socket {index} is connected with one that has no name"
            )));
        }
        self.partners.extend([(index, peer), (peer, index)]);
        let ends = [End::Own(index), End::Own(peer)];
        let pid = image.peer_pid.or(other.peer_pid);
        pairs.entry((image.kind, pid)).or_default().push(ends);
        Ok(())
    }

    /// Makes the connection of a socket, or notes how it is to be made. Of two the first does it for both.
    fn connect(
        &mut self,
        images: &[UnixSocket],
        index: usize,
        ways: &mut HashMap<Way, Vec<Connection>>,
        pairs: &mut Pairs,
    ) -> Result<(), ProcError> {
        let image = &images[index];
        let (connecting, accepted, address) = match &image.link {
            Link::Connected { peer } if index < *peer => match accepted_end(images, index, *peer) {
                None => {
                    let ends = [End::Own(index), End::Own(*peer)];
                    pairs
                        .entry((image.kind, image.peer_pid))
                        .or_default()
                        .push(ends);
                    return Ok(());
                }
                Some(end) => {
                    let connecting = if end == index { *peer } else { index };
                    let name = images[end].name.as_ref();
                    let address = name.map(|name| name.address.clone());
                    (End::Own(connecting), End::Own(end), address)
                }
            },
            Link::Orphaned { peer_name } => {
                self.lost_peers.insert(index, new(image.kind)?);
                let (own, lost) = (End::Own(index), End::Lost(index));
                match &image.name {
                    Some(name) if !owns_name(images, index) => {
                        (lost, own, Some(name.address.clone()))
                    }
                    _ if peer_name.as_bytes().is_empty() => {
                        let pairs = pairs.entry((image.kind, image.peer_pid)).or_default();
                        pairs.push([own, lost]);
                        return Ok(());
                    }
                    _ => (own, lost, Some(peer_name.clone())),
                }
            }
            _ => return Ok(()),
        };
        let pid = |end| match end {
            End::Own(index) => images[index].peer_pid,
            End::Lost(_) => None,
        };
        let address = address.map_or_else(Vec::new, |address| address.as_bytes().to_vec());
        // Each end shows who made the other: who listened, and who connected.
        let way = (image.kind, address, pid(connecting), pid(accepted));
        let connection = Connection {
            connecting,
            accepted,
        };
        ways.entry(way).or_default().push(connection);
        Ok(())
    }

    fn connect_all(
        &mut self,
        (kind, address, listening, connecting): &Way,
        connections: &[Connection],
        warn: &dyn Fn(String),
    ) -> Result<(), ProcError> {
        let listener = new(*kind)?;
        if let Err(error) = bind_nowhere(listener.as_fd(), address, &self.maker) {
            warn(format!(
                "connections to {} come back without that name: {error}",
                String::from_utf8_lossy(address).replace('\0', "@")
            ));
            let ends = connections.iter().map(|one| [one.connecting, one.accepted]);
            return self.pair(*kind, &ends.collect::<Vec<_>>(), *connecting);
        }
        let place = nowhere(address);
        self.maker
            .run(*listening, place, || {
                Ok(rustix::net::listen(&listener, BATCH as i32)?)
            })
            .map_err(failed("listening on"))?;
        self.maker
            .run(*connecting, place, || {
                let mut connections = connections.iter();
                connections
                    .try_for_each(|one| unix_socket::connect(self.end(one.connecting), address))
            })
            .map_err(failed("connecting"))?;
        for connection in connections {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let accepted =
                rustix::net::accept_with(&listener, flags).map_err(failed("accepting"))?;
            self.replace(connection.accepted, &accepted)?;
        }
        Ok(())
    }

    /// Gives the names back that closed peers for datagrams had. That is all that is left of them.
    fn name_lost_peers(&self, images: &[UnixSocket], warn: &dyn Fn(String)) {
        for (index, peer) in &self.lost_peers {
            let image = &images[*index];
            let Link::Orphaned { peer_name } = &image.link else {
                continue;
            };
            if image.kind != Kind::Datagram || peer_name.as_bytes().is_empty() {
                continue;
            }
            if let Err(error) = bind_nowhere(peer.as_fd(), peer_name.as_bytes(), &self.maker) {
                warn(format!(
                    "the closed peer of a UNIX socket comes back without its name: {error}"
                ));
            }
        }
    }

    /// Makes a socket listen, and those connect with it that wait to be accepted.
    fn listen(&self, images: &[UnixSocket], index: usize) -> Result<(), ProcError> {
        let image = &images[index];
        let (Link::Listening { backlog, waiting }, Some(name)) = (&image.link, &image.name) else {
            return Ok(());
        };
        let listener = &self.sockets[index];
        let listen = |backlog: u32| {
            let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
            self.maker
                .run(image.peer_pid, Place::Here, || {
                    Ok(rustix::net::listen(listener, backlog)?)
                })
                .map_err(failed("listening on"))
        };
        listen((*backlog).max(waiting.len() as u32))?;
        let by = |client: &usize| match images[*client].link {
            Link::Waiting { by, .. } => Some(by).filter(|&pid| pid > 0),
            _ => None,
        };
        for group in waiting.chunk_by(|a, b| by(a) == by(b)) {
            self.maker
                .run(by(&group[0]), self.place(name, index), || {
                    group.iter().try_for_each(|&client| {
                        unix_socket::connect(self.sockets[client].as_fd(), name.address.as_bytes())
                    })
                })
                .map_err(failed("connecting"))?;
        }
        if waiting.len() > *backlog as usize {
            listen(*backlog)?;
        }
        Ok(())
    }
}

/// A fresh socket that never waits.
pub(super) fn new(kind: Kind) -> Result<OwnedFd, ProcError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, kind.socket_type(), flags, None).map_err(failed("making"))
}
