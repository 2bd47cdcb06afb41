//! The offload process: loads device images and runs their functions.
//!
//! Its main thread is the agent, which sleeps on the connection to the card daemon and serves pause and resume.
//! Everything it shares with the host process lies in the local store.
#![allow(unsafe_code)]

mod call;
mod image;
mod loader;
mod serve;

use crate::control::{EXTERNAL_CONTROL, EXTERNAL_STDERR, EXTERNAL_STDOUT, EXTERNAL_STORE, VERSION};
use crate::engine::External;
use crate::layout::{CONTROL_FD, STORE_BASE, STORE_BYTES, STORE_FD};
use crate::wire::{CardToSink, Segment, SinkToCard};
use loader::Library;
use rustix::fd::FromRawFd;
use snapify_fabric::{Channel, ChannelError, Gate, Mapping, SharedFile};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

/// State of the offload process.
struct Sink {
    /// The local store at its fixed address.
    store: Arc<Mapping>,
    /// Closed while no result may be published.
    gate: Gate,
    /// Images in the order of loading.
    libraries: Mutex<Vec<Library>>,
    /// What of them was moved into the store.
    segments: Mutex<Vec<Segment>>,
}

/// The program `snapify-offload-process`. Started by a card daemon with the connection to it and the local store
/// as descriptors 3 and 4; ends when the daemon closes the connection.
pub fn main() -> ExitCode {
    if rustix::fs::fstat(unsafe_borrow(STORE_FD)).is_err()
        || rustix::net::sockopt::socket_type(unsafe_borrow(CONTROL_FD)).is_err()
    {
        eprintln!("snapify-offload-process is started by a card's daemon, never by hand");
        return ExitCode::from(2);
    }
    // SAFETY: open, as just seen, and nobody else's.
    let control = Channel::from_fd(unsafe { OwnedFd::from_raw_fd(CONTROL_FD) });
    match begin().and_then(|sink| serve(&sink, &control).map_err(|error| error.to_string())) {
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

/// For looking at descriptors that may not be open.
fn unsafe_borrow(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: if it is not open, calls on it fail with EBADF.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn begin() -> Result<Arc<Sink>, String> {
    set_up_process();
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
    });
    serve::start_commands(&sink)?;
    block_signals();
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

/// Signals to the process go to threads that run device code, not to the agent.
fn block_signals() {
    // SAFETY: sets this thread's mask.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// The agent. Between two messages it sleeps in `recv`, which is where a restored process finds itself, with a
/// new connection at the same descriptor.
fn serve(sink: &Sink, control: &Channel) -> Result<(), ChannelError> {
    control.send(&SinkToCard::Ready { version: VERSION }, &[])?;
    loop {
        let request = match control.recv() {
            Ok((request, _)) => request,
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
                sink.gate.open();
                SinkToCard::Resumed
            }
        };
        control.send(&answer, &[])?;
    }
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
