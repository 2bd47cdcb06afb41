//! Which TCP sockets are ends of one connection, and who has the other ends of the rest.

use super::image::{Waiting, is_any};
use super::observe::Observed;
use super::requeue;
use crate::files::holders;
use snapify_sys::inet_diag::{InetSocket as Listed, TcpState, canonical, sockets};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Who has the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// Another of the sockets.
    Socket(usize),
    /// Nobody yet: one of the sockets listens, and it waits to be accepted there.
    Waits,
    /// Nobody any more.
    Closed,
    /// Somebody else: who, for people.
    Outside(String),
}

/// What the kernel lists beside the sockets themselves.
#[derive(Debug, Default)]
pub(super) struct Relations {
    /// Of each socket that is connected.
    pub of: HashMap<usize, Relation>,
    /// How much the kernel has still to send to those whose other end is closed.
    pub leaving: HashMap<usize, usize>,
    /// Where those that are connecting connect to.
    pub connecting: HashMap<usize, SocketAddr>,
    /// Connections that wait to be accepted, the oldest first.
    pub waiting: Vec<Waiting>,
    /// Listeners in whose queues there are connections with content.
    pub with_content: HashSet<usize>,
    /// What waits to be accepted and cannot be saved: the listener, and why.
    pub refused: Vec<(usize, String)>,
}

/// A socket with its inode number.
pub(super) type Numbered = (u64, Observed);

impl Relations {
    /// Relates sockets to each other. `close_outside` leaves out connections from outside that wait
    /// to be accepted.
    ///
    /// # Errors
    /// If the kernel does not list its sockets.
    pub fn new(all: &[Numbered], close_outside: bool) -> io::Result<Self> {
        let mut relations = Self::default();
        let mut by_ends = HashMap::new();
        for (index, (_, seen)) in all.iter().enumerate() {
            if let Some(ends) = seen.ends().filter(|_| is_connected(seen)) {
                by_ends.insert(ends, index);
            }
        }
        let mut listing = false;
        for (&(local, remote), &index) in &by_ends {
            let other = by_ends.get(&(remote, local)).copied();
            match other.filter(|&other| other != index) {
                Some(other) => {
                    relations.of.insert(index, Relation::Socket(other));
                }
                None => listing = true,
            }
        }
        listing |= all.iter().any(|(_, seen)| {
            seen.state == TcpState::SynSent
                || seen.state == TcpState::Listen && seen.tcp.waiting > 0
        });
        if listing {
            let table = Table::new(all, &by_ends)?;
            relations.complete(&table, close_outside);
        }
        Ok(relations)
    }

    fn complete(&mut self, table: &Table<'_>, close_outside: bool) {
        for (index, (inode, seen)) in table.all.iter().enumerate() {
            if seen.state == TcpState::SynSent
                && let Some(listed) = table.by_inode.get(inode)
            {
                self.connecting.insert(index, listed.remote);
            }
            if is_connected(seen) && !self.of.contains_key(&index) {
                let relation = table.relation(seen);
                let unsent = seen
                    .ends()
                    .map_or(0, |(local, remote)| table.unsent(remote, local));
                if relation == Relation::Closed && unsent > 0 {
                    self.leaving.insert(index, unsent);
                }
                self.of.insert(index, relation);
            }
        }
        self.find_waiting(table, close_outside);
    }

    /// The connections in the queues of the listeners.
    fn find_waiting(&mut self, table: &Table<'_>, close_outside: bool) {
        let mut left: HashMap<usize, u32> = HashMap::new();
        for (index, (_, seen)) in table.all.iter().enumerate() {
            if seen.state == TcpState::Listen {
                left.insert(index, seen.tcp.waiting);
            }
        }
        let mut found = Vec::new();
        for listed in table.listed.iter().filter(|listed| is_unaccepted(listed)) {
            let Some(listener) = table.listener(listed.local, &left) else {
                continue;
            };
            let ends = (canonical(listed.remote), canonical(listed.local));
            let client = table.by_ends.get(&ends).copied();
            // A handshake that is not complete is one's own, or nobody's.
            if listed.state == TcpState::SynReceived {
                if client.is_none() {
                    continue;
                }
            } else if let Some(left) = left.get_mut(&listener) {
                *left = left.saturating_sub(1);
            }
            if client.is_none()
                && let Relation::Outside(who) = table.other_end(ends.0, ends.1, true)
            {
                if !close_outside {
                    let why = format!(
                        "a connection from {} ({who}) waits to be accepted",
                        listed.remote
                    );
                    self.refused.push((listener, why));
                }
                continue;
            }
            let fin = u32::from(has_fin(listed.state));
            let unread = listed.receive_queue.saturating_sub(fin) as usize;
            if unread > 0 && listed.state != TcpState::SynReceived {
                if unread + table.unsent(ends.0, ends.1) > requeue::MOST {
                    let why = format!(
                        "the connection from {} that waits to be accepted has sent so much that \
                         it cannot be saved before it is",
                        listed.remote
                    );
                    self.refused.push((listener, why));
                    continue;
                }
                self.with_content.insert(listener);
            }
            let waiting = Waiting {
                listener,
                to: listed.local,
                from: listed.remote,
                client,
                unread: None,
            };
            found.push((table.age(client), waiting));
        }
        found.sort_by_key(|(age, _)| *age);
        self.waiting = found.into_iter().map(|(_, waiting)| waiting).collect();
    }
}

/// All of the kernel's TCP sockets, and ours among them.
struct Table<'a> {
    all: &'a [Numbered],
    by_ends: &'a HashMap<(SocketAddr, SocketAddr), usize>,
    listed: Vec<Listed>,
    by_inode: HashMap<u64, Listed>,
    listed_by_ends: HashMap<(SocketAddr, SocketAddr), Listed>,
}

impl<'a> Table<'a> {
    fn new(
        all: &'a [Numbered],
        by_ends: &'a HashMap<(SocketAddr, SocketAddr), usize>,
    ) -> io::Result<Self> {
        let mut states = CONNECTED.to_vec();
        states.extend([TcpState::SynSent, TcpState::SynReceived, TcpState::TimeWait]);
        let listed = sockets(libc::IPPROTO_TCP, &states)?;
        let key = |one: &Listed| (canonical(one.local), canonical(one.remote));
        Ok(Self {
            all,
            by_ends,
            by_inode: listed
                .iter()
                .filter(|one| one.inode != 0)
                .map(|one| (u64::from(one.inode), *one))
                .collect(),
            listed_by_ends: listed.iter().map(|one| (key(one), *one)).collect(),
            listed,
        })
    }

    /// Who has the other end of one of our connections.
    fn relation(&self, seen: &Observed) -> Relation {
        let Some((local, remote)) = seen.ends() else {
            return Relation::Outside("nobody".into());
        };
        if local == remote {
            return Relation::Outside("it is connected to itself".into());
        }
        self.other_end(remote, local, has_fin(seen.state))
    }

    /// Who has the end with address `local` of the connection to `remote`. `has_ended` says that it
    /// has sent its FIN.
    fn other_end(&self, local: SocketAddr, remote: SocketAddr, has_ended: bool) -> Relation {
        match self.listed_by_ends.get(&(local, remote)) {
            Some(listed) if is_unaccepted(listed) => {
                let left = HashMap::new();
                match self.listener(local, &left) {
                    Some(_) => Relation::Waits,
                    None => Relation::Outside("a program that has not accepted it yet".into()),
                }
            }
            Some(listed) if listed.inode == 0 => Relation::Closed,
            Some(listed) => Relation::Outside(holders::of_socket(listed.inode.into()).map_or_else(
                || format!("a process of user {}", listed.uid),
                |(who, _)| who,
            )),
            // Two minutes after it was closed the kernel has forgotten it.
            None if has_ended && is_local(local.ip()) => Relation::Closed,
            None => Relation::Outside("on another machine or in another network namespace".into()),
        }
    }

    /// Which of our sockets listens at an address: the most particular one, and of several the one in
    /// whose queue there are more.
    fn listener(&self, local: SocketAddr, left: &HashMap<usize, u32>) -> Option<usize> {
        let matching = self.all.iter().enumerate().filter(|(_, (_, seen))| {
            seen.state == TcpState::Listen
                && seen.local.is_some_and(|at| {
                    let ip = at.ip().to_canonical();
                    let takes_all = is_any(at.ip()) && (at.is_ipv6() || local.is_ipv4());
                    at.port() == local.port() && (takes_all || ip == local.ip().to_canonical())
                })
        });
        matching
            .max_by_key(|(index, (_, seen))| {
                let is_particular = seen.local.is_some_and(|at| !is_any(at.ip()));
                (
                    is_particular,
                    left.get(index).copied(),
                    std::cmp::Reverse(*index),
                )
            })
            .map(|(index, _)| index)
    }

    /// How much of what was sent from `local` to `remote` has not arrived, whether or not anybody still has the sender.
    fn unsent(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        self.listed_by_ends
            .get(&(canonical(local), canonical(remote)))
            .map_or(0, |listed| listed.send_queue as usize)
    }

    /// Sorts connections by when they were made: the client has received nothing since. Within the
    /// clock's resolution the socket that was made first connected first.
    fn age(&self, client: Option<usize>) -> (std::cmp::Reverse<u32>, u64) {
        const RESOLUTION: u32 = 10;
        match client.map(|client| &self.all[client]) {
            Some((inode, seen)) => (
                std::cmp::Reverse(seen.tcp.last_received / RESOLUTION),
                *inode,
            ),
            None => (std::cmp::Reverse(u32::MAX), 0),
        }
    }
}

/// Whether a TCP socket has a connection, even one that is half closed.
pub(super) fn is_connected(seen: &Observed) -> bool {
    CONNECTED.contains(&seen.state)
}

const CONNECTED: [TcpState; 6] = [
    TcpState::Established,
    TcpState::FinWait1,
    TcpState::FinWait2,
    TcpState::CloseWait,
    TcpState::LastAck,
    TcpState::Closing,
];

/// How many bytes the kernel holds for the reader of each connected socket, by inode number, those
/// behind an urgent mark included.
///
/// # Errors
/// If the kernel does not list its sockets.
pub(super) fn received() -> io::Result<HashMap<u64, usize>> {
    let listed = sockets(libc::IPPROTO_TCP, &CONNECTED)?;
    let held = listed.iter().filter(|listed| listed.inode != 0);
    Ok(held
        .map(|listed| {
            // The peer's FIN takes a place in the sequence.
            let fin = usize::from(has_fin(listed.state));
            let received = (listed.receive_queue as usize).saturating_sub(fin);
            (u64::from(listed.inode), received)
        })
        .collect())
}

/// Nobody has a descriptor of a connection that was not accepted, nor of one that was closed; but the
/// latter has sent its FIN.
fn is_unaccepted(listed: &Listed) -> bool {
    use TcpState::{CloseWait, Established, SynReceived};
    listed.inode == 0 && matches!(listed.state, Established | CloseWait | SynReceived)
}

/// Whether the peer's FIN has come.
fn has_fin(state: TcpState) -> bool {
    use TcpState::{CloseWait, Closing, LastAck, TimeWait};
    matches!(state, CloseWait | Closing | LastAck | TimeWait)
}

/// Whether an address is one of this host.
pub(super) fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}
