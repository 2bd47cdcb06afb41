//! The offload process: loads device images and runs their functions.
//!
//! Its main thread is the agent, which sleeps on the connection to the card daemon and serves pause and resume. In a program
//! that the host process brought along the main thread is the program's, and the agent is another one ([`Attached`]).
//! Everything it shares with the host process lies in the local store.
#![allow(unsafe_code)]

mod attached;
mod call;
mod calls;
pub(crate) mod image;
mod latch;
mod loader;
mod serve;

pub use attached::{Attached, attach};

use crate::control::{EXTERNAL_CONTROL, EXTERNAL_STDERR, EXTERNAL_STDOUT, EXTERNAL_STORE, VERSION};
use crate::engine::External;
use crate::layout::{CONTROL_FD, STORE_BASE, STORE_BYTES, STORE_FD};
use crate::wire::{CardToSink, Segment, SinkToCard};
use latch::Latch;
use loader::Library;
use rustix::fd::FromRawFd;
use snapify_fabric::{Channel, ChannelError, Gate, Mapping, SharedFile};
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// State of the offload process.
struct Sink {
    /// The local store at its fixed address.
    store: Arc<Mapping>,
    /// Closed while no result may be published.
    gate: Gate,
    /// Images in the order of loading; nothing in the places of those that were unloaded.
    libraries: Mutex<Vec<Option<Library>>>,
    /// What of them was moved into the store.
    segments: Mutex<Vec<Segment>>,
    /// Open as soon as functions may run.
    executing: Latch,
    /// Open when the host process wants this one to end.
    shutdown: Latch,
    /// How often functions have said that they go on using the memory at an address.
    references: Mutex<HashMap<u64, u64>>,
}

/// The program `snapify-offload-process`. Started by a card daemon with the connection to it and the local store
/// as descriptors 3 and 4; ends when the daemon closes the connection.
pub fn main() -> ExitCode {
    if !was_launched() {
        eprintln!("snapify-offload-process is started by a card's daemon, never by hand");
        return ExitCode::from(2);
    }
    // SAFETY: open, as just seen, and nobody else's.
    let control = Channel::from_fd(unsafe { OwnedFd::from_raw_fd(CONTROL_FD) });
    set_up_process();
    let begun = begin().inspect(|sink| {
        sink.executing.open();
        // Signals to the process go to threads that run device code, not to the agent.
        block_signals();
    });
    let served = begun.and_then(|sink| {
        let announced = announce(&control).and_then(|()| serve(&sink, &control));
        announced.map_err(|error| error.to_string())
    });
    match served {
        Ok(()) => {}
        Err(why) => {
            // If even that fails the daemon learns of the end itself.
            let _ = control.send(&SinkToCard::Failed(why), &[]);
        }
    }
    // Not `exit`: destructors of device images must not run while their functions do.
    // SAFETY: ends the process.
    unsafe { libc::_exit(1) }
}

/// Whether the descriptors are those that a card's daemon starts an offload process with.
fn was_launched() -> bool {
    use rustix::net::{SocketType, sockopt::socket_type};
    let store = rustix::fs::fstat(unsafe_borrow(STORE_FD));
    store.is_ok_and(|store| store.st_size as u64 == STORE_BYTES)
        && socket_type(unsafe_borrow(CONTROL_FD)) == Ok(SocketType::SEQPACKET)
}

/// For looking at descriptors that may not be open.
fn unsafe_borrow(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: if it is not open, calls on it fail with EBADF.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn begin() -> Result<Arc<Sink>, String> {
    for fd in [CONTROL_FD, STORE_FD] {
        // Programs that device code starts have no business with them.
        rustix::io::fcntl_setfd(unsafe_borrow(fd), rustix::io::FdFlags::CLOEXEC)
            .map_err(|errno| errno.to_string())?;
    }
    let file = unsafe_borrow(STORE_FD)
        .try_clone_to_owned()
        .map_err(|error| error.to_string())?;
    let file = SharedFile::from_fd(file).map_err(|error| error.to_string())?;
    if file.bytes() != STORE_BYTES {
        return Err(format!(
            "the local store has {} bytes, not {STORE_BYTES}",
            file.bytes()
        ));
    }
    let store = file
        .map(Some(STORE_BASE))
        .map_err(|error| error.to_string())?;
    let sink = Arc::new(Sink {
        store: Arc::new(store),
        gate: Gate::new(),
        libraries: Mutex::default(),
        segments: Mutex::default(),
        executing: Latch::default(),
        shutdown: Latch::default(),
        references: Mutex::default(),
    });
    serve::start_commands(&sink)?;
    Ok(sink)
}

fn set_up_process() {
    serve::buffer_lines();
    // SAFETY: no other thread exists yet.
    unsafe {
        // A closed standard output is no reason to die.
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        // Device code that contains target regions runs them here.
        std::env::set_var("OMP_TARGET_OFFLOAD", "DISABLED");
    }
}

/// Keeps signals from this thread.
fn block_signals() {
    // SAFETY: sets this thread's mask.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// Tells the daemon that this process serves its rings.
fn announce(control: &Channel) -> Result<(), ChannelError> {
    control.send(&SinkToCard::Ready { version: VERSION }, &[])
}

/// The agent. Between two messages it sleeps in `recv`, which is where a restored process finds itself, with a
/// new connection at the same descriptor.
fn serve(sink: &Sink, control: &Channel) -> Result<(), ChannelError> {
    loop {
        let (request, fds) = match control.recv() {
            Ok(message) => message,
            Err(ChannelError::Closed) => return Ok(()),
            Err(error) => return Err(error),
        };
        let answer = match request {
            CardToSink::Pause => {
                sink.gate.close();
                SinkToCard::Paused {
                    externals: externals(sink),
                }
            }
            CardToSink::Resume => {
                write_to(fds);
                sink.gate.open();
                SinkToCard::Resumed
            }
            CardToSink::Shutdown => {
                sink.shutdown.open();
                continue;
            }
        };
        control.send(&answer, &[])?;
    }
}

/// Takes these two, if they are given, as standard output and error.
fn write_to(outputs: Vec<OwnedFd>) {
    let Ok([stdout, stderr]) = <[OwnedFd; 2]>::try_from(outputs) else {
        return;
    };
    // What cannot be is no reason to do nothing: the process has outputs.
    let _ = rustix::stdio::dup2_stdout(stdout);
    let _ = rustix::stdio::dup2_stderr(stderr);
}

/// What is the runtime's own in this process.
fn externals(sink: &Sink) -> Vec<External> {
    let segments = sink.segments.lock().unwrap_or_else(PoisonError::into_inner);
    let mut mappings = vec![(STORE_BASE, STORE_BYTES)];
    mappings.extend(
        segments
            .iter()
            .map(|segment| (segment.address, segment.bytes)),
    );
    let external = |key: &str, fd, mappings| External {
        key: key.into(),
        fds: vec![fd],
        mappings,
    };
    vec![
        external(EXTERNAL_CONTROL, CONTROL_FD, Vec::new()),
        external(EXTERNAL_STORE, STORE_FD, mappings),
        external(EXTERNAL_STDOUT, 1, Vec::new()),
        external(EXTERNAL_STDERR, 2, Vec::new()),
    ]
}
