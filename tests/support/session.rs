//! One test's private surroundings, and the programs that it runs there.

use crate::stage::stage;
use crate::user::User;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Nothing in these tests takes this long, unless it hangs.
const TOO_LONG: Duration = Duration::from_secs(240);

/// A private directory, a user, and the staged command line.
pub struct Session {
    dir: tempfile::TempDir,
    user: User,
}

/// What a finished command said.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// A running command whose standard output is read line by line.
pub struct Running {
    child: Child,
    /// Taken while it surely is there: it may have been waited for by the time that its end is.
    pidfd: OwnedFd,
    lines: BufReader<ChildStdout>,
    /// What has been read of its standard output.
    pub output: String,
    stderr: PathBuf,
}

impl Session {
    /// A session of an ordinary user.
    #[must_use]
    pub fn new() -> Self {
        Self::of(User::Ordinary)
    }

    /// A session of `user`.
    #[must_use]
    pub fn of(user: User) -> Self {
        keep_inherited_descriptors();
        let dir = tempfile::Builder::new()
            .prefix("snapify-test-")
            .tempdir()
            .expect("make a directory for a test");
        user.give(dir.path());
        Self { dir, user }
    }

    /// Whose session it is.
    #[must_use]
    pub fn user(&self) -> User {
        self.user
    }

    /// The session's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A path in the session's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command run as the session's user, in its directory.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.dir.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.dir.path())
            .env("SNAPIFY_RUNTIME_DIR", self.path("run"))
            .env("OMP_TARGET_OFFLOAD", "MANDATORY")
            .stdin(Stdio::null());
        self.user.apply(&mut command);
        command
    }

    /// The command line under test.
    pub fn snapify<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(stage().join("bin/snapify"));
        command.args(args);
        command
    }

    /// `snapify run` of one of the examples on so many cards, of a size that a test can afford: some seconds.
    #[must_use]
    pub fn offload(&self, cards: u32, name: &str) -> Command {
        let size: &[&str] = match name {
            "md" => &["--steps", "160"],
            "mc" => &["--particles", "25165824"],
            "sgemm" => &["--rows", "2048", "--columns", "2048", "--inner", "2048"],
            "search" => &["--vectors", "196608"],
            "kmeans" => &["--points", "786432"],
            _ => &[],
        };
        let cards = cards.to_string();
        let mut command = self.snapify(["run", "--cards", &cards, "--"]);
        command
            .arg(crate::example(name))
            .args(size)
            .args(["--devices", &cards]);
        command
    }

    /// Runs `snapify` to its end.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Finished {
        self.finish(&mut self.snapify(args))
    }

    /// Runs `snapify`, which must succeed, and gives its standard output.
    pub fn succeed<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let finished = self.run(args);
        assert!(finished.status.success(), "{finished:?}");
        finished.stdout
    }

    /// Runs a command to its end.
    pub fn finish(&self, command: &mut Command) -> Finished {
        self.start(command).finish()
    }

    /// Starts a command.
    pub fn start(&self, command: &mut Command) -> Running {
        let stderr = tempfile::Builder::new()
            .prefix("stderr-")
            .tempfile_in(self.dir.path())
            .expect("make a file for standard error");
        let (file, stderr) = stderr.keep().expect("keep the file for standard error");
        self.user.give(&stderr);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let lines = BufReader::new(child.stdout.take().expect("standard output is a pipe"));
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("open a pidfd of a child");
        Running {
            child,
            pidfd,
            lines,
            output: String::new(),
            stderr,
        }
    }

    /// The applications that run in this session, as `snapify ps --json` lists them.
    #[must_use]
    pub fn applications(&self) -> Vec<serde_json::Value> {
        let listed: serde_json::Value =
            serde_json::from_str(&self.succeed(["ps", "--json"])).expect("ps prints JSON");
        listed["applications"]
            .as_array()
            .expect("a list of applications")
            .clone()
    }

    /// The host process of a `snapify run`, as soon as it is there; None if that ended first.
    pub fn host_of(&self, run: &mut Running) -> Option<i32> {
        let supervisor = run.pid();
        let mut host = None;
        poll_until("snapify run has started its program or ended", || {
            host = self
                .applications()
                .iter()
                .find(|application| application["supervisor"] == supervisor)
                .and_then(|application| application["pid"].as_i64())
                .and_then(|pid| i32::try_from(pid).ok());
            host.is_some() || !run.is_running()
        });
        host
    }

    /// Kills the host process `pid`, all its descendants and all offload processes of the application, with SIGKILL. False
    /// if the host process was gone.
    pub fn kill_host(&self, _run: &Running, pid: i32) -> bool {
        self.kill_tree(pid)
    }

    /// As [`Self::kill_host`], of a program that was not started by [`Self::start`].
    pub fn kill_tree(&self, pid: i32) -> bool {
        let offload_processes = self
            .applications()
            .iter()
            .find(|application| application["pid"] == pid)
            .and_then(|application| application["processes"].as_array().cloned())
            .unwrap_or_default();
        let offload_processes = offload_processes
            .iter()
            .filter_map(|process| i32::try_from(process["pid"].as_i64()?).ok());
        let mut killed = Vec::new();
        let mut kill = |pid: i32| {
            let Some(pid) = Pid::from_raw(pid) else {
                return false;
            };
            killed.extend(pidfd_open(pid, PidfdFlags::empty()));
            kill_process(pid, Signal::KILL).is_ok()
        };
        // Before it is killed: its children are another's then.
        let mut family = descendants(pid);
        // The host process first: it would tell of a card that died, and end by itself.
        let was_there = kill(pid);
        // Some may have forked while others were killed.
        while !family.is_empty() {
            for &member in &family {
                kill(member);
            }
            family = family.into_iter().flat_map(descendants).collect();
        }
        for process in offload_processes {
            kill(process);
        }
        // What they have, addresses among it, is free when they are gone.
        for process in killed {
            let mut ends = [PollFd::new(&process, PollFlags::IN)];
            let _ = poll(&mut ends, None);
        }
        was_there
    }

    /// The ids of all processes of this session's user that were started in this session, by their environment.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        let mark = format!("SNAPIFY_RUNTIME_DIR={}", self.path("run").display());
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        std::fs::read_dir("/proc")
            .expect("read /proc")
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| *pid != own)
            .filter(|pid| {
                std::fs::read(format!("/proc/{pid}/environ"))
                    .is_ok_and(|bytes| bytes.split(|b| *b == 0).any(|v| v == mark.as_bytes()))
            })
            .collect()
    }

    /// Kills what is left of this session's programs.
    pub fn kill_all(&self) {
        for pid in self.processes().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// The names of what is left in a folder of the session's runtime directory: `apps`, `cards`.
    #[must_use]
    pub fn left_in(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("run").join(folder));
        let entries = entries.into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    /// Fails unless every process of this session ends now that its programs have.
    pub fn expect_no_process(&self) {
        poll_until("every process of the session has ended", || {
            self.processes().is_empty()
        });
    }
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Running {
    /// The process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Its standard input, if that was made a pipe.
    pub fn take_stdin(&mut self) -> std::process::ChildStdin {
        self.child.stdin.take().expect("standard input is a pipe")
    }

    /// Waits for a line that contains `text`.
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + TOO_LONG;
        loop {
            if self.lines.buffer().is_empty() {
                let mut fds = [PollFd::new(self.lines.get_ref(), PollFlags::IN)];
                let left = deadline.saturating_duration_since(Instant::now());
                let left = Timespec {
                    tv_sec: left.as_secs().cast_signed(),
                    tv_nsec: 0,
                };
                let ready = poll(&mut fds, Some(&left)).unwrap_or(0);
                assert!(ready > 0, "no line with '{text}' came: {}", self.story());
            }
            let mut line = String::new();
            let read = self
                .lines
                .read_line(&mut line)
                .expect("read standard output");
            self.output.push_str(&line);
            assert!(
                read > 0,
                "the output ended without '{text}': {}",
                self.story()
            );
            if line.contains(text) {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid()).expect("a process id");
        let _ = kill_process(pid, signal);
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("wait for a child").is_none()
    }

    /// Waits for its end; kills it and fails if that never comes.
    pub fn finish(mut self) -> Finished {
        // Read to the end first: a full pipe would keep the child from ending. A descendant may hold
        // the pipe, so that what ends the reading is the end of all of them.
        let watchdog = std::thread::spawn({
            let pidfd = self.pidfd.try_clone().expect("duplicate a pidfd");
            move || {
                let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
                let limit = Timespec {
                    tv_sec: TOO_LONG.as_secs().cast_signed(),
                    tv_nsec: 0,
                };
                if poll(&mut fds, Some(&limit)) == Ok(0) {
                    let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
                    return true;
                }
                false
            }
        });
        let mut rest = Vec::new();
        self.lines
            .read_to_end(&mut rest)
            .expect("read standard output");
        self.output.push_str(&String::from_utf8_lossy(&rest));
        let status = self.child.wait().expect("wait for a child");
        let hung = watchdog.join().expect("the watchdog does not panic");
        assert!(!hung, "it hung and was killed: {}", self.story());
        Finished {
            status,
            stdout: std::mem::take(&mut self.output),
            stderr: std::fs::read_to_string(&self.stderr).unwrap_or_default(),
        }
    }

    fn story(&self) -> String {
        let stderr = std::fs::read_to_string(&self.stderr).unwrap_or_default();
        format!("stdout:\n{}\nstderr:\n{stderr}", self.output)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test leaves nothing behind.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Finished {
    /// The last line of standard output that starts with `word`, without it.
    #[must_use]
    pub fn last(&self, word: &str) -> Option<&str> {
        self.stdout
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix(word))
            .map(str::trim)
    }

    /// The `digest` line that every example ends with.
    #[must_use]
    pub fn digest(&self) -> &str {
        self.last("digest ")
            .unwrap_or_else(|| panic!("no digest: {self:?}"))
    }

    /// The exit code, if it did exit.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The signal that ended it, if one did.
    #[must_use]
    pub fn killed_by(&self) -> Option<i32> {
        self.status.signal()
    }
}

/// All children of a process, their children and so on.
fn descendants(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    let mut waiting = vec![pid];
    while let Some(parent) = waiting.pop() {
        let tasks = std::fs::read_dir(format!("/proc/{parent}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            let children = children.unwrap_or_default();
            let children = children
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok());
            for child in children {
                found.push(child);
                waiting.push(child);
            }
        }
    }
    found
}

/// Descriptors that whoever runs the tests has left open are none of the tested programs' business: a pipe to someone
/// outside would rightly be refused.
fn keep_inherited_descriptors() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let numbers = std::fs::read_dir("/proc/self/fd")
            .into_iter()
            .flatten()
            .flatten();
        for number in numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
            if number > 2 {
                // SAFETY: only a flag is set on it, and a number that is closed meanwhile is an error and no more.
                let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
                let _ = rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC);
            }
        }
    });
}

/// Waits until `condition` holds, for things that have no event to wait for (another process's
/// disappearance from /proc).
pub fn poll_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "it never came true that {what}");
        std::thread::yield_now();
    }
}
