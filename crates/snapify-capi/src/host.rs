//! The connection to the cards, and all that handles stand for.

use crate::buffer::{Buffer, MapInstance};
use crate::error::{Code, Failure, Result};
use crate::event::Events;
use crate::handles::Handles;
use crate::library::{Library, Registered};
use crate::pipeline::Pipeline;
use crate::process::{Function, Process};
use crate::work::Workers;
use snapify_offload::OffloadError;
use snapify_offload::host::{Runtime, start_thread};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};

/// All state of the library. There is one per program, made on first use.
pub struct Host {
    /// Nothing in a program that was not started with cards.
    runtime: Result<Option<Arc<Runtime>>, OffloadError>,
    pub processes: Handles<Process>,
    pub pipelines: Handles<Pipeline>,
    pub functions: Handles<Function>,
    pub buffers: Handles<Buffer>,
    pub libraries: Handles<Library>,
    pub maps: Handles<MapInstance>,
    pub events: Arc<Events>,
    pub workers: Arc<Workers>,
    /// Libraries that others may need.
    pub registered: Mutex<Vec<Arc<Registered>>>,
    /// Held while operations take their places in the orders of pipelines and buffers, so that all agree on who comes
    /// before whom.
    pub ordering: Mutex<()>,
}

/// Set in a child of fork.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Notes that this process is a child of the one that the cards work for.
pub fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The state of the library.
///
/// # Errors
/// `NotInitialized` in a child made by fork: the cards are its parent's.
pub fn host() -> Result<&'static Host> {
    static HOST: OnceLock<Host> = OnceLock::new();
    if FORKED.load(Ordering::Relaxed) {
        return Err(Failure::new(
            Code::NotInitialized,
            "a process made by fork cannot use its parent's cards; it can execute a program",
        ));
    }
    Ok(HOST.get_or_init(Host::new))
}

impl Host {
    fn new() -> Self {
        crate::ffi::watch_forks();
        let runtime = Runtime::connect_from_env();
        let events = Arc::<Events>::default();
        if let Ok(Some(runtime)) = &runtime {
            listen(runtime, &events);
        }
        Self {
            runtime,
            processes: Handles::new(1),
            pipelines: Handles::new(2),
            functions: Handles::new(3),
            buffers: Handles::new(4),
            libraries: Handles::new(5),
            maps: Handles::new(6),
            events,
            workers: Arc::default(),
            registered: Mutex::default(),
            ordering: Mutex::default(),
        }
    }

    /// How many cards there are.
    ///
    /// # Errors
    /// If the program was started with cards, but they cannot be reached.
    pub fn cards(&self) -> Result<u32> {
        match &self.runtime {
            Ok(None) => Ok(0),
            Ok(Some(runtime)) => Ok(runtime.cards()),
            Err(error) => Err(error.clone().into()),
        }
    }

    /// The connection to the cards.
    ///
    /// # Errors
    /// `NotInitialized` without cards.
    pub fn runtime(&self) -> Result<&Arc<Runtime>> {
        match &self.runtime {
            Ok(Some(runtime)) => Ok(runtime),
            Ok(None) => Err(Failure::new(
                Code::NotInitialized,
                "this program has no cards: start it by 'snapify run --cards N -- PROGRAM'",
            )),
            Err(error) => Err(error.clone().into()),
        }
    }
}

/// Signals the user events that functions on cards signal. Callbacks of the program may take their time, and the thread that
/// listens to the cards has none: another one calls them.
fn listen(runtime: &Arc<Runtime>, events: &Arc<Events>) {
    let (tell, told) = mpsc::channel::<[u64; 2]>();
    let events = events.clone();
    let started = start_thread("snapify-events", move || {
        for opaque in told {
            // One that was given up meanwhile interests nobody.
            if let Ok(event) = events.user(crate::abi::CoiEvent { opaque }) {
                event.fire(Ok(()));
            }
        }
    });
    if started.is_ok() {
        runtime.on_signal(move |_, event| {
            let _ = tell.send(event);
        });
    }
}
