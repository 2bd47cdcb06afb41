//! A program that the host process brought along, as an offload process: its own `main` runs, and threads of this
//! library serve the host process beside it.

use super::loader::Library;
use super::{Sink, announce, begin, block_signals, serve, was_launched};
use crate::layout::{BUFFERS, CONTROL_FD, PROGRAM_FD, STORE_BASE, STORE_BYTES};
use crate::wire::SinkToCard;
use rustix::fd::FromRawFd;
use snapify_fabric::Channel;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

/// The connection of this program to its card and its host process.
pub struct Attached {
    sink: Arc<Sink>,
    control: Arc<Channel>,
}

/// Begins to serve the host process, if a card's daemon has started this program; nothing if it was started otherwise.
/// To be called once, before the program opens a descriptor. Functions do not run before
/// [`start_executing`](Attached::start_executing).
///
/// # Errors
/// In words, which the host process is told, too.
pub fn attach() -> Result<Option<Attached>, String> {
    if !was_launched() {
        return Ok(None);
    }
    // SAFETY: the daemon has put these two there for us; nobody else uses them.
    let control = unsafe {
        drop(OwnedFd::from_raw_fd(PROGRAM_FD));
        Arc::new(Channel::from_fd(OwnedFd::from_raw_fd(CONTROL_FD)))
    };
    name_process();
    super::serve::buffer_lines();
    let begun = begin().and_then(|sink| {
        let (for_agent, channel) = (sink.clone(), control.clone());
        let agent = move || {
            block_signals();
            // However it ends: without its card the process is of no use to anybody.
            let _ = serve(&for_agent, &channel);
            // SAFETY: ends the process.
            unsafe { libc::_exit(1) }
        };
        std::thread::Builder::new()
            .name("snapify-agent".into())
            .stack_size(256 << 10)
            .spawn(agent)
            .map_err(|error| format!("cannot start the agent: {error}"))?;
        // Not by the agent: a program may end before that has run.
        announce(&control).map_err(|error| error.to_string())?;
        Ok(sink)
    });
    match begun {
        Ok(sink) => Ok(Some(Attached { sink, control })),
        Err(why) => {
            // If even that fails the daemon learns of the end itself.
            let _ = control.send(&SinkToCard::Failed(why.clone()), &[]);
            Err(why)
        }
    }
}

/// Process lists show the name of the file that was executed: a number.
fn name_process() {
    let name = std::env::args().next().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default();
    if let Ok(name) = std::ffi::CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

impl Attached {
    /// Lets functions run.
    pub fn start_executing(&self) {
        self.sink.executing.open();
    }

    /// Waits until the host process wants this one to end.
    pub fn wait_for_shutdown(&self) {
        self.sink.shutdown.wait();
    }

    /// Signals an event of the host process.
    ///
    /// # Errors
    /// If the card is gone.
    pub fn signal(&self, event: [u64; 2]) -> Result<(), String> {
        // Nothing leaves while a snapshot is taken (paper 1, section 4.1, case 4).
        let _publishing = self.sink.gate.enter();
        self.control
            .send(&SinkToCard::Signal(event), &[])
            .map_err(|error| error.to_string())
    }

    /// Loads a library by its file name, with flags of dlopen(3).
    ///
    /// # Errors
    /// In the words of the dynamic loader.
    pub fn load_library(&self, file: &std::ffi::CStr, flags: i32) -> Result<u32, String> {
        let library = Library::open(file, flags)?;
        let mut libraries = self
            .sink
            .libraries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        libraries.push(Some(library));
        u32::try_from(libraries.len() - 1).map_err(|error| error.to_string())
    }

    /// Says that the memory of a buffer is used until the same number of [`release`](Self::release)s. False if there can
    /// be no buffer at that address.
    #[must_use]
    pub fn refer(&self, address: u64) -> bool {
        if !(BUFFERS..STORE_BYTES).contains(&address.wrapping_sub(STORE_BASE)) {
            return false;
        }
        *self.references().entry(address).or_default() += 1;
        true
    }

    /// Takes one [`refer`](Self::refer) back. False if there is none.
    #[must_use]
    pub fn release(&self, address: u64) -> bool {
        let mut references = self.references();
        let Some(count) = references.get_mut(&address) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            references.remove(&address);
        }
        true
    }

    fn references(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<u64, u64>> {
        self.sink
            .references
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
