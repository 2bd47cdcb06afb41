//! Programs that live on terminals: shells with their jobs, and programs that hold terminals for others. They are killed, and
//! go on on the terminal of the restart.

use rustix::termios::tcgetattr;
use snapify_tests::{Random, Session, Terminal, User, poll_until, rounds};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The users that a test is for: without privileges, and whoever runs the tests.
const USERS: [User; 2] = [User::Ordinary, User::Myself];

/// The end of what `^C`, `^D` and so on type.
const fn control(letter: u8) -> char {
    (letter & 0x1f) as char
}

/// Ends what a failed test, or a restart that was detached, leaves behind.
struct Leftovers<'a>(&'a Session);

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        self.0.kill_all();
    }
}

/// A shell that shows a prompt.
fn shell(session: &Session) -> Command {
    let mut command = session.command("bash");
    command.args(["--norc", "--noprofile", "-i"]);
    command
}

/// Has a program on a terminal saved, and then killed with all that it has started.
fn save_and_kill(session: &Session, program: Child) {
    let pid = program.id().cast_signed();
    session.succeed(["checkpoint", &pid.to_string(), "snap"]);
    assert!(session.kill_tree(pid), "the program is there");
    let mut program = program;
    program.wait().expect("wait for a child");
}

/// Restarts a program that goes on without us. It keeps the standard streams of the restart, so that those are files.
fn restart_detached(session: &Session) {
    let said = std::fs::File::create(session.path("said")).expect("create a file");
    let mut restart = session.snapify(["restart", "snap", "--detach"]);
    let status = restart.stdout(Stdio::null()).stderr(said).status();
    let status = status.expect("run the command line");
    assert!(status.success(), "{}", content(&session.path("said")));
}

fn content(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Settings of a terminal, to be compared.
fn settings(terminal: &Terminal) -> String {
    format!("{:?}", tcgetattr(terminal.side()).expect("settings"))
}

/// Has a command of the shell carried out.
fn command(terminal: &mut Terminal, text: &str) -> String {
    terminal.send(text);
    terminal.send("\n");
    terminal.wait_for("prompt> ")
}

/// Waits until the shell has given the terminal to a job.
fn wait_for_job(terminal: &Terminal, shell: Option<rustix::process::Pid>) {
    poll_until("the job is in the foreground", || {
        terminal.foreground() != shell
    });
}

#[test]
fn a_shell_with_its_jobs() {
    for user in USERS {
        let session = Session::of(user);
        let _leftovers = Leftovers(&session);
        let mut old = Terminal::new(&session);
        let bash = old.start(&session, &shell(&session));
        old.wait_for("prompt> ");
        command(&mut old, "stty intr ^G -ixon");
        let running = "while :; do echo tick >>ticks; sleep 0.05; done &";
        command(&mut old, running);
        let typed = session.path("typed");
        old.send("cat >typed\nbefore\n");
        poll_until("it has read a line", || content(&typed) == "before\n");
        old.send(&control(b'Z').to_string());
        old.wait_for("Stopped");
        old.wait_for("prompt> ");
        save_and_kill(&session, bash);

        let ticks = session.path("ticks");
        std::fs::remove_file(&ticks).expect("it has ticked");
        let mut new = Terminal::new(&session);
        let before = settings(&new);
        let restart = new.start(&session, &session.snapify(["restart", "snap"]));
        command(&mut new, "");
        poll_until("the running job runs", || ticks.exists());
        let jobs = command(&mut new, "jobs");
        assert!(
            jobs.contains("Running") && jobs.contains("Stopped"),
            "{jobs}"
        );
        let stty = command(&mut new, "stty -a");
        assert!(
            stty.contains("intr = ^G") && stty.contains("-ixon"),
            "{stty}"
        );
        // What was stopped is brought to the foreground, and is at the keyboard.
        new.send("fg %2\nafter\n");
        poll_until("it has read another line", || {
            content(&typed) == "before\nafter\n"
        });
        new.send(&control(b'D').to_string());
        new.wait_for("prompt> ");
        // The keyboard's signals reach the job, and not the shell.
        let own = new.foreground();
        new.send("fg %1\n");
        wait_for_job(&new, own);
        new.send(&control(b'G').to_string());
        new.wait_for("prompt> ");
        let jobs = command(&mut new, "jobs");
        assert!(
            !jobs.contains("Running") && !jobs.contains("Stopped"),
            "{jobs}"
        );
        new.send("exit 3\n");
        let status = new.wait(restart);
        assert_eq!(status.code(), Some(3));
        assert_eq!(settings(&new), before);
        session.expect_no_process();
    }
}

#[test]
fn a_restart_is_a_job_of_the_shell() {
    for user in USERS {
        let session = Session::of(user);
        let _leftovers = Leftovers(&session);
        let old = Terminal::new(&session);
        let cat = old.start(&session, session.command("sh").args(["-c", "cat >typed"]));
        let typed = session.path("typed");
        old.send("one\n");
        poll_until("it has read a line", || content(&typed) == "one\n");
        save_and_kill(&session, cat);

        let mut new = Terminal::new(&session);
        let bash = new.start(&session, &shell(&session));
        new.wait_for("prompt> ");
        let own = new.foreground();
        let snapify = snapify_tests::stage().join("bin/snapify");
        new.send(&format!("{} restart snap\ntwo\n", snapify.display()));
        poll_until("it has read another line", || {
            content(&typed) == "one\ntwo\n"
        });
        new.send(&control(b'Z').to_string());
        new.wait_for("Stopped");
        new.wait_for("prompt> ");
        assert_eq!(new.foreground(), own);
        new.send("fg\nthree\n");
        poll_until("it has read a third line", || {
            content(&typed) == "one\ntwo\nthree\n"
        });
        new.send(&control(b'C').to_string());
        new.wait_for("prompt> ");
        let status = command(&mut new, "echo status $?");
        assert!(status.contains("status 130"), "{status}");
        new.send("exit 0\n");
        assert_eq!(new.wait(bash).code(), Some(0));
        session.expect_no_process();
    }
}

/// A program that runs a shell on a terminal of its own, and shows on this one what that shows.
fn passes_on(make: impl Fn(&Session) -> Command) {
    for user in USERS {
        let session = Session::of(user);
        let _leftovers = Leftovers(&session);
        let mut old = Terminal::new(&session);
        let program = old.start(&session, &make(&session));
        old.wait_for("prompt> ");
        let tty = command(&mut old, "x=6; tty");
        old.send("cat >typed\nbefore\n");
        let typed = session.path("typed");
        poll_until("it has read a line", || content(&typed) == "before\n");
        save_and_kill(&session, program);

        let mut new = Terminal::new(&session);
        let before = settings(&new);
        let restart = new.start(&session, &session.snapify(["restart", "snap"]));
        new.send("after\n");
        poll_until("it has read another line", || {
            content(&typed) == "before\nafter\n"
        });
        new.send(&control(b'C').to_string());
        new.wait_for("prompt> ");
        let product = command(&mut new, "echo product $((x * 7))");
        assert!(product.contains("product 42"), "{product}");
        let tty = tty.lines().find(|line| line.starts_with("/dev/pts/"));
        let tty = tty.expect("the name of its terminal").trim();
        let now = command(&mut new, "tty");
        assert!(now.contains(tty), "{tty} became {now}");
        new.send("exit\n");
        assert!(new.wait(restart).success());
        assert_eq!(settings(&new), before);
        session.expect_no_process();
    }
}

#[test]
fn script_with_a_shell() {
    passes_on(|session| {
        let mut command = session.command("script");
        let shell = "bash --norc --noprofile -i";
        command.args(["--quiet", "--command", shell, "typescript"]);
        command
    });
}

#[test]
fn python_with_a_shell() {
    passes_on(|session| {
        let mut command = session.command("/usr/bin/python3");
        let text = "import pty; pty.spawn(['bash', '--norc', '--noprofile', '-i'])";
        command.args(["-c", text]);
        command
    });
}

#[test]
fn a_multiplexer_with_a_shell() {
    let mut random = Random::new();
    for _ in 0..rounds(1) {
        for user in USERS {
            multiplexer(user, Duration::from_millis(random.below(1200)));
        }
    }
}

/// Saves tmux with a shell that is busy since `pause`, ends it, and goes on with it.
fn multiplexer(user: User, pause: Duration) {
    let session = Session::of(user);
    let _leftovers = Leftovers(&session);
    let tmux = |args: &[&str]| {
        let mut command = session.command("tmux");
        command.args(["-S", "socket", "-f", "/dev/null"]).args(args);
        command.env("LC_ALL", "C.UTF-8");
        let finished = session.finish(&mut command);
        assert!(finished.status.success(), "{args:?}: {finished:?}");
        finished.stdout
    };
    let shows = |text: &str| {
        poll_until("the shell shows it", || {
            tmux(&["capture-pane", "-p"]).contains(text)
        });
    };
    // The shell in between would not hand the prompt on.
    let bash = "PS1='prompt> ' bash --norc --noprofile -i";
    tmux(&["new-session", "-d", "-x", "100", "-y", "30", bash]);
    shows("prompt>");
    tmux(&["send-keys", "x=6; echo ready$x", "Enter"]);
    shows("ready6");
    tmux(&[
        "send-keys",
        "for i in {1..100}; do echo $i; sleep 0.01; done; echo end$x",
        "Enter",
    ]);
    // The moment is arbitrary: there is nothing to wait for.
    std::thread::sleep(pause);
    let server = tmux(&["display-message", "-p", "#{pid}"]);
    let server = server.trim();
    session.succeed(["checkpoint", server, "snap"]);
    shows("end6");
    tmux(&["send-keys", "clear; echo $((x * 5))", "Enter"]);
    shows("30");
    assert!(session.kill_tree(server.parse().expect("a process id")));

    restart_detached(&session);
    shows("end6");
    tmux(&["send-keys", "echo $((x * 7))", "Enter"]);
    shows("42");
    // A new terminal is made, and a client comes to see it.
    tmux(&["new-window", bash]);
    shows("prompt>");
    let mut terminal = Terminal::new(&session);
    let mut client = session.command("tmux");
    client.args(["-S", "socket", "attach"]);
    let client = terminal.start_as(&session, &client, "xterm");
    terminal.wait_for("prompt>");
    tmux(&["kill-server"]);
    terminal.wait(client);
    session.expect_no_process();
}

#[test]
fn a_detached_restart_does_without_a_terminal() {
    for user in USERS {
        let session = Session::of(user);
        let _leftovers = Leftovers(&session);
        let mut old = Terminal::new(&session);
        let text = "echo ready; until [ -e go ]; do sleep 0.02; done; echo to the terminal; echo done >result";
        let program = old.start(&session, session.command("sh").args(["-c", text]));
        old.wait_for("ready");
        save_and_kill(&session, program);
        restart_detached(&session);
        std::fs::write(session.path("go"), "").expect("write a file");
        poll_until("it has come to its end", || {
            content(&session.path("result")) == "done\n"
        });
        session.expect_no_process();
    }
}
