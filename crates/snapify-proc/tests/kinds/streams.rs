//! Standard streams that lead outside: a restarted program uses those of the restart.

use crate::stage::{Stage, User};
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

/// Both sides of a new pseudo-terminal, which does not echo.
fn terminal() -> (File, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let side = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    let mut settings = tcgetattr(&side).unwrap();
    settings.local_modes -= rustix::termios::LocalModes::ECHO;
    tcsetattr(&side, OptionalActions::Now, &settings).unwrap();
    (File::from(master), side)
}

fn expect(output: &mut impl BufRead, wanted: &str) {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), wanted);
}

/// Saved on one terminal, restored on another: also what the program had opened by the terminal's
/// name and as `/dev/tty`.
#[test]
fn a_terminal_is_replaced_by_another() {
    for user in User::all() {
        let stage = Stage::new("stdio", user);
        let (first, side) = terminal();
        stage.let_use(&side);
        // `setsid --ctty` makes the terminal the program's controlling one.
        let mut command = stage.command("setsid");
        command
            .args(["--ctty", "--wait"])
            .arg(stage.path("stdio"))
            .arg("terminal");
        let streams = || Stdio::from(side.try_clone().unwrap());
        let mut original = command
            .stdin(streams())
            .stdout(streams())
            .stderr(streams())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(first.try_clone().unwrap());
        expect(&mut output, "ready");
        let pid = stage.pid_of_program(original.id().cast_signed());
        stage.save(pid, "image", true);
        original.wait().unwrap();

        let (mut second, side) = terminal();
        stage.let_use(&side);
        let streams = || Stdio::from(side.try_clone().unwrap());
        let mut engine = stage.engine();
        engine.arg("restore").arg(stage.path("image"));
        engine
            .stdin(streams())
            .stdout(streams())
            .stderr(Stdio::null());
        let mut restored = engine.process_group(0).spawn().unwrap();
        second.write_all(b"go on\n").unwrap();
        let mut output = BufReader::new(second);
        expect(&mut output, "through tty");
        expect(&mut output, "opened again");
        expect(&mut output, "fine");
        assert!(restored.wait().unwrap().success());
    }
}

/// A program that has switched its output to non-blocking finds it so, though it is another pipe.
#[test]
fn flags_of_streams_come_back() {
    for user in User::all() {
        let stage = Stage::new("stdio", user);
        for what in ["plain", "nonblocking"] {
            let original = stage.start_if_possible(&[what]).unwrap();
            stage.save(original.pid(), what, true);
            original.expect_killed();
            stage.restore(what).go_on_and_be_fine();
        }
    }
}

/// A log that somebody else has opened for the program can be opened neither by it nor by us.
#[test]
fn output_to_a_file_that_we_may_not_open_goes_to_the_restarts_output() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let stage = Stage::new("stdio", User::Ordinary);
    let log = stage.path("log");
    let file = File::options()
        .create_new(true)
        .append(true)
        .open(&log)
        .unwrap();
    std::fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let original = stage.start_writing_to(file);
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "ready\n");
    stage.save(original.id().cast_signed(), "image", true);
    stage.restore("image").go_on_and_be_fine();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "ready\n");
}

/// The same while a shell has put that log away, as the command that runs has its output elsewhere.
#[test]
fn a_shell_that_has_put_such_a_file_away_finds_the_restarts_output() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for shell in ["bash", "dash"] {
        let stage = Stage::new("stdio", User::Ordinary);
        let log = stage.path("log");
        let file = File::create_new(&log).unwrap();
        std::fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let mut command = stage.command(shell);
        command.args([
            "-c",
            "echo ready; { read line; echo aside; } >aside; echo fine",
        ]);
        command.current_dir(stage.path("."));
        let mut original = command.stdin(Stdio::piped()).stdout(file).spawn().unwrap();
        let pid = original.id().cast_signed();
        // It is about to read when its output is the other file.
        let begin = std::time::Instant::now();
        while !std::fs::read_link(format!("/proc/{pid}/fd/1"))
            .is_ok_and(|path| path.ends_with("aside"))
        {
            assert!(begin.elapsed().as_secs() < 60, "{shell} does not begin");
            std::thread::yield_now();
        }
        stage.save(pid, "image", true);
        assert!(!original.wait().unwrap().success());
        stage.restore("image").go_on_and_be_fine();
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "ready\n");
        let aside = std::fs::read_to_string(stage.path("aside")).unwrap();
        assert_eq!(aside, "aside\n");
    }
}

/// A log of the program's own is opened again and goes on where it was.
#[test]
fn output_to_a_file_goes_on_in_the_file() {
    for user in User::all() {
        let stage = Stage::new("stdio", user);
        let log = stage.path("log");
        let file = File::create_new(&log).unwrap();
        stage.let_use(&file);
        let original = stage.start_writing_to(file);
        stage.save(original.id().cast_signed(), "image", true);
        let mut restored = stage.restore("image");
        restored.go_on();
        assert!(restored.end().success());
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "ready\nfine\n");
    }
}

/// What started the program has left a pipe open for it, which it has itself under the same number.
/// The program is not refused for it. If it alone has it, it is.
#[test]
fn a_pipe_that_was_left_open_is_no_obstacle() {
    let stage = Stage::new("stdio", User::Ourselves);
    let (reader, writer) = std::io::pipe().unwrap();
    for end in &[OwnedFd::from(reader), OwnedFd::from(writer)] {
        let error = || Stdio::from(end.try_clone().unwrap());
        let command = "exec 77>&2 2>&-; ./stdio; exit $?";
        let original = stage.start_through_shell(command, error());
        stage.save(stage.pid_of_program(original.pid()), "inherited", true);
        drop(original);
        stage.restore("inherited").go_on_and_be_fine();

        let command = "exec 77>&2 2>&-; exec ./stdio";
        let original = stage.start_through_shell(command, error());
        let refusal = stage.try_save(original.pid(), "alone", false).unwrap_err();
        assert!(refusal.contains("descriptor 77"), "{refusal}");
        assert!(refusal.contains("start it with 77>&-"), "{refusal}");
        original.go_on_and_be_fine();
    }
}
