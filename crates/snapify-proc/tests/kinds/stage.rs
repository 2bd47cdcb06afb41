//! A folder with a compiled program, and the engine (the example of that name) to save and restore
//! it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown, fchown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Instant;
use tempfile::TempDir;

/// Who runs a program and the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Whoever runs the tests.
    Ourselves,
    /// Without any privilege.
    Ordinary,
}

/// An id that no account has.
const ORDINARY: u32 = 12345;

impl User {
    /// Ourselves, and if that is root an ordinary user too.
    pub fn all() -> Vec<Self> {
        if rustix::process::geteuid().is_root() {
            vec![Self::Ourselves, Self::Ordinary]
        } else {
            vec![Self::Ourselves]
        }
    }
}

/// A copy of the engine where any user can execute it: the checkout may lie in somebody's private directory.
fn for_anyone(engine: &Path) -> PathBuf {
    let folder = COPY.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::copy(engine, folder.path().join("engine")).unwrap();
        // SAFETY: the handler is a plain function that lives as long as the program.
        unsafe { libc::atexit(remove_copy) };
        folder
    });
    folder.path().join("engine")
}

static COPY: OnceLock<TempDir> = OnceLock::new();

/// At the end of the tests: statics are never dropped.
extern "C" fn remove_copy() {
    if let Some(folder) = COPY.get() {
        let _ = std::fs::remove_dir_all(folder.path());
    }
}

/// A folder with a compiled program.
pub struct Stage {
    folder: TempDir,
    program: PathBuf,
    user: User,
}

/// A started program whose output is not ours. It is ended when this is dropped.
pub struct Original(Child);

impl Original {
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that runs: started, or restored by the engine.
pub struct Running {
    child: Child,
    pid: i32,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    errors: Option<BufReader<ChildStderr>>,
    said: String,
}

impl Stage {
    /// Compiles a program of the `kinds` tests.
    pub fn new(program: &str, user: User) -> Self {
        Self::of("kinds", program, user)
    }

    /// Compiles a program of the tests in folder `suite`.
    pub fn of(suite: &str, program: &str, user: User) -> Self {
        // What whoever runs the tests has left open for us is none of the program's business.
        snapify_sys::process::close_all_on_exec(3).unwrap();
        let folder = tempfile::Builder::new()
            .permissions(PermissionsExt::from_mode(0o755))
            .tempdir()
            .unwrap();
        if user == User::Ordinary {
            chown(folder.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests")
            .join(suite)
            .join("programs");
        let binary = folder.path().join(program);
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
            .arg(&binary)
            .arg(sources.join(program).with_extension("c"))
            .arg("-lm")
            .status()
            .unwrap();
        assert!(status.success(), "cc {program}");
        Self {
            folder,
            program: binary,
            user,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path());
        if self.user == User::Ordinary {
            command.uid(ORDINARY).gid(ORDINARY);
        }
        command
    }

    pub fn engine(&self) -> Command {
        let deps = std::env::current_exe().unwrap();
        let engine = deps.ancestors().nth(2).unwrap().join("examples/engine");
        assert!(
            engine.exists(),
            "{} is missing: run all tests of the package",
            engine.display()
        );
        self.command(for_anyone(&engine))
    }

    /// Has a program that `start` starts saved while it goes on; and then through two generations of restores.
    pub fn survives(&self, start: impl Fn() -> Running) {
        let original = start();
        self.save(original.pid(), "first", false);
        original.go_on_and_be_fine();

        let original = start();
        self.save(original.pid(), "second", true);
        original.expect_killed();
        let restored = self.restore("second");
        self.save(restored.pid(), "third", true);
        restored.expect_killed();
        self.restore("third").go_on_and_be_fine();
    }

    /// Starts the program and waits until it is ready.
    pub fn start(&self) -> Running {
        self.start_with(|_| {})
    }

    /// Starts the program, whose first words are for the caller.
    pub fn start_and_hear(&self) -> Running {
        self.spawn(|_| {})
    }

    /// As [`Self::start`], after a change to how it is started.
    pub fn start_with(&self, change: impl FnOnce(&mut Command)) -> Running {
        let mut running = self.spawn(change);
        running.expect("ready");
        running
    }

    /// As [`Self::start`] with arguments; nothing if the program says that it cannot be tried here.
    pub fn start_if_possible(&self, args: &[&str]) -> Option<Running> {
        let mut running = self.spawn(|command| {
            command.args(args);
        });
        match running.line().as_str() {
            "ready" => Some(running),
            other => {
                assert!(other.starts_with("not here"), "{args:?}: {other}");
                None
            }
        }
    }

    /// Starts the program by a command for the shell, whose standard error is `error`.
    pub fn start_through_shell(&self, command: &str, error: Stdio) -> Running {
        let mut shell = self.command("bash");
        shell.arg("-c").arg(command);
        shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(error);
        let mut running = Running::of(shell.spawn().unwrap());
        running.expect("ready");
        running
    }

    fn spawn(&self, change: impl FnOnce(&mut Command)) -> Running {
        let mut command = self.command(&self.program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        change(&mut command);
        Running::of(command.spawn().unwrap())
    }

    /// Starts the program with a file for its output, and waits until it is ready.
    pub fn start_writing_to(&self, file: File) -> Original {
        let mut command = self.command(&self.program);
        let log = file.try_clone().unwrap();
        let mut child = command.stdin(Stdio::piped()).stdout(file).spawn().unwrap();
        let begin = Instant::now();
        while log.metadata().unwrap().len() == 0 {
            assert!(begin.elapsed().as_secs() < 60 && child.try_wait().unwrap().is_none());
            std::thread::yield_now();
        }
        Original(child)
    }

    /// Gives a file or terminal to the one who runs the program.
    pub fn let_use(&self, file: impl AsFd) {
        if self.user == User::Ordinary {
            fchown(file, Some(ORDINARY), Some(ORDINARY)).unwrap();
        }
    }

    /// The child of `parent` that executes the program.
    pub fn pid_of_program(&self, parent: i32) -> i32 {
        let is_it = |pid: i32| {
            std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == self.program)
        };
        if is_it(parent) {
            return parent;
        }
        let children =
            std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
        children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .find(|&pid| is_it(pid))
            .unwrap()
    }

    /// The same folder in the hands of another user.
    pub fn for_user(mut self, user: User) -> Self {
        self.user = user;
        self
    }

    /// Has the engine save a process.
    pub fn save(&self, pid: i32, name: &str, stop: bool) {
        if let Err(text) = self.try_save(pid, name, stop) {
            panic!(
                "saving {} as {:?}: {text}",
                self.program.display(),
                self.user
            );
        }
    }

    /// Has the engine save a process, or tell why not.
    pub fn try_save(&self, pid: i32, name: &str, stop: bool) -> Result<(), String> {
        let mut command = self.engine();
        command
            .arg("save")
            .arg(pid.to_string())
            .arg(self.path(name));
        if stop {
            command.arg("--stop");
        }
        let output = command.output().unwrap();
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Has the engine list what stands in the way of saving a process.
    pub fn check(&self, pid: i32) -> String {
        let output = self
            .engine()
            .arg("check")
            .arg(pid.to_string())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Has the engine restore a process.
    pub fn restore(&self, name: &str) -> Running {
        self.try_restore(name).unwrap_or_else(|text| {
            panic!(
                "restoring {} as {:?}: {text}",
                self.program.display(),
                self.user
            )
        })
    }

    /// Has the engine restore a process, or tell why not.
    pub fn try_restore(&self, name: &str) -> Result<Running, String> {
        self.try_restore_with(name, &[])
    }

    /// As [`Self::restore`], with files for externals.
    pub fn restore_with(&self, name: &str, externals: &[&str]) -> Running {
        self.try_restore_with(name, externals)
            .unwrap_or_else(|text| panic!("restoring {}: {text}", self.program.display()))
    }

    /// As [`Self::try_restore`], by a command that executes what it is given as arguments.
    pub fn try_restore_by(&self, mut command: Command, name: &str) -> Result<Running, String> {
        let engine = self.engine();
        command.arg(engine.get_program()).arg("restore");
        command.arg(self.path(name));
        Self::through_engine(command, "restored as process ")
    }

    fn try_restore_with(&self, name: &str, externals: &[&str]) -> Result<Running, String> {
        let mut command = self.engine();
        command.arg("restore").arg(self.path(name)).args(externals);
        Self::through_engine(command, "restored as process ")
    }

    /// Has the engine launch the program, and waits until it is ready.
    pub fn launch(&self) -> Running {
        let mut command = self.engine();
        command.arg("launch").arg(&self.program);
        let mut running = Self::through_engine(command, "launched as process ").unwrap();
        running.expect("ready");
        running
    }

    fn through_engine(mut command: Command, mark: &str) -> Result<Running, String> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut running = Running::of(command.spawn().unwrap());
        let mut errors = BufReader::new(running.child.stderr.take().unwrap());
        let mut text = String::new();
        while errors.read_line(&mut text).unwrap() > 0 {
            let last = text.trim_end().rsplit('\n').next().unwrap();
            if let Some((_, rest)) = last.split_once(mark) {
                running.pid = rest.split(' ').next().unwrap().parse().unwrap();
                running.errors = Some(errors);
                running.said = text;
                return Ok(running);
            }
        }
        running.child.wait().unwrap();
        Err(text)
    }
}

impl Running {
    fn of(mut child: Child) -> Self {
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            pid: child.id().cast_signed(),
            child,
            input,
            output,
            errors: None,
            said: String::new(),
        }
    }

    /// What the engine said before it let the program go.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// The program's process id as we see it.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The next line of output.
    pub fn line(&mut self) -> String {
        let mut text = String::new();
        self.output.read_line(&mut text).unwrap();
        text.trim_end().to_owned()
    }

    /// Expects a line of output.
    pub fn expect(&mut self, line: &str) {
        let mut text = self.line();
        if text != line {
            self.output.read_to_string(&mut text).unwrap();
            panic!("expected {line:?}, got {text:?}");
        }
    }

    /// Tells the program to look around.
    pub fn go_on(&mut self) {
        // A program that has ended already shows why in what it wrote.
        let _ = self.input.write_all(b"go on\n");
    }

    /// Tells the program to look around, and expects that all is well.
    pub fn go_on_and_be_fine(mut self) {
        self.go_on();
        self.expect("fine");
        assert!(self.end().success());
    }

    /// Expects that the program has been killed.
    pub fn expect_killed(mut self) {
        let status = self.end();
        let killed =
            status.signal() == Some(libc::SIGKILL) || status.code() == Some(128 + libc::SIGKILL);
        assert!(killed, "{status:?}");
    }

    /// Waits for the end.
    pub fn end(&mut self) -> ExitStatus {
        let mut errors = String::new();
        if let Some(mut stream) = self.errors.take() {
            stream.read_to_string(&mut errors).unwrap();
        }
        let status = self.child.wait().unwrap();
        if !errors.is_empty() {
            eprintln!("{errors}");
        }
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A restored program dies with its engine, but not at the same moment: what it has is free when it is gone.
        let program = rustix::process::Pid::from_raw(self.pid).and_then(|pid| {
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
        });
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(program) = program {
            let mut ends = [rustix::event::PollFd::new(
                &program,
                rustix::event::PollFlags::IN,
            )];
            let _ = rustix::event::poll(&mut ends, None);
        }
    }
}
