//! Chains of snapshots of an offload application: of offload processes, too, only what has changed is saved, and each point is the
//! memory of its moment, on cards as in the host process.

use serde_json::Value;
use snapify_tests::{Language, Running, Session, User, compile};
use std::io::Write;
use std::process::{ChildStdin, Stdio};

/// What each of the three memories of the program holds.
const MIB: u64 = 6;

/// A run of the program.
struct App<'a> {
    session: &'a Session,
    run: Running,
    stdin: ChildStdin,
    host: String,
}

impl<'a> App<'a> {
    fn start(session: &'a Session, args: &[&str]) -> Self {
        let mut command = session.snapify(args);
        if args[0] == "run" {
            let program = compile("omp_change.c", Language::OpenMp);
            command.arg(program).arg(MIB.to_string());
        }
        command.stdin(Stdio::piped());
        let mut run = session.start(&mut command);
        let stdin = run.take_stdin();
        let host = session.host_of(&mut run).expect("it runs").to_string();
        Self {
            session,
            run,
            stdin,
            host,
        }
    }

    /// Has it change so many words in each memory; gives the digests, which are those of round `round`.
    fn change(&mut self, words: u32, round: usize) -> String {
        writeln!(self.stdin, "{words}").expect("write to the program");
        self.run.wait_for(&format!("sum {round}: "))
    }

    fn checkpoint(&self, args: &[&str]) -> Value {
        let all = ["checkpoint", &self.host, "snap", "--json"];
        let args = [&all, args].concat();
        serde_json::from_str(&self.session.succeed(args)).expect("a report")
    }

    fn kill(self) {
        self.session.kill_all();
        drop(self.stdin);
        self.run.finish();
        self.session.expect_no_process();
    }
}

/// Bytes that were saved of the offload process: of all its memory, and of its local store.
fn saved(report: &Value) -> (u64, u64) {
    let members = report["members"].as_array().expect("members");
    let card = |member: &&Value| member["card"].is_u64();
    let member = members.iter().find(card).expect("an offload process");
    let number = |name: &str| member[name].as_u64().expect("a number");
    (number("stored_bytes"), number("store_bytes"))
}

fn chain(user: User) {
    let session = Session::of(user);
    let mut app = App::start(&session, &["run", "--cards", "1", "--"]);
    let mut said = vec![app.run.wait_for("sum 0: ")];
    // How often a snapshot is full follows from their cost, unless it is told.
    let manners: [&[&str]; 5] = [
        &[],
        &["--full-every", "9"],
        &["--full-every", "9", "--codec", "lz4"],
        &["--full-every", "9", "--incremental", "--codec", "zstd:1"],
        &["--full-every", "9", "--stop"],
    ];
    for (round, manner) in manners.iter().enumerate() {
        let report = app.checkpoint(manner);
        assert_eq!(
            report["parent"].as_u64().unwrap_or(0),
            round as u64,
            "{report}"
        );
        let (all, store) = saved(&report);
        if round == 0 {
            assert!(store >= MIB << 20 && all - store >= MIB << 20, "{report}");
        } else {
            // A few words and what the runtime itself writes, on as many pages.
            assert!(all < 2 << 20, "{report}");
        }
        if round + 1 < manners.len() {
            said.push(app.change(20, round + 1));
        }
    }
    drop(app.stdin);
    app.run.finish();
    session.expect_no_process();
    session.succeed(["verify", "snap"]);
    // Each of them, the last one last.
    for (round, sums) in said.iter().enumerate() {
        let point = (round + 1).to_string();
        let mut app = App::start(&session, &["restart", "snap", "--at", &point]);
        // Nothing is changed, and the digests are the same.
        let now = app.change(0, round + 1);
        let digests = |line: &str| line.split(": ").nth(1).map(str::to_owned);
        assert_eq!(digests(&now), digests(sums), "point {point}");
        if round + 1 < said.len() {
            app.kill();
            continue;
        }
        // It goes on with its chain, on the card as well.
        let sums = app.change(20, round + 2);
        let report = app.checkpoint(&["--full-every", "9"]);
        assert_eq!(report["parent"], round as u64 + 1, "{report}");
        assert!(saved(&report).0 < 2 << 20, "{report}");
        app.kill();
        let mut app = App::start(&session, &["restart", "snap"]);
        let now = app.change(0, round + 3);
        assert_eq!(digests(&now), digests(&sums));
        app.kill();
    }
    // A chain that is cleaned, and full ones.
    session.succeed(["clean", "snap", "--keep", "2"]);
    let mut app = App::start(&session, &["restart", "snap"]);
    app.change(1, said.len() + 2);
    let report = app.checkpoint(&["--full"]);
    assert!(report["parent"].is_null(), "{report}");
    assert!(saved(&report).0 >= (2 * MIB) << 20, "{report}");
    app.kill();
    session.succeed(["verify", "snap"]);
}

#[test]
fn offload_processes_save_what_has_changed() {
    chain(User::Ordinary);
}

#[test]
fn offload_processes_of_whoever_runs_the_tests_do() {
    chain(User::Myself);
}
