//! What comes into sockets after they are made, and what must come after that: messages, the peers of sockets for
//! datagrams, ends that are shut down, options.

use super::image::{Kind, Link, Message, Name, Queue, UnixSocket};
use super::make::{NewSockets, new};
use super::maker::{Place, failed};
use super::{names, options};
use crate::error::ProcError;
use rustix::net::{Shutdown, sockopt};
use snapify_store::SpaceId;
use snapify_sys::unix_socket::{self, Credentials, Outgoing};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the sockets need from the rest of the restore.
pub(crate) trait Supplies {
    /// A content of a given length.
    fn content(&self, object: SpaceId, bytes: u64) -> Result<Vec<u8>, ProcError>;
    /// Our own descriptor of an open file description.
    fn description(&self, index: usize) -> Result<OwnedFd, ProcError>;
    /// Notes what is not as it was.
    fn warn(&self, text: String);
}

/// The sockets with all that is needed to fill them.
struct Filling<'a> {
    made: &'a NewSockets,
    images: &'a [UnixSocket],
    supplies: &'a dyn Supplies,
    /// Sockets for datagrams by their addresses.
    by_address: HashMap<&'a [u8], usize>,
    /// Temporary senders of datagrams, by address.
    senders: HashMap<Vec<u8>, OwnedFd>,
}

impl NewSockets {
    /// Fills all sockets. Lost peers are gone, as the program sees it, when the last descriptor of them is
    /// closed: when this is dropped and the processes have closed what they inherited.
    ///
    /// # Errors
    /// If a message cannot be sent again.
    pub fn fill(&self, images: &[UnixSocket], supplies: &dyn Supplies) -> Result<(), ProcError> {
        let named = images.iter().enumerate().filter_map(|(index, image)| {
            let name = image
                .name
                .as_ref()
                .filter(|_| image.kind == Kind::Datagram)?;
            Some((name.address.as_bytes(), index))
        });
        let mut filling = Filling {
            made: self,
            images,
            supplies,
            by_address: named.collect(),
            senders: HashMap::new(),
        };
        filling.datagrams()?;
        for (index, image) in images.iter().enumerate() {
            if image.kind != Kind::Datagram {
                filling.connection(index)?;
            }
        }
        // Temporary senders are gone with their names.
        filling.senders.clear();
        let usual = options::usual_size().map_err(failed("measuring the buffer of"))?;
        for (index, image) in images.iter().enumerate() {
            filling.settle(index, image, usual)?;
        }
        Ok(())
    }
}

impl<'a> Filling<'a> {
    fn socket(&self, index: usize) -> BorrowedFd<'a> {
        self.made.sockets[index].as_fd()
    }

    fn messages(
        &self,
        index: usize,
        queue: &'a Queue,
    ) -> Result<Vec<(Vec<u8>, &'a Message)>, ProcError> {
        let content = match queue.content {
            Some(object) => self.supplies.content(object, queue.bytes())?,
            None => Vec::new(),
        };
        let mut rest = &content[..];
        let mut messages = Vec::with_capacity(queue.messages.len());
        for message in &queue.messages {
            let length = usize::try_from(message.bytes).unwrap_or(usize::MAX);
            let Some((bytes, behind)) = rest.split_at_checked(length) else {
                return Err(ProcError::BadImage(format!(
                    "the queue of UNIX socket {index} is cut off"
                )));
            };
            rest = behind;
            messages.push((bytes.to_vec(), message));
        }
        Ok(messages)
    }

    fn datagrams(&mut self) -> Result<(), ProcError> {
        let all = |filling: &Self| {
            (0..filling.images.len()).filter({
                let images = filling.images;
                move |&index| images[index].kind == Kind::Datagram
            })
        };
        // A socket that leaves its peer loses what it has received. So the other ends of pairs that have been left
        // are filled first, then they are left, and then come the others.
        let is_left = |filling: &Self, index: usize| {
            let partner = filling.made.partners.get(&index);
            partner
                .is_some_and(|&other| filling.images[other].link != Link::Connected { peer: index })
        };
        for index in all(self) {
            if is_left(self, index) {
                self.receive_datagrams(index)?;
            }
        }
        for (&one, &other) in &self.made.partners {
            if self.images[one].link != (Link::Connected { peer: other }) {
                unix_socket::disconnect(self.socket(one)).map_err(failed("disconnecting"))?;
                // It is told of that, which its program has been long ago, or has not been.
                let told = sockopt::socket_error(self.socket(other));
                let _ = told.map_err(failed("examining"))?;
            }
        }
        for index in all(self) {
            if !is_left(self, index) {
                self.receive_datagrams(index)?;
            }
        }
        for index in all(self) {
            self.connect_datagrams(index)?;
        }
        Ok(())
    }

    /// Whether it was made with its peer, and is still connected with it.
    fn is_paired(&self, index: usize) -> bool {
        let Link::Connected { peer } = self.images[index].link else {
            return matches!(self.images[index].link, Link::Orphaned { .. });
        };
        self.made.partners.get(&index) == Some(&peer)
    }

    fn connect_datagrams(&self, index: usize) -> Result<(), ProcError> {
        let socket = self.socket(index);
        match &self.images[index].link {
            Link::Connected { peer } if !self.is_paired(index) => {
                let Some(name) = &self.images[*peer].name else {
                    return Err(ProcError::BadImage(format!(
                        "UNIX socket {index} is connected with one that has no name"
                    )));
                };
                self.made
                    .maker
                    .run(None, self.made.place(name, *peer), || {
                        unix_socket::connect(socket, name.address.as_bytes())
                    })
                    .map_err(failed("connecting"))
            }
            Link::Service { address } => {
                if let Err(error) = unix_socket::connect(socket, address.as_bytes()) {
                    self.supplies.warn(format!(
                        "a UNIX socket is not connected with {} any more: {error}",
                        String::from_utf8_lossy(address.as_bytes()).replace('\0', "@")
                    ));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sends a socket for datagrams what it has received. From its peer it takes any number; from others, before
    /// it is connected, only as many as the system allows to wait.
    fn receive_datagrams(&mut self, index: usize) -> Result<(), ProcError> {
        let messages = self.messages(index, &self.images[index].queue)?;
        if messages.is_empty() {
            return Ok(());
        }
        let image = &self.images[index];
        let peer = match image.link {
            Link::Connected { peer } => Some(peer),
            _ => None,
        };
        let peer_address = peer.map(|peer| address(&self.images[peer]));
        let from_others = match self.is_paired(index) {
            true => 0,
            false => {
                let is_other = |message: &Message| Some(message.sender.as_bytes()) != peer_address;
                let last = messages.iter().rposition(|(_, message)| is_other(message));
                last.map_or(0, |last| last + 1)
            }
        };
        for (at, (bytes, message)) in messages.iter().enumerate() {
            if at == from_others && peer.is_some() && !self.is_paired(index) {
                self.connect_datagrams(index)?;
            }
            let sender = message.sender.as_bytes();
            let partner = self.partner(index);
            match (partner, &image.name) {
                (Some(partner), _) if at >= from_others => {
                    self.send_datagram(partner, None, bytes, message)?;
                }
                (_, Some(name)) => {
                    let from = self.sender(sender, peer.filter(|_| at >= from_others))?;
                    self.send_datagram(from.as_fd(), Some((name, index)), bytes, message)?;
                }
                _ => {
                    return Err(ProcError::BadImage(format!(
                        "UNIX socket {index} has received what nobody can have sent"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The socket whose messages go to this one without an address: the other end of its pair.
    fn partner(&self, index: usize) -> Option<BorrowedFd<'a>> {
        if let Some(lost) = self.made.lost_peers.get(&index) {
            return Some(lost.as_fd());
        }
        let partner = self.made.partners.get(&index)?;
        Some(self.socket(*partner))
    }

    /// A socket with an address, to send from.
    fn sender(&mut self, wanted: &[u8], peer: Option<usize>) -> Result<OwnedFd, ProcError> {
        let known = peer.or_else(|| self.by_address.get(wanted).copied());
        let duplicate =
            |socket: BorrowedFd<'_>| socket.try_clone_to_owned().map_err(failed("duplicating"));
        if let Some(index) = known {
            return duplicate(self.socket(index));
        }
        if let Some(socket) = self.senders.get(wanted) {
            return duplicate(socket.as_fd());
        }
        let socket = new(Kind::Datagram)?;
        options::enlarge(socket.as_fd())?;
        if !wanted.is_empty()
            && let Err(error) = names::bind_nowhere(socket.as_fd(), wanted, &self.made.maker)
        {
            self.supplies.warn(format!(
                "a datagram comes back without the address of its sender: {error}"
            ));
        }
        let again = duplicate(socket.as_fd())?;
        self.senders.insert(wanted.to_vec(), socket);
        Ok(again)
    }

    fn send_datagram(
        &self,
        from: BorrowedFd<'_>,
        to: Option<(&Name, usize)>,
        bytes: &[u8],
        message: &Message,
    ) -> Result<(), ProcError> {
        let place = to.map_or(Place::Here, |(name, index)| self.made.place(name, index));
        let to = to.map(|(name, _)| name.address.as_bytes());
        match self.send(from, to, place, bytes, message) {
            Err(error) if error.errno() == Some(libc::EAGAIN) => {
                options::enlarge(from)?;
                self.send(from, to, place, bytes, message)
            }
            other => other,
        }
    }

    /// Sends all of a message, as the process that had sent it.
    fn send(
        &self,
        from: BorrowedFd<'_>,
        to: Option<&[u8]>,
        place: Place<'_>,
        bytes: &[u8],
        message: &Message,
    ) -> Result<(), ProcError> {
        let descriptors: Vec<OwnedFd> = message
            .descriptors
            .iter()
            .map(|&index| self.supplies.description(index))
            .collect::<Result<_, _>>()?;
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let credentials = message.credentials.map(|sender| Credentials {
            pid: sender.pid,
            uid: sender.uid,
            gid: sender.gid,
        });
        let outgoing = Outgoing {
            bytes,
            to,
            descriptors: &borrowed,
            credentials,
            urgent: message.urgent,
        };
        let maker = &self.made.maker;
        let mut result = maker.run(None, place, || send_all(from, outgoing));
        let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
        if errno == Some(libc::ESRCH) {
            // The process has ended since. Its number can be had for the moment.
            let pid = credentials.map(|sender| sender.pid);
            result = maker.run(pid, place, || send_all(from, outgoing));
        }
        let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
        if credentials.is_some() && matches!(errno, Some(libc::EPERM | libc::EINVAL | libc::ESRCH))
        {
            self.supplies.warn(
                "a message comes back without the credentials of its sender, which cannot be given here"
                    .into(),
            );
            let anonymous = Outgoing {
                credentials: None,
                ..outgoing
            };
            result = maker.run(None, place, || send_all(from, anonymous));
        }
        result.map_err(ProcError::system(format!(
            "putting {} bytes into the queue of a UNIX socket",
            bytes.len()
        )))
    }

    /// Sends a stream or packet socket what it has received.
    fn connection(&self, index: usize) -> Result<(), ProcError> {
        let sent = self.messages(index, &self.images[index].sent)?;
        if !sent.is_empty() {
            options::enlarge(self.socket(index))?;
        }
        for (bytes, message) in sent {
            self.send(self.socket(index), None, Place::Here, &bytes, message)?;
        }
        let messages = self.messages(index, &self.images[index].queue)?;
        let from = match self.images[index].link {
            _ if messages.is_empty() => return Ok(()),
            Link::Connected { peer } => self.socket(peer),
            _ => match self.made.lost_peers.get(&index) {
                Some(lost) => lost.as_fd(),
                None => return Ok(()),
            },
        };
        options::enlarge(from)?;
        for (bytes, message) in messages {
            self.send(from, None, Place::Here, &bytes, message)?;
        }
        Ok(())
    }

    /// What comes last: a socket that sends no more has sent everything, and one that wants credentials would get
    /// them with messages that had none.
    fn settle(&self, index: usize, image: &UnixSocket, usual: i32) -> Result<(), ProcError> {
        let socket = self.socket(index);
        if image.reset {
            // What a peer has not read when it is closed resets the connection.
            let lost = self.made.lost_peers.contains_key(&index) && image.kind != Kind::Datagram;
            let unread = Outgoing {
                bytes: b"\0",
                ..Outgoing::default()
            };
            if lost {
                unix_socket::send(socket, &unread).map_err(failed("resetting"))?;
            } else {
                self.supplies
                    .warn("an error that was pending on a UNIX socket is gone".into());
            }
        }
        let how = match image.shutdown {
            1 => Some(Shutdown::Read),
            2 => Some(Shutdown::Write),
            3 => Some(Shutdown::Both),
            _ => None,
        };
        if let Some(how) = how {
            match rustix::net::shutdown(socket, how) {
                Ok(()) | Err(rustix::io::Errno::NOTCONN) => {}
                Err(errno) => return Err(failed("shutting down")(errno)),
            }
        }
        if !image.options.contains_key("send-buffer") {
            options::set_usual_size(socket, usual)?;
        }
        options::set(socket, &image.options, &|text| self.supplies.warn(text));
        Ok(())
    }
}

fn address(image: &UnixSocket) -> &[u8] {
    image
        .name
        .as_ref()
        .map_or(&[], |name| name.address.as_bytes())
}

/// Sends all bytes; a stream may take them in several steps.
fn send_all(from: BorrowedFd<'_>, mut message: Outgoing<'_>) -> io::Result<()> {
    loop {
        let sent = unix_socket::send(from, &message)?;
        if sent >= message.bytes.len() {
            return Ok(());
        }
        message.bytes = &message.bytes[sent..];
        message.descriptors = &[];
    }
}
