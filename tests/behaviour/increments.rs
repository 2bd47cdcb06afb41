//! Incremental snapshots: what is restarted from any point of a chain is the memory of that moment, byte for byte, however the
//! points came about.

use rustix::process::{Pid, Signal, kill_process};
use snapify_tests::{Language, Session, User, compile, poll_until};
use std::fs::File;
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

/// The region of memory that the program tells of.
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    bytes: u64,
}

fn signal(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("an id");
    kill_process(pid, signal).expect("send a signal");
}

/// Stops a process, and waits until it stands still.
fn stop(pid: i32) {
    signal(pid, Signal::STOP);
    poll_until("it has stopped", || is_stopped(pid));
}

fn is_stopped(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("State:\tT (stopped)")
}

/// What is in the region now: protections one after the other, and bytes.
fn content(pid: i32, region: Region) -> (Vec<String>, Vec<u8>) {
    let mut memory = vec![0; region.bytes as usize];
    let file = File::open(format!("/proc/{pid}/mem")).expect("open its memory");
    file.read_exact_at(&mut memory, region.start)
        .expect("read its memory");
    let maps = File::open(format!("/proc/{pid}/maps")).expect("open its mappings");
    let lines = std::io::BufReader::new(maps).lines().map_while(Result::ok);
    let mut protections = Vec::new();
    for line in lines {
        let start = u64::from_str_radix(line.split('-').next().unwrap_or_default(), 16);
        let start = start.expect("an address");
        if (region.start..region.start + region.bytes).contains(&start) {
            protections.extend(line.split_whitespace().nth(1).map(str::to_owned));
        }
    }
    // Mappings next to each other may be one or several.
    protections.dedup();
    (protections, memory)
}

/// The processes of a session that keep account of its programs' memory.
fn keepers(session: &Session) -> Vec<i32> {
    let is_keeper = |pid: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name == "snapify-keeper\n"
    };
    session.processes().into_iter().filter(is_keeper).collect()
}

fn checkpoint(session: &Session, pid: i32, args: &[&str]) -> serde_json::Value {
    let pid = pid.to_string();
    let args = [&["checkpoint", &pid, "--json"], args].concat();
    serde_json::from_str(&session.succeed(args)).expect("a report")
}

/// Restarts a point of a chain of a program that was stopped, which it is then, too; returns the program's id.
fn restart(session: &Session, dir: &str, point: u64) -> i32 {
    let name = format!("pid-{dir}-{point}");
    let point = point.to_string();
    let mut command = session.snapify(["restart", dir, "--at", &point, "--detach"]);
    // The program has its standard streams, which would last as long as it does.
    let errors = File::create(session.path("errors")).expect("make a file");
    command
        .args(["--pid-file", &name])
        .stdout(Stdio::null())
        .stderr(errors);
    let status = command.status().expect("start it");
    let errors = std::fs::read_to_string(session.path("errors")).expect("read the file");
    assert!(status.success(), "{errors}");
    let pid = std::fs::read_to_string(session.path(&name)).expect("its id");
    let pid = pid.trim().parse().expect("a number");
    poll_until("it has stopped", || is_stopped(pid));
    pid
}

/// A process and its children, which have none.
fn family(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).expect("its children");
    let mut all = vec![pid];
    all.extend(children.split_whitespace().flat_map(str::parse::<i32>));
    all
}

/// What is in the region in each process of a family.
fn contents(pid: i32, region: Region) -> Vec<(Vec<String>, Vec<u8>)> {
    let family = family(pid).into_iter();
    family.map(|pid| content(pid, region)).collect()
}

fn kill(pid: i32) {
    for pid in family(pid).into_iter().rev() {
        signal(pid, Signal::KILL);
    }
}

/// Chains of a program of so many processes.
fn random_chains(user: User, seed: u64, processes: usize) {
    let session = Session::of(user);
    let mut command = session.command(compile("changes.c", Language::C));
    command
        .args([seed.to_string(), processes.to_string()])
        .stdin(Stdio::null());
    let mut program = session.start(&mut command);
    program.wait_for("ready");
    let mut words = program.output.split_whitespace().skip(1);
    let mut number = || words.next().and_then(|word| word.parse().ok());
    let region = Region {
        start: number().expect("an address"),
        bytes: number().expect("a size"),
    };
    let mut random = seed;
    let mut below = |end: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    let manners: [&[&str]; 5] = [
        &[],
        &["--live"],
        &["--full"],
        &["--incremental"],
        &["--full-every", "3"],
    ];
    let mut points = Vec::new();
    let mut incremental = 0;
    for round in 0..8 {
        std::thread::sleep(std::time::Duration::from_millis(below(30)));
        family(program.pid()).into_iter().for_each(stop);
        let copy = contents(program.pid(), region);
        assert_eq!(copy.len(), processes);
        // All that is known lies with the keeper: without it everything counts as changed.
        if round == 5 {
            for keeper in keepers(&session) {
                signal(keeper, Signal::KILL);
                poll_until("it has ended", || keepers(&session).is_empty());
            }
        }
        // A checkpoint that fails leaves what is known as it should be.
        if round % 3 == 2 {
            let pid = program.pid().to_string();
            let failed = session.run(["checkpoint", &pid, "/proc/nowhere"]);
            assert!(!failed.status.success(), "{failed:?}");
        }
        let dir = ["a", "b"][below(2) as usize];
        let manner = manners[if round < 2 { 0 } else { below(5) as usize }];
        let report = checkpoint(&session, program.pid(), &[&[dir], manner].concat());
        if round == 5 && manner.first() != Some(&"--incremental") {
            assert_eq!(report["parent"], serde_json::Value::Null, "{report}");
        }
        incremental += u32::from(!report["parent"].is_null());
        points.push((dir, report["point"].as_u64().expect("a number"), copy));
        for pid in family(program.pid()) {
            signal(pid, Signal::CONT);
        }
    }
    assert!(incremental > 0, "some of them build on others");
    kill(program.pid());
    program.finish();
    for (dir, point, copy) in points {
        let pid = restart(&session, dir, point);
        for pid in family(pid) {
            poll_until("it has stopped", || is_stopped(pid));
        }
        expect_same(&contents(pid, region), &copy, &format!("{point} of {dir}"));
        kill(pid);
    }
    session.expect_no_process();
}

fn expect_same(found: &[(Vec<String>, Vec<u8>)], copy: &[(Vec<String>, Vec<u8>)], point: &str) {
    assert_eq!(found.len(), copy.len(), "processes of point {point}");
    for (process, (found, copy)) in found.iter().zip(copy).enumerate() {
        assert_eq!(found.0, copy.0, "mappings of {process}, point {point}");
        let page = found.1.chunks(4096).zip(copy.1.chunks(4096));
        let wrong: Vec<usize> = page
            .enumerate()
            .filter(|(_, (found, copy))| found != copy)
            .map(|(page, _)| page)
            .collect();
        assert!(
            wrong.is_empty(),
            "pages {wrong:?} of {process}, point {point}"
        );
    }
}

/// A restarted program goes on with its chain, and its chain with it, over generations.
#[test]
fn chains_go_on_over_restarts() {
    let session = Session::new();
    let mut command = session.command(compile("changes.c", Language::C));
    command.args(["7", "2"]).stdin(Stdio::null());
    let mut program = session.start(&mut command);
    program.wait_for("ready");
    let mut words = program.output.split_whitespace().skip(1);
    let mut number = || words.next().and_then(|word| word.parse().ok());
    let region = Region {
        start: number().expect("an address"),
        bytes: number().expect("a size"),
    };
    let mut pid = program.pid();
    let mut first = Some(program);
    let mut points = Vec::new();
    for generation in 0..4_u64 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        family(pid).into_iter().for_each(stop);
        let copy = contents(pid, region);
        let report = checkpoint(&session, pid, &["snap", "--full-every", "9"]);
        let parent = report["parent"].as_u64().unwrap_or(0);
        assert_eq!(parent, generation, "{report}");
        let point = report["point"].as_u64().expect("a number");
        kill(pid);
        if let Some(program) = first.take() {
            program.finish();
        }
        session.expect_no_process();
        pid = restart(&session, "snap", point);
        for pid in family(pid) {
            poll_until("it has stopped", || is_stopped(pid));
        }
        expect_same(&contents(pid, region), &copy, &point.to_string());
        points.push((point, copy));
        for pid in family(pid) {
            signal(pid, Signal::CONT);
        }
    }
    kill(pid);
    session.expect_no_process();
    for (point, copy) in points {
        let pid = restart(&session, "snap", point);
        for pid in family(pid) {
            poll_until("it has stopped", || is_stopped(pid));
        }
        expect_same(&contents(pid, region), &copy, &point.to_string());
        kill(pid);
    }
    session.expect_no_process();
}

#[test]
fn every_point_of_random_chains_is_its_moment() {
    random_chains(User::Ordinary, 1, 1);
}

#[test]
fn every_point_of_random_chains_of_a_tree_is_its_moment() {
    random_chains(User::Ordinary, 3, 3);
}

#[test]
fn chains_of_root() {
    if rustix::process::geteuid().is_root() {
        random_chains(User::Myself, 2, 2);
    }
}

#[test]
fn a_schedule_takes_incremental_ones_if_told_to() {
    let session = Session::new();
    let mut command = session.command(compile("fill.c", Language::C));
    command.arg("4").stdin(Stdio::piped());
    let mut program = session.start(&mut command);
    let _stdin = program.take_stdin();
    program.wait_for("ready");
    let pid = program.pid().to_string();
    let mut watch = session.snapify([
        "watch",
        &pid,
        "snap",
        "--every",
        "100ms",
        "--incremental",
        "--json",
    ]);
    let mut watch = session.start(&mut watch);
    poll_until("there is one that builds on another", || {
        let told = session.run(["inspect", "snap", "--json"]).stdout;
        let told: serde_json::Value = serde_json::from_str(&told).unwrap_or_default();
        let points = told["points"].as_array().cloned().unwrap_or_default();
        points.iter().any(|point| !point["parent"].is_null())
    });
    signal(program.pid(), Signal::KILL);
    program.finish();
    watch.wait_for("end");
    watch.finish();
    session.succeed(["verify", "snap"]);
    session.expect_no_process();
}

#[test]
fn a_restarted_program_goes_on_with_its_chain() {
    let session = Session::new();
    let mut command = session.command(compile("fill.c", Language::C));
    command.arg("8").stdin(Stdio::piped());
    let mut program = session.start(&mut command);
    let _stdin = program.take_stdin();
    program.wait_for("ready");
    let pid = program.pid();
    assert!(checkpoint(&session, pid, &["snap", "--incremental"])["parent"].is_null());
    let report = checkpoint(&session, pid, &["snap"]);
    assert_eq!(report["parent"], 1, "{report}");
    // What it fills its memory with does not change.
    let bytes = report["file_bytes"].as_u64().expect("bytes");
    assert!(bytes < 4 << 20, "{report}");
    stop(pid);
    let report = checkpoint(&session, pid, &["snap", "--stop"]);
    assert_eq!(report["parent"], 2, "{report}");
    program.finish();

    let pid = restart(&session, "snap", 3);
    // What it writes has been followed since: nothing needs to be compared.
    let report = checkpoint(&session, pid, &["snap"]);
    assert_eq!(
        (&report["point"], &report["parent"]),
        (&4.into(), &3.into())
    );
    let bytes = report["file_bytes"].as_u64().expect("bytes");
    assert!(bytes < 4 << 20, "{report}");
    let report = checkpoint(&session, pid, &["snap"]);
    assert_eq!(report["parent"], 4, "{report}");
    assert!(checkpoint(&session, pid, &["snap", "--full"])["parent"].is_null());
    session.succeed(["verify", "snap"]);
    signal(pid, Signal::KILL);
    session.expect_no_process();

    // From an older point it cannot go on with the newest.
    let pid = restart(&session, "snap", 4);
    let report = checkpoint(&session, pid, &["snap"]);
    assert!(report["parent"].is_null(), "{report}");
    signal(pid, Signal::KILL);
    session.expect_no_process();
}
