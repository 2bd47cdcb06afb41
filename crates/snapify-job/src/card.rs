//! Cards of this machine: each a daemon in a sandbox. It is a child of the supervisor, unless the card is shared.

use crate::engine::ProcessEngine;
use crate::error::JobError;
use crate::layout::Layout;
use crate::shared_cards::{CardSocket, SharedCards};
use crate::signals::Signals;
use snapify_fabric::Channel;
use snapify_offload::control::{CardInfo, CardToSupervisor, SupervisorToCard, VERSION};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What a card daemon is started with.
#[derive(Clone, Debug)]
pub struct CardDaemonOptions {
    /// The card.
    pub index: u32,
    /// Its memory in bytes.
    pub memory: u64,
    /// Number of the descriptor that is the connection to the supervisor.
    pub service_fd: i32,
    /// Where the supervisors of other applications connect, if the card is shared.
    pub listen: Option<PathBuf>,
}

/// Is a card daemon until its supervisor ends it; if the card is shared, until the last one has. The calling process has done
/// nothing else yet.
///
/// # Errors
/// Where the sandbox cannot be made; the supervisor is told as well.
pub fn card_daemon(options: CardDaemonOptions) -> Result<(), JobError> {
    let layout = Layout::find()?;
    let service = adopt(options.service_fd)?;
    if options.listen.is_some() {
        // It may outlive the first application, and whoever waits for the end of one of its pipes must not wait for the card.
        #[allow(unsafe_code)]
        // SAFETY: the process has opened nothing else of its own.
        unsafe {
            crate::keeper::close_others(vec![service.as_raw_fd()]);
        }
    }
    let (socket, listener) = match options.listen.as_deref().map(CardSocket::bind) {
        None => (None, None),
        Some(Ok((socket, listener))) => (Some(socket), Some(listener)),
        Some(Err(error)) => {
            let message = error.to_string();
            let service = Channel::from_fd(service);
            let _ = service.send_now(&CardToSupervisor::Failed { message }, &[]);
            return Err(error);
        }
    };
    let config = snapify_offload::daemon::CardConfig {
        index: options.index,
        memory: options.memory,
        service,
        listener,
        offload_process: layout.offload_process,
        libraries: Some(layout.sink_libraries),
        scratch: "/tmp".into(),
    };
    let ended = snapify_offload::daemon::run(config, Box::new(ProcessEngine));
    // Only the outer process gets here.
    let removed = socket.map_or(Ok(()), CardSocket::remove);
    ended.map_err(|error| JobError::Member {
        member: format!("card {}", options.index),
        why: error.to_string(),
    })?;
    removed
}

/// Takes over an inherited descriptor.
#[allow(unsafe_code)]
fn adopt(number: i32) -> Result<OwnedFd, JobError> {
    // SAFETY: nobody else in this process knows the number, which came on its command line; borrowed only to make sure
    // that there is such a descriptor.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC).map_err(|errno| {
        JobError::System {
            operation: format!("take over descriptor {number}"),
            source: errno.into(),
        }
    })?;
    // SAFETY: it is open, as was just seen, and from here on owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A card as its supervisor has it.
pub(crate) struct Card {
    pub info: CardInfo,
    pub channel: Channel,
    /// Whether other applications may use it, too.
    pub shared: bool,
    /// The daemon's process id.
    pid: i32,
    /// The daemon, if this process has started it.
    child: Option<Child>,
}

impl Card {
    /// Starts a card daemon, which is up when [`Card::await_ready`] returns. With `listen` the card is shared: others connect
    /// there.
    pub(crate) fn start(
        layout: &Layout,
        signals: &Signals,
        index: u32,
        memory: u64,
        listen: Option<&Path>,
    ) -> Result<Self, JobError> {
        let member = || format!("card {index}");
        let connection = |source| JobError::Connection {
            peer: member(),
            source,
        };
        let (ours, theirs) = Channel::pair().map_err(connection)?;
        let theirs = OwnedFd::from(theirs);
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(|errno| {
            JobError::System {
                operation: "pass a descriptor on".into(),
                source: errno.into(),
            }
        })?;
        let mut command = Command::new(&layout.snapify);
        signals.spare(&mut command);
        if let Some(path) = listen {
            command.arg("card-daemon").arg("--listen").arg(path);
            command.current_dir("/");
        } else {
            command.arg("card-daemon");
        }
        let child = command
            .args(["--index", &index.to_string()])
            .args(["--memory", &memory.to_string()])
            .args(["--service-fd", &theirs.as_raw_fd().to_string()])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|source| JobError::Start {
                program: layout.snapify.display().to_string(),
                source,
            })?;
        Ok(Self {
            info: CardInfo { index, memory },
            channel: ours,
            shared: listen.is_some(),
            pid: child.id().cast_signed(),
            child: Some(child),
        })
    }

    /// A card that another application has started, with a connection to its daemon, which has said nothing yet.
    pub(crate) fn of_others(index: u32, channel: Channel) -> Self {
        Self {
            info: CardInfo { index, memory: 0 },
            channel,
            shared: true,
            pid: 0,
            child: None,
        }
    }

    /// Waits until the card is up.
    pub(crate) fn await_ready(&mut self) -> Result<Vec<String>, JobError> {
        match self.receive()? {
            (
                CardToSupervisor::Ready {
                    version,
                    card,
                    pid,
                    warnings,
                },
                _,
            ) if version == VERSION => {
                self.info = card;
                self.pid = pid;
                Ok(warnings)
            }
            (CardToSupervisor::Failed { message }, _) => Err(self.failed(message)),
            (other, _) => Err(self.failed(format!("it answered {other:?}"))),
        }
    }

    /// Makes a request and waits for its answer, which is not `Failed`.
    pub(crate) fn request(
        &self,
        request: &SupervisorToCard,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(CardToSupervisor, Vec<OwnedFd>), JobError> {
        self.send(request, descriptors)?;
        match self.receive()? {
            (CardToSupervisor::Failed { message }, _) => Err(self.failed(message)),
            answer => Ok(answer),
        }
    }

    /// Sends a request whose answer is received later.
    pub(crate) fn send(
        &self,
        request: &SupervisorToCard,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), JobError> {
        self.channel
            .send(request, descriptors)
            .map_err(|source| JobError::Connection {
                peer: self.name(),
                source,
            })
    }

    /// Receives an answer.
    pub(crate) fn receive(&self) -> Result<(CardToSupervisor, Vec<OwnedFd>), JobError> {
        self.channel.recv().map_err(|source| JobError::Connection {
            peer: self.name(),
            source,
        })
    }

    /// Receives what the card says unasked; usually that its connection is closed.
    pub(crate) fn receive_now(&self) -> Result<(), snapify_fabric::ChannelError> {
        self.channel.recv::<CardToSupervisor>().map(drop)
    }

    /// What the card is called in messages.
    pub(crate) fn name(&self) -> String {
        format!("card {}", self.info.index)
    }

    /// An error of this card.
    pub(crate) fn failed(&self, why: String) -> JobError {
        JobError::Member {
            member: self.name(),
            why,
        }
    }

    /// The daemon's process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// The daemon has closed the connection, or died: cleans up behind it.
    pub(crate) fn bury(&mut self) {
        match &mut self.child {
            Some(child) if !self.shared => {
                let _ = child.kill();
                let _ = child.wait();
            }
            Some(child) => {
                let _ = child.try_wait();
            }
            None => {}
        }
        if self.shared {
            let forgotten = SharedCards::open().and_then(|cards| cards.forget(self.info.index));
            if let Err(error) = forgotten {
                tracing::warn!("{}: {error}", self.name());
            }
        }
    }
}

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let listens = self.channel.send_now(&SupervisorToCard::Shutdown, &[]);
        if let (Err(_), Some(child), false) = (listens, &mut self.child, self.shared) {
            // Everything in the sandbox dies with its init; a daemon that does not listen any more is killed.
            let _ = child.kill();
        }
        // What the daemon still says is of no interest. It closes the connection when nothing of ours is left on the card.
        while self.channel.recv::<CardToSupervisor>().is_ok() {}
        match &mut self.child {
            Some(child) if !self.shared => {
                let _ = child.wait();
            }
            // One that others use as well goes on.
            Some(child) => {
                let _ = child.try_wait();
            }
            None => {}
        }
    }
}
