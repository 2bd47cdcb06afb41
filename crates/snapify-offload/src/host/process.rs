//! An offload process as its host process has it.

use super::card::Card;
use super::ending::Ending;
use super::local_store::{LocalStore, StoreError};
use super::phase::Phase;
use super::pipelines::Pipelines;
use super::program::{Program, environment};
use super::{Result, Runtime};
use crate::control::ProcessId;
use crate::error::{DeathCause, OffloadError};
use crate::layout::{BUFFERS, COMMAND_RING, RING_BYTES, STORE_BASE};
use crate::wire::{CardReply, HostRequest, STATUS_DONE, Segment};
use snapify_fabric::ring::{Reply, RingClient, RingError, Spin, Ticket};
use snapify_fabric::{Gate, Mapping, SharedFile, WindowError};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};

/// An offload process. Any thread may use it at any time.
#[derive(Debug)]
pub struct Process {
    id: ProcessId,
    pid: AtomicI32,
    /// The card that it is on, or was on last.
    place: RwLock<Arc<Card>>,
    /// It is on no card: what becomes of cards is nothing to it.
    absent: AtomicBool,
    pub(super) phase: Mutex<Phase>,
    pub(super) runtime: Weak<Runtime>,
    pub(super) file: SharedFile,
    /// The local store in this process.
    pub(super) store: Arc<Mapping>,
    /// Passed for as long as it takes to send a request, to copy a piece or to change the local store. Closed by a
    /// pause (paper 1, section 4.1: the locks of cases 2 to 4).
    pub(super) gate: Gate,
    pub(super) commands: RingClient,
    /// Held by the one who uses the bounce area, until the answer is there.
    pub(super) bounce: Mutex<()>,
    pub(super) buffers: Mutex<LocalStore>,
    /// Writable memory of device images that lies in the store.
    pub(super) segments: RwLock<Vec<Segment>>,
    pub(super) pipelines: Pipelines,
    pub(super) death: OnceLock<DeathCause>,
    /// Wakes those who wait for its end.
    pub(super) ending: Ending,
}

impl Process {
    /// Starts an offload process. The caller is in the critical region of the lifecycle.
    pub(super) fn create(
        runtime: &Arc<Runtime>,
        card: &Arc<Card>,
        program: Option<&Program<'_>>,
    ) -> Result<Arc<Self>> {
        let id = ProcessId(random_id());
        let null = std::fs::File::options().write(true).open("/dev/null");
        let null = null.map_err(|source| system("open /dev/null", source))?;
        let wanted = program.is_none_or(|program| program.outputs);
        let outputs = if wanted {
            outputs(&null)
        } else {
            [null.as_fd(); 2]
        };
        let file = program.map(Program::file).transpose();
        let file = file.map_err(|source| system("copy a program into memory", source))?;
        let body = HostRequest::Launch {
            id,
            env: program.map_or_else(
                || environment(runtime.cards()),
                |program| program.environment(runtime.cards()),
            ),
            program: program.map(Program::spec),
        };
        let mut passed = outputs.to_vec();
        passed.extend(file.as_ref().map(AsFd::as_fd));
        let (reply, mut fds) = call(card, body, &passed, "start an offload process")?;
        let (CardReply::Launched { pid }, Some(store), true) = (&reply, fds.pop(), fds.is_empty())
        else {
            return Err(unexpected(card, "start an offload process", &reply));
        };
        let window = |error: &dyn std::fmt::Display| OffloadError::Refused {
            card: card.index,
            operation: "map the local store of an offload process".into(),
            why: error.to_string(),
        };
        let file = SharedFile::from_fd(store).map_err(|error| window(&error))?;
        let store = Arc::new(file.map(None).map_err(|error| window(&error))?);
        let commands = RingClient::new(store.clone(), COMMAND_RING, RING_BYTES, Spin::default())
            .map_err(|error| window(&error))?;
        Ok(Arc::new(Self {
            id,
            pid: AtomicI32::new(*pid),
            place: RwLock::new(card.clone()),
            absent: AtomicBool::new(false),
            phase: Mutex::default(),
            runtime: Arc::downgrade(runtime),
            file,
            store,
            gate: Gate::new(),
            commands,
            bounce: Mutex::new(()),
            buffers: Mutex::new(LocalStore::new(card.memory())),
            segments: RwLock::default(),
            pipelines: Pipelines::default(),
            death: OnceLock::new(),
            ending: Ending::default(),
        }))
    }

    /// Its name for the daemon and in snapshots.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// The card it runs on; the last one, if it is swapped out.
    #[must_use]
    pub fn card(&self) -> u32 {
        self.current_card().index
    }

    /// The same, for requests to it.
    pub(super) fn current_card(&self) -> Arc<Card> {
        self.place
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// It is on another card from now on.
    pub(super) fn set_place(&self, card: Arc<Card>) {
        *self.place.write().unwrap_or_else(PoisonError::into_inner) = card;
    }

    /// Says that it is on no card, or is on one again.
    pub(super) fn set_absent(&self, absent: bool) {
        self.absent.store(absent, Ordering::SeqCst);
    }

    /// Whether what `card` says of it, and the end of `card`, concern it.
    pub(super) fn is_on(&self, card: &Arc<Card>) -> bool {
        !self.absent.load(Ordering::SeqCst) && Arc::ptr_eq(&self.current_card(), card)
    }

    /// Its process id as its card's daemon sees it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// After a restart: the id is another one.
    pub(super) fn set_pid(&self, pid: i32) {
        self.pid.store(pid, Ordering::Relaxed);
    }

    /// Bytes of the card's memory that its local store takes.
    #[must_use]
    pub fn store_bytes(&self) -> u64 {
        self.file.allocated().unwrap_or(0)
    }

    /// Whether it lives.
    ///
    /// # Errors
    /// `ProcessDied` with the cause if not.
    pub fn status(&self) -> Result<()> {
        match self.death.get() {
            None => Ok(()),
            Some(_) => Err(self.died()),
        }
    }

    /// Makes a buffer in the local store and returns its device address: a multiple of 64, of 4096 for
    /// buffers of a page or more. A buffer of 0 bytes has an address of its own, too.
    ///
    /// # Errors
    /// `OutOfMemory` if the card has no such memory left.
    pub fn alloc(&self, bytes: u64) -> Result<u64> {
        self.allocate(bytes).map(|offset| STORE_BASE + offset)
    }

    /// As [`alloc`](Self::alloc), for an offset in the store.
    pub(super) fn allocate(&self, bytes: u64) -> Result<u64> {
        let _inside = self.gate.enter();
        self.status()?;
        self.buffers()
            .allocate(&self.file, bytes)
            .map_err(|error| self.store_error("allocate", 0, bytes, error))
    }

    /// Frees a buffer by its start address.
    ///
    /// # Errors
    /// `BadAddress` if there is no buffer that starts there.
    pub fn free(&self, address: u64) -> Result<()> {
        let _inside = self.gate.enter();
        let offset = address.wrapping_sub(STORE_BASE);
        self.buffers()
            .free(&self.file, offset)
            .map_err(|error| self.store_error("free", address, 0, error))
    }

    pub(super) fn buffers(&self) -> MutexGuard<'_, LocalStore> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store_error(
        &self,
        operation: &'static str,
        address: u64,
        bytes: u64,
        error: StoreError,
    ) -> OffloadError {
        let card = self.current_card();
        match error {
            StoreError::Full => OffloadError::OutOfMemory {
                card: card.index,
                bytes,
                memory: card.memory(),
            },
            StoreError::NoBuffer => {
                self.bad_address(operation, address, bytes, "no buffer starts there")
            }
            StoreError::Window(error) => {
                self.bad_address(operation, address, bytes, &error.to_string())
            }
        }
    }

    pub(super) fn bad_address(
        &self,
        operation: &'static str,
        address: u64,
        bytes: u64,
        why: &str,
    ) -> OffloadError {
        OffloadError::BadAddress {
            card: self.card(),
            operation,
            address,
            bytes,
            why: why.to_owned(),
        }
    }

    pub(super) fn refused(&self, operation: String, why: String) -> OffloadError {
        OffloadError::Refused {
            card: self.card(),
            operation,
            why,
        }
    }

    /// Sends a command to the process as a whole and waits for the answer.
    pub(super) fn command(
        &self,
        kind: u32,
        argument: u64,
        payload: &[u8],
        answer: usize,
        operation: &dyn Fn() -> String,
    ) -> Result<Vec<u8>> {
        let ticket = self.submit(&self.commands, kind, argument, payload, answer, "a command")?;
        let reply = self.take(&self.commands, ticket)?;
        if reply.status == STATUS_DONE {
            return Ok(reply.payload);
        }
        Err(self.refused(
            operation(),
            String::from_utf8_lossy(&reply.payload).into_owned(),
        ))
    }

    /// Submits a request to a ring of this process; waits for room, but never inside the gate.
    pub(super) fn submit(
        &self,
        ring: &RingClient,
        kind: u32,
        argument: u64,
        payload: &[u8],
        answer: usize,
        label: &str,
    ) -> Result<Ticket> {
        loop {
            let submitted = {
                let _inside = self.gate.enter();
                ring.submit(kind, argument, payload, answer, label)
            };
            match submitted {
                Ok(Some(ticket)) => return Ok(ticket),
                Ok(None) => ring
                    .wait_for_room()
                    .map_err(|error| self.ring_error(error))?,
                Err(error) => return Err(self.ring_error(error)),
            }
        }
    }

    /// Waits for an answer and takes it.
    pub(super) fn take(&self, ring: &RingClient, ticket: Ticket) -> Result<Reply> {
        ring.take(ticket).map_err(|error| self.ring_error(error))
    }

    pub(super) fn ring_error(&self, error: RingError) -> OffloadError {
        match error {
            RingError::Closed => self.died(),
            RingError::TooLarge { bytes } => self.refused(
                "send a request".into(),
                format!("it has {bytes} bytes, more than a ring takes"),
            ),
            damaged => {
                self.die(DeathCause::Damaged(damaged.to_string()));
                self.died()
            }
        }
    }

    /// Notes that the process is gone and wakes all who wait for it. The first cause counts.
    pub(super) fn die(&self, cause: DeathCause) {
        let _ = self.death.set(cause);
        self.close_rings();
        self.pipelines.wake();
        self.ending.tell();
    }

    fn close_rings(&self) {
        self.rings().for_each(RingClient::close);
    }

    /// All rings: of commands, and of the pipelines that were made.
    pub(super) fn rings(&self) -> impl Iterator<Item = &RingClient> {
        std::iter::once(&self.commands).chain(self.pipelines.rings())
    }

    /// The error of every operation on a process that is gone.
    pub(super) fn died(&self) -> OffloadError {
        OffloadError::ProcessDied {
            card: self.card(),
            id: self.id,
            // A ring that was closed by the process itself, and nobody knows yet why.
            cause: self.death.get().cloned().unwrap_or(DeathCause::CardLost),
        }
    }

    /// Names of the functions that it is running, as far as this process knows.
    pub(super) fn running(&self) -> Vec<String> {
        self.pipelines
            .rings()
            .filter_map(RingClient::unfinished)
            .collect()
    }

    /// Gives up the local store of a process that is gone, so that this process can be saved without it. The caller has
    /// closed the gate.
    pub(super) fn sever(&self) -> Result<()> {
        let words = |error: WindowError| {
            self.refused("give up a dead process's store".into(), error.to_string())
        };
        // The rings stay readable for those who still look at them.
        self.store.sever(BUFFERS).map_err(words)?;
        self.close_rings();
        self.file.sever().map_err(words)
    }

    /// Descriptor number of the local store in this process.
    pub(super) fn store_fd(&self) -> i32 {
        self.file.as_fd().as_raw_fd()
    }

    /// Ends the process; run functions in flight are killed. Merely dropping it does not end it.
    ///
    /// # Errors
    /// If the card is gone.
    pub fn destroy(&self) -> Result<()> {
        let Some(runtime) = self.runtime.upgrade() else {
            return Ok(());
        };
        let _lifecycle = runtime.lifecycle();
        if !runtime.forget(self.id) {
            return Ok(());
        }
        // Whatever is being done with it is completed first.
        let mut phase = self.phase();
        let alive = self.status().is_ok();
        // Before the daemon says it: its end is no surprise.
        self.die(DeathCause::Destroyed);
        self.gate.close();
        let severed = self.sever();
        let before = std::mem::take(&mut *phase);
        self.gate.open();
        let card = match before {
            Phase::Absent(_) => {
                // Nothing but a note of it.
                self.discard(&self.current_card());
                None
            }
            Phase::Restored { card, .. } => Some(card),
            Phase::Running | Phase::Paused { .. } => Some(self.current_card()),
        };
        if let Some(card) = card.filter(|_| alive) {
            call(
                &card,
                HostRequest::Destroy {
                    id: self.id,
                    swapped_out: false,
                },
                &[],
                "end an offload process",
            )?;
        }
        severed
    }
}

/// Makes a request to a card.
pub(super) fn call(
    card: &Card,
    body: HostRequest,
    fds: &[BorrowedFd<'_>],
    operation: &str,
) -> Result<(CardReply, Vec<std::os::fd::OwnedFd>)> {
    card.call(body, fds)
        .map_err(|error| card.explain(error, operation))
}

pub(super) fn unexpected(card: &Card, operation: &str, reply: &CardReply) -> OffloadError {
    OffloadError::Refused {
        card: card.index,
        operation: operation.into(),
        why: format!("it answered {reply:?}"),
    }
}

fn system(operation: &str, source: std::io::Error) -> OffloadError {
    OffloadError::System {
        operation: operation.into(),
        source: Arc::new(source),
    }
}

/// Standard output and error, for an offload process; `null` for what is closed.
pub(super) fn outputs(null: &std::fs::File) -> [BorrowedFd<'_>; 2] {
    [rustix::stdio::stdout(), rustix::stdio::stderr()].map(|output| {
        if rustix::io::fcntl_getfd(output).is_ok() {
            output
        } else {
            null.as_fd()
        }
    })
}

/// A number that no other process has: of the system's random source, and if that fails, of the clock.
fn random_id() -> u64 {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(0, |now| now.as_nanos() as u64) ^ u64::from(std::process::id()) << 40
        }
    }
}
