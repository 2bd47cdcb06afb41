//! One OpenMP device: a card and the offload process on it.

use crate::abi::allocation;
use crate::error::PluginError;
use crate::region;
use snapify_offload::OffloadError;
use snapify_offload::host::{Process, Runtime};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

type Result<T> = std::result::Result<T, PluginError>;

/// A device. Its functions may be called by any thread at any time.
pub struct Device {
    card: u32,
    process: OnceLock<Arc<Process>>,
    /// Held while the process is started or an image loaded, each of which happens once.
    starting: Mutex<()>,
    /// What messages call the functions of target regions, by device address.
    regions: RwLock<HashMap<u64, Arc<str>>>,
    /// The end of the offload process was reported already.
    death_reported: AtomicBool,
}

impl Device {
    pub fn new(card: u32) -> Self {
        Self {
            card,
            process: OnceLock::new(),
            starting: Mutex::new(()),
            regions: RwLock::default(),
            death_reported: AtomicBool::new(false),
        }
    }

    pub fn card(&self) -> u32 {
        self.card
    }

    /// Starts the offload process, unless that was done before.
    pub fn start(&self, runtime: &Arc<Runtime>) -> Result<()> {
        let _one_at_a_time = self.one_at_a_time();
        if self.process.get().is_none() {
            let process = runtime
                .create_process(self.card)
                .map_err(|source| failed("start the offload process", source))?;
            let _ = self.process.set(process);
        }
        Ok(())
    }

    /// Ends the offload process.
    pub fn stop(&self) -> Result<()> {
        match self.process.get() {
            Some(process) => process
                .destroy()
                .map_err(|source| failed("end the offload process", source)),
            None => Ok(()),
        }
    }

    /// Loads an image and gives the device addresses of what it calls `names`.
    pub fn load(&self, image: &[u8], names: &[&str]) -> Result<Vec<Option<u64>>> {
        let process = self.process()?;
        let _one_at_a_time = self.one_at_a_time();
        let library = process
            .load_library(image, "the program's device image")
            .map_err(|source| failed("load the program's device image", source))?;
        let addresses = process
            .function_addresses(&library, names)
            .map_err(|source| failed("look up the entries of the device image", source))?;
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        for (name, address) in names.iter().zip(&addresses) {
            if let Some(address) = address {
                regions.insert(*address, region::describe(name).into());
            }
        }
        Ok(addresses)
    }

    /// Allocates `bytes` in the local store. `kind` is one of [`allocation`].
    pub fn allocate(&self, bytes: i64, kind: i32) -> Result<u64> {
        if !matches!(kind, allocation::DEVICE | allocation::DEFAULT) {
            let card = self.card;
            return Err(PluginError::SharedMemory { card, kind });
        }
        let bytes =
            u64::try_from(bytes).map_err(|_| self.bad_argument("allocate memory", "size"))?;
        self.process()?
            .alloc(bytes)
            .map_err(|source| failed("allocate memory", source))
    }

    pub fn free(&self, address: u64) -> Result<()> {
        self.process()?
            .free(address)
            .map_err(|source| failed("free memory", source))
    }

    /// Copies from this device to another, which may be this one.
    pub fn copy_to(&self, other: &Self, to: u64, from: u64, bytes: i64) -> Result<()> {
        let bytes = usize::try_from(bytes).map_err(|_| self.bad_argument("copy", "size"))?;
        self.process()?
            .copy_to(other.process()?, to, from, bytes)
            .map_err(|source| failed("copy between devices", source))
    }

    /// Runs the function of a target region and waits for its end.
    pub fn run(&self, function: u64, arguments: &[u64]) -> Result<()> {
        let process = self.process()?;
        let name = self
            .regions
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&function)
            .cloned();
        let Some(name) = name else {
            return Err(PluginError::NoSuchRegion {
                card: self.card,
                address: function,
            });
        };
        process
            .run(function, arguments, &name)
            .map_err(|source| failed(&format!("run {name}"), source))
    }

    pub fn process(&self) -> Result<&Arc<Process>> {
        let card = self.card;
        self.process.get().ok_or(PluginError::NotStarted { card })
    }

    pub fn bad_argument(&self, operation: &'static str, what: &'static str) -> PluginError {
        PluginError::BadArgument {
            card: self.card,
            operation,
            what,
        }
    }

    /// Whether people should be told of an error. Once the offload process is gone, each operation of each thread
    /// fails for the same reason: it is told once.
    pub fn is_news(&self, error: &PluginError) -> bool {
        !matches!(
            error,
            PluginError::Offload {
                source: OffloadError::ProcessDied { .. },
                ..
            }
        ) || !self.death_reported.swap(true, Ordering::Relaxed)
    }

    fn one_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.starting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error of an operation of the offload runtime.
pub fn failed(operation: &str, source: OffloadError) -> PluginError {
    PluginError::Offload {
        operation: format!("cannot {operation}"),
        source,
    }
}
