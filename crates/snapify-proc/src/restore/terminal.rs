//! The terminal of a restart, lent to the restored program: while the program has it, its groups are in the foreground and its
//! settings hold; afterwards, and while it is stopped, whoever started the restart has it back as it was.

use crate::files::terminal::{Outer, Settings};
use crate::ids::Pid;
use rustix::process::{getpgrp, getpid, kill_process};
use snapify_sys::process;
use snapify_sys::tty;
use std::fs::File;

/// The controlling terminal of the restart, and the program's.
#[derive(Debug)]
pub(super) struct Terminal {
    file: File,
    /// The group of the restart itself.
    own: i32,
    /// Settings to be put back.
    before: Option<Settings>,
    /// Settings of the program.
    wanted: Settings,
    /// Whether the program has a group of its own to be in the foreground.
    has_group: bool,
    /// The program's foreground group when it was last seen, as we see it.
    group: Option<i32>,
}

impl Terminal {
    /// Opens the terminal of this process, if there is one and the program had one.
    pub(super) fn open(outer: Option<&Outer>) -> Option<Self> {
        let outer = outer?;
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        Some(Self {
            file,
            own: getpgrp().as_raw_nonzero().get(),
            before: None,
            wanted: outer.settings,
            has_group: outer.foreground != 0,
            group: None,
        })
    }

    /// Whether the shell has put the restart in the foreground: only then may it lend the terminal.
    fn is_ours(&self) -> bool {
        tty::foreground(&self.file).is_ok_and(|group| group == self.own)
    }

    /// Makes the program's settings. Tells whether its foreground group is to be made the terminal's.
    pub(super) fn lend(&mut self) -> bool {
        if !self.is_ours() {
            return false;
        }
        if let Ok(before) = tty::settings(&self.file) {
            self.before = Some(before.into());
            let _ = tty::set_settings(&self.file, &self.wanted.into());
        }
        self.has_group
    }

    /// Takes the terminal back, if it was lent, and makes it as it was.
    pub(super) fn take_back(&mut self) {
        let Some(before) = self.before.take() else {
            return;
        };
        let (file, own) = (&self.file, self.own);
        // From the background, where this process is if the program had the foreground.
        tty::with_output_allowed(|| {
            if let Ok(wanted) = tty::settings(file) {
                self.wanted = wanted.into();
            }
            match tty::foreground(file) {
                Ok(group) if group != own => {
                    self.group = Some(group);
                    let _ = tty::set_foreground(file, own);
                }
                _ => {}
            }
            let _ = tty::set_settings(file, &before.into());
        });
    }

    /// The program has been stopped, as by ^Z: so is the restart, for the shell to take note, until it is told to go on; or it
    /// wants the terminal that it may have, because the restart was brought to the foreground meanwhile.
    pub(super) fn follow_stop(&mut self, program: Pid) {
        if !(self.before.is_none() && self.is_ours()) {
            self.take_back();
            // Returns when somebody sends SIGCONT.
            let _ = kill_process(getpid(), rustix::process::Signal::STOP);
        }
        let group = rustix::process::Pid::from_raw(program.0)
            .and_then(|pid| rustix::process::getpgid(Some(pid)).ok())
            .map(|group| group.as_raw_nonzero().get());
        if self.lend()
            && let Some(foreground) = self.group.or(group)
        {
            let _ = tty::set_foreground(&self.file, foreground);
        }
        if let Some(group) = group.filter(|group| *group != self.own) {
            let _ = process::kill(-group, libc::SIGCONT);
        } else {
            let _ = process::kill(program.0, libc::SIGCONT);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Puts a group of the program in the foreground of the terminal of this process, which is in its session, and tells it of a size
/// that is not what it knows.
pub(super) fn enter(outer: &Outer) {
    let Ok(file) = File::open("/dev/tty") else {
        return;
    };
    let group = outer.foreground;
    let entered = tty::with_output_allowed(|| tty::set_foreground(&file, group));
    if entered.is_err() {
        return;
    }
    let now = rustix::termios::tcgetwinsize(&file)
        .map(|size| [size.ws_row, size.ws_col, size.ws_xpixel, size.ws_ypixel]);
    if now.is_ok_and(|now| now != outer.size) {
        let _ = process::kill(-group, libc::SIGWINCH);
    }
}
