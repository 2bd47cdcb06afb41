//! Cards of this machine: each a daemon in a sandbox, a child of the supervisor.

use crate::engine::ProcessEngine;
use crate::error::JobError;
use crate::layout::Layout;
use crate::signals::Signals;
use snapify_fabric::Channel;
use snapify_offload::control::{CardInfo, CardToSupervisor, SupervisorToCard, VERSION};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// What a card daemon is started with.
#[derive(Clone, Copy, Debug)]
pub struct CardDaemonOptions {
    /// The card.
    pub index: u32,
    /// Its memory in bytes.
    pub memory: u64,
    /// Number of the descriptor that is the connection to the supervisor.
    pub service_fd: i32,
}

/// Is a card daemon until its supervisor ends it.
///
/// # Errors
/// Where the sandbox cannot be made; the supervisor is told as well.
pub fn card_daemon(options: CardDaemonOptions) -> Result<(), JobError> {
    let layout = Layout::find()?;
    let service = adopt(options.service_fd)?;
    let config = snapify_offload::daemon::CardConfig {
        index: options.index,
        memory: options.memory,
        service,
        offload_process: layout.offload_process,
        libraries: Some(layout.sink_libraries),
        scratch: "/tmp".into(),
    };
    snapify_offload::daemon::run(config, Box::new(ProcessEngine)).map_err(|error| {
        JobError::Member {
            member: format!("card {}", options.index),
            why: error.to_string(),
        }
    })
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
    pub child: Child,
}

impl Card {
    /// Starts a card daemon, which is up when [`Card::await_ready`] returns.
    pub(crate) fn start(
        layout: &Layout,
        signals: &Signals,
        index: u32,
        memory: u64,
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
        let child = command
            .arg("card-daemon")
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
            child,
        })
    }

    /// Waits until the card is up.
    pub(crate) fn await_ready(&mut self) -> Result<Vec<String>, JobError> {
        match self.receive()? {
            (
                CardToSupervisor::Ready {
                    version, warnings, ..
                },
                _,
            ) if version == VERSION => Ok(warnings),
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
        self.child.id().cast_signed()
    }
}

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // Everything in the sandbox dies with its init; a daemon that does not listen any more is killed.
        if self
            .channel
            .send_now(&SupervisorToCard::Shutdown, &[])
            .is_err()
        {
            let _ = self.child.kill();
        }
        // What the daemon still says is of no interest; its end is.
        while self.channel.recv::<CardToSupervisor>().is_ok() {}
        let _ = self.child.wait();
    }
}
