//! Pseudo-terminals whose master side is held within the tree: both sides come back under the same number,
//! with settings, size, modes and what is on its way in both directions, as the controlling terminals of the
//! sessions that they controlled.
//!
//! A terminal whose master side others hold (a terminal emulator, sshd) is the business of whoever restarts the
//! program, see [`inherit`](super::inherit): only its settings are saved, see [`Outer`].

mod capture;
mod queue;
mod restore;
mod settings;
mod survey;

pub use queue::{Input, Line, Suspension};
pub use settings::Settings;

pub(crate) use capture::{capture, outer};
pub(crate) use restore::{NewTerminals, open_own};
pub(crate) use survey::{End, TerminalSurvey};

use super::survey::{Found, Recognized, Seen, View};
use crate::error::ProcError;
use crate::image::hex::HexBytes;
use serde::{Deserialize, Serialize};

/// The kernel's greatest number of pseudo-terminals (`NR_UNIX98_PTY_MAX`).
const GREATEST_NUMBER: u32 = 1 << 20;

/// A pseudo-terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalImage {
    /// Its number: the program's side is `/dev/pts/NUMBER`.
    pub number: u32,
    /// Whether it was hung up (its master side was closed, or the leader of its session ended): nothing else is known of it then.
    #[serde(default)]
    pub hung_up: bool,
    /// Settings (termios), which both sides share.
    #[serde(default)]
    pub settings: Settings,
    /// Rows, columns, and width and height in pixels.
    #[serde(default)]
    pub size: [u16; 4],
    /// Whether the program's side has ever been opened: if not, readers of the master side wait; if it was
    /// closed since, they get an error.
    #[serde(default)]
    pub opened: bool,
    /// Whether the program's side cannot be opened (`TIOCSPTLCK`).
    #[serde(default)]
    pub locked: bool,
    /// Whether the master side is in packet mode (`TIOCPKT`).
    #[serde(default)]
    pub packet_mode: bool,
    /// Whether the program's side is in exclusive mode (`TIOCEXCL`).
    #[serde(default)]
    pub exclusive: bool,
    /// How output is suspended, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Suspension>,
    /// The session that it controls; 0 for none.
    #[serde(default)]
    pub session: i32,
    /// The foreground group of the session; 0 if it has ended.
    #[serde(default)]
    pub foreground: i32,
    /// What was written to the program's side and not yet read from the master side.
    #[serde(default)]
    pub output: HexBytes,
    /// What was written to the master side and not yet read by the program.
    #[serde(default)]
    pub input: Input,
}

/// A description of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalEnd {
    /// Index into [`FilesImage::terminals`](super::FilesImage::terminals).
    pub terminal: usize,
    /// What was opened.
    pub side: Side,
}

/// How a terminal was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// `/dev/ptmx`.
    Master,
    /// `/dev/pts/ptmx`.
    MasterByInstance,
    /// `/dev/pts/NUMBER`.
    Program,
    /// `/dev/tty`, the controlling terminal of whoever opened it.
    Own,
}

impl Side {
    /// Whether it is the master side.
    #[must_use]
    pub fn is_master(self) -> bool {
        matches!(self, Self::Master | Self::MasterByInstance)
    }
}

/// The controlling terminal of the tree if its master side is not within: at a restart on a terminal, that one
/// takes its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outer {
    /// Settings that the program had made.
    pub settings: Settings,
    /// Rows, columns, and width and height in pixels.
    pub size: [u16; 4],
    /// The foreground group, if it is one of the tree; otherwise 0.
    pub foreground: i32,
}

/// Checks what must hold of all terminals of an image.
///
/// # Errors
/// [`ProcError::BadImage`] with the first contradiction.
pub(crate) fn validate(terminals: &[TerminalImage]) -> Result<(), ProcError> {
    let bad = |text: String| Err(ProcError::BadImage(text));
    for (index, terminal) in terminals.iter().enumerate() {
        let twice = |other: &TerminalImage| other.number == terminal.number && !other.hung_up;
        if terminal.number >= GREATEST_NUMBER {
            return bad(format!("it has a terminal {}", terminal.number));
        }
        if !terminal.hung_up && terminals[..index].iter().any(twice) {
            return bad(format!("terminal {} is there twice", terminal.number));
        }
        if terminal.session < 0 || terminal.foreground < 0 {
            return bad(format!("terminal {} has no such session", terminal.number));
        }
    }
    Ok(())
}

/// Recognizes a side of a pseudo-terminal of the tree.
pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    match view.terminals.end(seen)? {
        Ok(end) => Some(Ok(Found::Terminal(end))),
        Err(obstacle) => Some(Err(obstacle)),
    }
}
