//! The host library: what a host process uses to work with cards.

use crate::error::OffloadError;
use std::sync::Arc;

type Result<T, E = OffloadError> = std::result::Result<T, E>;

/// The connection of this process to its cards.
pub struct Runtime {}

/// An offload process.
pub struct Process {}

/// A device image loaded into an offload process.
pub struct Library {}

/// Completion of a run function that was started asynchronously. Dropping it does not cancel the function.
pub struct Event {}

impl Runtime {
    /// Connects to the supervisor named by `SNAPIFY_CONTROL`; nothing if it is not set (the program was not
    /// started by `snapify run`).
    ///
    /// # Errors
    /// If the supervisor is gone or refuses.
    pub fn connect_from_env() -> Result<Option<Arc<Runtime>>> {
        todo!()
    }

    /// How many cards there are.
    #[must_use]
    pub fn cards(&self) -> u32 {
        todo!()
    }

    /// Starts an offload process on a card.
    ///
    /// # Errors
    /// If there is no such card, or the process cannot be started.
    pub fn create_process(self: &Arc<Self>, card: u32) -> Result<Arc<Process>> {
        let _ = card;
        todo!()
    }
}

impl Process {
    /// The card it runs on.
    #[must_use]
    pub fn card(&self) -> u32 {
        todo!()
    }

    /// Loads a device image (a shared library). `name` is for messages.
    ///
    /// # Errors
    /// If the dynamic loader refuses it, in its words.
    pub fn load_library(&self, image: &[u8], name: &str) -> Result<Library> {
        let _ = (image, name);
        todo!()
    }

    /// Device addresses of functions and objects of a library by name; nothing for those it lacks.
    ///
    /// # Errors
    /// If the process died.
    pub fn function_addresses(
        &self,
        library: &Library,
        names: &[&str],
    ) -> Result<Vec<Option<u64>>> {
        let _ = (library, names);
        todo!()
    }

    /// Makes a buffer in the local store and returns its device address: a multiple of 64, of 4096 for
    /// buffers of a page or more. A buffer of 0 bytes has an address of its own, too.
    ///
    /// # Errors
    /// `OutOfMemory` if the card has no such memory left.
    pub fn alloc(&self, bytes: u64) -> Result<u64> {
        let _ = bytes;
        todo!()
    }

    /// Frees a buffer by its start address.
    ///
    /// # Errors
    /// `BadAddress` if there is no buffer that starts there.
    pub fn free(&self, address: u64) -> Result<()> {
        let _ = address;
        todo!()
    }

    /// Copies `bytes` from host memory to any address of the offload process.
    ///
    /// # Errors
    /// If the range is not memory of the offload process, or it died.
    ///
    /// # Safety
    /// `from` must be valid for reads of `bytes` bytes.
    pub unsafe fn write(&self, to: u64, from: *const u8, bytes: usize) -> Result<()> {
        let _ = (to, from, bytes);
        todo!()
    }

    /// Copies `bytes` from any address of the offload process to host memory.
    ///
    /// # Errors
    /// If the range is not memory of the offload process, or it died.
    ///
    /// # Safety
    /// `to` must be valid for writes of `bytes` bytes.
    pub unsafe fn read(&self, to: *mut u8, from: u64, bytes: usize) -> Result<()> {
        let _ = (to, from, bytes);
        todo!()
    }

    /// Copies `bytes` at `from` in this process to `to` in `target` (which may be this process, or one of another
    /// card). Ranges may overlap.
    ///
    /// # Errors
    /// If a range is not memory of its process, or one of them died.
    pub fn copy_to(&self, target: &Process, to: u64, from: u64, bytes: usize) -> Result<()> {
        let _ = (target, to, from, bytes);
        todo!()
    }

    /// Runs a function with 64-bit arguments and waits until it has returned. `name` is for messages.
    ///
    /// # Errors
    /// `ProcessDied` if the function, or anything else, ended the process.
    pub fn run(&self, function: u64, args: &[u64], name: &str) -> Result<()> {
        let _ = (function, args, name);
        todo!()
    }

    /// Like [`run`](Self::run) but does not wait.
    ///
    /// # Errors
    /// `ProcessDied` if the process is dead already.
    pub fn run_async(self: &Arc<Self>, function: u64, args: &[u64], name: &str) -> Result<Event> {
        let _ = (function, args, name);
        todo!()
    }

    /// Whether it lives.
    ///
    /// # Errors
    /// `ProcessDied` with the cause if not.
    pub fn status(&self) -> Result<()> {
        todo!()
    }

    /// Ends the process; run functions in flight are killed.
    ///
    /// # Errors
    /// If the card is gone.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}

impl Event {
    /// Waits until the function has returned.
    ///
    /// # Errors
    /// `ProcessDied` if the process died before.
    pub fn wait(&self) -> Result<()> {
        todo!()
    }

    /// Whether the function has returned (or the process died).
    #[must_use]
    pub fn is_done(&self) -> bool {
        todo!()
    }
}
