//! Whom a test acts as.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// An id that no account of a test machine has: an ordinary user needs no account to be one.
const ORDINARY: u32 = 48_211;

/// Whom a test acts as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    /// A user without any privilege: another uid if the tests are run by root, else who runs them.
    Ordinary,
    /// Who runs the tests, be it root.
    Myself,
}

impl User {
    /// The uid to switch to, if it is not ours already.
    #[must_use]
    pub fn switch_to(self) -> Option<u32> {
        (self == Self::Ordinary && rustix::process::geteuid().is_root()).then_some(ORDINARY)
    }

    /// Makes `command` run as this user.
    pub fn apply(self, command: &mut Command) {
        if let Some(id) = self.switch_to() {
            command.uid(id).gid(id);
        }
    }

    /// Gives `path` to this user.
    pub fn give(self, path: &std::path::Path) {
        if let Some(id) = self.switch_to() {
            std::os::unix::fs::chown(path, Some(id), Some(id)).expect("chown a test directory");
        }
    }
}
