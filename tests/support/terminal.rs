//! A terminal that a test holds, and what is typed and shown on it.

use crate::session::Session;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Nothing that is shown takes this long, unless it never comes.
const TOO_LONG: Duration = Duration::from_secs(120);

/// A pseudo-terminal whose other side the test holds.
pub struct Terminal {
    master: OwnedFd,
    side: OwnedFd,
    /// What has been shown and not been waited for.
    shown: String,
    /// All that has been shown, for messages.
    story: String,
}

impl Terminal {
    /// A terminal of the session's user.
    #[must_use]
    pub fn new(session: &Session) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("open a terminal");
        grantpt(&master).expect("grant a terminal");
        unlockpt(&master).expect("unlock a terminal");
        let name = ptsname(&master, Vec::new()).expect("the name of a terminal");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let side = rustix::fs::open(name, flags, Mode::empty()).expect("open a terminal");
        if let Some(id) = session.user().switch_to() {
            fchown(&side, Some(id), Some(id)).expect("give a terminal to the user");
        }
        Self {
            master,
            side,
            shown: String::new(),
            story: String::new(),
        }
    }

    /// The program's side, for its settings.
    #[must_use]
    pub fn side(&self) -> &OwnedFd {
        &self.side
    }

    /// Runs a command as the leader of a session that has this terminal, on all three standard streams.
    pub fn start(&self, session: &Session, command: &Command) -> Child {
        self.start_as(session, command, "dumb")
    }

    /// As [`Self::start`], where the terminal is of type `kind` (`TERM`).
    pub fn start_as(&self, session: &Session, command: &Command, kind: &str) -> Child {
        let mut leader = session.command("setsid");
        leader
            .arg("--ctty")
            .arg(command.get_program())
            .args(command.get_args())
            .env("TERM", kind)
            .env("PS1", "prompt> ");
        let side = || self.side.try_clone().expect("duplicate a descriptor");
        leader.stdin(side()).stdout(side()).stderr(side());
        leader.spawn().expect("start a program on a terminal")
    }

    /// Types text.
    pub fn send(&self, text: &str) {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            let sent = rustix::io::write(&self.master, left).expect("type on a terminal");
            left = &left[sent..];
        }
    }

    /// The group in the foreground of the session that has this terminal.
    #[must_use]
    pub fn foreground(&self) -> Option<Pid> {
        rustix::termios::tcgetpgrp(&self.master).ok()
    }

    /// Waits until `text` is shown, behind what was waited for before. Gives what came up to its end.
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + TOO_LONG;
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                self.read(left),
                "the terminal does not show {text:?}: {:?}",
                self.story
            );
        }
    }

    /// Waits for the end of a program on this terminal, which shows on.
    pub fn wait(&mut self, mut program: Child) -> ExitStatus {
        let deadline = Instant::now() + TOO_LONG;
        loop {
            if let Some(status) = program.try_wait().expect("wait for a child") {
                return status;
            }
            // What it shows would keep it from ending if nobody took it.
            self.read(Duration::from_millis(20));
            if Instant::now() > deadline {
                let _ = program.kill();
                panic!("it does not end: {:?}", self.story);
            }
        }
    }

    /// Reads what is shown. False if nothing comes in time.
    fn read(&mut self, limit: Duration) -> bool {
        let limit = Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
        if poll(&mut fds, Some(&limit)).unwrap_or(0) == 0 {
            return false;
        }
        let mut buffer = [0; 4096];
        let count = rustix::io::read(&self.master, &mut buffer).expect("read from a terminal");
        let text = String::from_utf8_lossy(&buffer[..count]);
        self.shown.push_str(&text);
        self.story.push_str(&text);
        true
    }
}
