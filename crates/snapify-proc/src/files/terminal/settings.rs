//! Settings of terminals in images.

use serde::{Deserialize, Serialize};
use snapify_sys::tty::Termios;

/// Settings of a terminal, as in `struct termios2` (ioctl_tty(2)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Input modes.
    pub input: u32,
    /// Output modes.
    pub output: u32,
    /// Control modes.
    pub control: u32,
    /// Local modes.
    pub local: u32,
    /// Line discipline.
    pub line: u8,
    /// Special characters, by their `V*` index.
    pub characters: [u8; 19],
    /// Speeds of input and output in bits per second.
    pub speeds: (u32, u32),
}

impl From<Termios> for Settings {
    fn from(termios: Termios) -> Self {
        Self {
            input: termios.input,
            output: termios.output,
            control: termios.control,
            local: termios.local,
            line: termios.line,
            characters: termios.characters,
            speeds: (termios.input_speed, termios.output_speed),
        }
    }
}

impl From<Settings> for Termios {
    fn from(settings: Settings) -> Self {
        Self {
            input: settings.input,
            output: settings.output,
            control: settings.control,
            local: settings.local,
            line: settings.line,
            characters: settings.characters,
            input_speed: settings.speeds.0,
            output_speed: settings.speeds.1,
        }
    }
}
