//! Chains of snapshots of an offload application: of offload processes, too, only what has changed is saved, and each point is the
//! memory of its moment, on cards as in the host process: byte for byte that of a copy that was taken then.

use serde_json::Value;
use snapify_tests::{Language, MemoryCopy, Region, Running, Session, User, compile};
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

    /// What the three memories hold now, while the program waits for its next line.
    fn copy(&self, memory: Memory) -> [MemoryCopy; 3] {
        let applications = self.session.applications();
        let process = &applications[0]["processes"][0];
        let card = process["pid"].as_i64().expect("an offload process") as i32;
        let host = self.host.parse().expect("a number");
        [
            memory.buffer.copy(card),
            memory.own.copy(card),
            memory.here.copy(host),
        ]
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

/// Where the three memories of the program are.
#[derive(Clone, Copy)]
struct Memory {
    buffer: Region,
    own: Region,
    here: Region,
}

impl Memory {
    fn told(line: &str) -> Self {
        let mut words = line.split_whitespace().skip(1);
        Self {
            buffer: Region::told(&mut words),
            own: Region::told(&mut words),
            here: Region::told(&mut words),
        }
    }
}

fn expect_same(found: &[MemoryCopy; 3], copies: &[MemoryCopy; 3], point: &str) {
    let names = ["the buffer", "the offload process", "the host process"];
    for (name, (found, copy)) in names.iter().zip(found.iter().zip(copies)) {
        found.expect_is(copy, &format!("{name}, point {point}"));
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
    let memory = Memory::told(&app.run.wait_for("memory "));
    let mut said = vec![app.run.wait_for("sum 0: ")];
    let mut copies = Vec::new();
    // How often a snapshot is full follows from their cost, unless it is told.
    let manners: [&[&str]; 7] = [
        &[],
        &["--full-every", "9"],
        &["--full-every", "9", "--codec", "lz4"],
        &["--full-every", "9", "--incremental", "--codec", "zstd:1"],
        &["--full-every", "9", "--codec", "deflate:1", "--live"],
        &["--full-every", "9", "--codec", "auto"],
        &["--full-every", "9", "--stop"],
    ];
    for (round, manner) in manners.iter().enumerate() {
        copies.push(app.copy(memory));
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
        if round == 3 {
            session.succeed(["clean", "snap", "--keep", "3"]);
        }
    }
    drop(app.stdin);
    app.run.finish();
    session.expect_no_process();
    session.succeed(["verify", "snap"]);
    // Each of them that is left, the last one last.
    assert_eq!(session.points("snap"), [2, 3, 4, 5, 6, 7]);
    for (round, sums) in said.iter().enumerate().skip(1) {
        let point = (round + 1).to_string();
        let mut app = App::start(&session, &["restart", "snap", "--at", &point]);
        // Nothing is changed, and the digests are the same.
        let now = app.change(0, round + 1);
        let digests = |line: &str| line.split(": ").nth(1).map(str::to_owned);
        assert_eq!(digests(&now), digests(sums), "point {point}");
        expect_same(&app.copy(memory), &copies[round], &point);
        if round + 1 < said.len() {
            app.kill();
            continue;
        }
        // It goes on with its chain, on the card as well.
        let sums = app.change(20, round + 2);
        let copies = app.copy(memory);
        let report = app.checkpoint(&["--full-every", "9"]);
        assert_eq!(report["parent"], round as u64 + 1, "{report}");
        assert!(saved(&report).0 < 2 << 20, "{report}");
        app.kill();
        let mut app = App::start(&session, &["restart", "snap"]);
        let now = app.change(0, round + 3);
        assert_eq!(digests(&now), digests(&sums));
        expect_same(&app.copy(memory), &copies, "after a restart");
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
