//! The plugin as a whole: its connection to the cards, and its devices.

use crate::abi::requires;
use crate::device::{Device, failed};
use crate::error::PluginError;
use snapify_offload::OffloadError;
use snapify_offload::host::Runtime;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

/// All state of the plugin. There is one per process, made on first use.
pub struct Plugin {
    cards: Cards,
    devices: Vec<Device>,
    requirements: AtomicI64,
}

/// The cards of this program.
enum Cards {
    /// It was not started with cards.
    None,
    /// They are there.
    Reached(Arc<Runtime>),
    /// It was started with cards, but they cannot be reached.
    Lost(OffloadError),
}

/// Set in a child of fork.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Notes that this process is a child of the one that the cards work for.
pub fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The plugin. It has no devices in a program that was not started with cards.
pub fn plugin() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| {
        Plugin::new(match Runtime::connect_from_env() {
            Ok(None) => Cards::None,
            Ok(Some(runtime)) => Cards::Reached(runtime),
            Err(error) => Cards::Lost(error),
        })
    })
}

impl Plugin {
    fn new(cards: Cards) -> Self {
        let count = match &cards {
            Cards::None => 0,
            Cards::Reached(runtime) => runtime.cards(),
            // With no device at all libomptarget would run target regions on the host, or look for another plugin,
            // without a word. One that cannot be started makes it fail, as it should.
            Cards::Lost(_) => 1,
        };
        Self {
            cards,
            devices: (0..count).map(Device::new).collect(),
            requirements: AtomicI64::new(0),
        }
    }

    /// How many devices there are.
    pub fn devices(&self) -> i32 {
        i32::try_from(self.devices.len()).unwrap_or(i32::MAX)
    }

    /// A device by its number.
    pub fn device(&self, number: i32) -> Result<&Device, PluginError> {
        if FORKED.load(Ordering::Relaxed) {
            return Err(PluginError::Forked);
        }
        usize::try_from(number)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or(PluginError::NoSuchDevice {
                device: number,
                cards: self.devices.len(),
            })
    }

    /// Notes what the program requires of devices. libomptarget has no way to be refused here: starting one is.
    pub fn require(&self, flags: i64) {
        self.requirements.fetch_or(flags, Ordering::Relaxed);
    }

    /// Starts the offload process of a device.
    pub fn start(&self, number: i32) -> Result<(), PluginError> {
        let device = self.device(number)?;
        refuse_unfulfillable(
            self.requirements.load(Ordering::Relaxed),
            self.devices.len(),
        )?;
        match &self.cards {
            Cards::Reached(runtime) => device.start(runtime),
            Cards::Lost(error) => Err(failed("reach the cards", error.clone())),
            // There are no devices then.
            Cards::None => Err(PluginError::NotStarted {
                card: device.card(),
            }),
        }
    }

    /// Ends the offload process of a device.
    pub fn stop(&self, number: i32) -> Result<(), PluginError> {
        // A child of fork comes here at its end. The offload processes are its parent's.
        match self.device(number) {
            Err(PluginError::Forked) => Ok(()),
            device => device?.stop(),
        }
    }

    /// Tells people of an error of a device, if they should know.
    pub fn report(&self, number: i32, error: &PluginError) {
        if self
            .device(number)
            .map_or(true, |device| device.is_news(error))
        {
            tell(error);
        }
    }
}

fn refuse_unfulfillable(flags: i64, cards: usize) -> Result<(), PluginError> {
    if flags & requires::UNIFIED_SHARED_MEMORY != 0 {
        return Err(PluginError::Requires {
            clause: "unified_shared_memory",
            why: "a card has its own memory and cannot reach the host's",
        });
    }
    if flags & requires::UNIFIED_ADDRESS != 0 && cards > 1 {
        return Err(PluginError::Requires {
            clause: "unified_address",
            why: "the memories of several cards use the same addresses",
        });
    }
    Ok(())
}

/// One line on standard error, written at once so that lines of several threads do not mix.
pub fn tell(message: &dyn std::fmt::Display) {
    use std::io::Write;
    // Nobody may be there to read it; that is no reason to fail.
    let _ = std::io::stderr().write_all(format!("snapify: {message}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_that_cards_cannot_fulfil_are_refused_in_words() {
        let error = refuse_unfulfillable(8, 1).unwrap_err().to_string();
        assert!(error.contains("unified_shared_memory"), "{error}");
        let error = refuse_unfulfillable(4, 2).unwrap_err().to_string();
        assert!(error.contains("unified_address"), "{error}");
        for (flags, cards) in [(0, 2), (1, 2), (4, 1), (0x10, 2)] {
            refuse_unfulfillable(flags, cards).unwrap();
        }
    }

    #[test]
    fn without_cards_there_is_no_device() {
        let plugin = Plugin::new(Cards::None);
        assert_eq!(plugin.devices(), 0);
        for number in [-1, 0, 1] {
            let error = plugin.start(number).unwrap_err();
            assert!(matches!(error, PluginError::NoSuchDevice { .. }), "{error}");
        }
    }

    #[test]
    fn cards_that_cannot_be_reached_are_no_reason_to_run_on_the_host() {
        let plugin = Plugin::new(Cards::Lost(OffloadError::NoSuchCard { card: 0, cards: 0 }));
        assert_eq!(plugin.devices(), 1);
        let error = plugin.start(0).unwrap_err().to_string();
        assert!(error.contains("cannot reach the cards"), "{error}");
    }
}
