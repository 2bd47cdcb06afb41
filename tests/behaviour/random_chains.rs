//! Random chains: snapshots of programs that change their memory all the time, of every kind and with every codec, cleaned in between.
//! What is restarted from any of them is the memory of that moment: it is compared byte for byte with a copy that was taken
//! then, without any of the code under test.

use rustix::process::Signal;
use snapify_tests::{
    Language, MemoryCopy, Region, Running, Session, User, compile, continue_family, family,
    kill_family, poll_until, signal, stop_family,
};
use std::process::Stdio;

const CODECS: [&str; 7] = [
    "none",
    "lz4",
    "zstd:1",
    "zstd:-3",
    "zstd:9",
    "deflate:1",
    "auto",
];

const MANNERS: [&[&str]; 7] = [
    &[],
    &["--live"],
    &["--full"],
    &["--incremental"],
    &["--full-every", "3"],
    &["--full-every", "9", "--live"],
    &["--incremental", "--live"],
];

/// What is random here.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A point, and what was in the memory of each process then.
struct Saved {
    dir: &'static str,
    point: u64,
    copies: Vec<MemoryCopy>,
}

impl Saved {
    /// Restarts it when nothing of the session runs, compares, and ends it.
    fn check(&self, session: &Session, region: Region) {
        let pid = session.restart_stopped(self.dir, self.point);
        expect_same(&copies(pid, region), &self.copies, self.dir, self.point);
        kill_family(pid);
        // Those that were saved after a restart use the same socket: one after the other.
        session.expect_no_process();
    }
}

fn start(session: &Session, seed: u64, processes: usize) -> (Running, Region) {
    let mut command = session.command(compile("changes.c", Language::C));
    command
        .args([seed.to_string(), processes.to_string()])
        .stdin(Stdio::null());
    let mut program = session.start(&mut command);
    let said = program.wait_for("ready");
    let region = Region::told(&mut said.split_whitespace().skip(1));
    (program, region)
}

/// What is in the region in each process of a family.
fn copies(pid: i32, region: Region) -> Vec<MemoryCopy> {
    let family = family(pid).into_iter();
    family.map(|pid| region.copy(pid)).collect()
}

fn expect_same(found: &[MemoryCopy], copies: &[MemoryCopy], dir: &str, point: u64) {
    assert_eq!(found.len(), copies.len(), "processes of {point} in {dir}");
    for (process, (found, copy)) in found.iter().zip(copies).enumerate() {
        found.expect_is(copy, &format!("process {process}, point {point} of {dir}"));
    }
}

/// Removes the older points of a chain, and forgets them. The program runs meanwhile.
fn clean(session: &Session, dir: &str, keep: u64, saved: &mut Vec<Saved>) {
    session.succeed(["clean", dir, "--keep", &keep.to_string()]);
    let there = session.points(dir);
    assert!(!there.is_empty() && there.len() as u64 <= keep, "{there:?}");
    saved.retain(|saved| saved.dir != dir || there.contains(&saved.point));
    let left: Vec<u64> = saved
        .iter()
        .filter(|saved| saved.dir == dir)
        .map(|saved| saved.point)
        .collect();
    assert_eq!(left, there, "points of {dir}");
}

/// Chains of a program of so many processes, in two directories.
fn random_chains(user: User, seed: u64, processes: usize) {
    let session = Session::of(user);
    let (program, region) = start(&session, seed, processes);
    let mut chance = Chance(seed);
    let mut saved = Vec::new();
    let mut incremental = 0;
    for round in 0..9 {
        std::thread::sleep(std::time::Duration::from_millis(chance.below(30)));
        stop_family(program.pid());
        let copies = copies(program.pid(), region);
        assert_eq!(copies.len(), processes);
        // All that is known lies with the keeper: without it everything counts as changed.
        if round == 5 {
            for keeper in session.keepers() {
                signal(keeper, Signal::KILL);
                poll_until("it has ended", || session.keepers().is_empty());
            }
        }
        // A checkpoint that fails leaves what is known as it should be.
        if round % 3 == 2 {
            let pid = program.pid().to_string();
            let failed = session.run(["checkpoint", &pid, "/proc/nowhere"]);
            assert!(!failed.status.success(), "{failed:?}");
        }
        let dir = chance.of(&["a", "b"]);
        let manner = if round < 2 { &[] } else { chance.of(&MANNERS) };
        let codec = chance.of(&CODECS);
        let args = [&[dir, "--codec", codec], manner].concat();
        let report = session.checkpoint(program.pid(), &args);
        incremental += u32::from(!report["parent"].is_null());
        let point = report["point"].as_u64().expect("a number");
        saved.push(Saved { dir, point, copies });
        continue_family(program.pid());
        if round == 3 || round == 6 {
            clean(&session, dir, 1 + chance.below(2), &mut saved);
        }
    }
    assert!(incremental > 0, "some of them build on others");
    kill_family(program.pid());
    program.finish();
    session.expect_no_process();
    for saved in saved {
        saved.check(&session, region);
    }
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

/// Whoever takes snapshots, cleans or copies is killed at any moment: each point that there is, is of the moment at which it was
/// taken, and the next snapshot succeeds.
#[test]
fn killed_tools_leave_whole_points() {
    let session = Session::new();
    let (program, region) = start(&session, 13, 2);
    let pid = program.pid().to_string();
    let mut chance = Chance(13);
    let mut saved: Vec<Saved> = Vec::new();
    for round in 0..12 {
        std::thread::sleep(std::time::Duration::from_millis(chance.below(10)));
        stop_family(program.pid());
        let copies = copies(program.pid(), region);
        let words: &[&str] = match chance.below(6) {
            0 => &["clean", "a", "--keep", "3"],
            1 => &["copy", "a", "b"],
            2 => &["checkpoint", &pid, "a", "--live"],
            3 => &["checkpoint", &pid, "a", "--incremental", "--codec", "lz4"],
            _ => &["checkpoint", &pid, "a"],
        };
        let killed = session.start(&mut session.snapify(words));
        std::thread::sleep(std::time::Duration::from_millis(chance.below(80)));
        killed.signal(Signal::KILL);
        killed.finish();
        session.checkpoint(program.pid(), &["a", "--full-every", "5"]);
        // Whatever is new is of this moment; and the newest copy may be anything but wrong.
        let there = session.points("a");
        let known = saved.last().map_or(0, |saved| saved.point);
        saved.retain(|saved| there.contains(&saved.point));
        for point in there.into_iter().filter(|&point| point > known) {
            saved.push(Saved {
                dir: "a",
                point,
                copies: copies.clone(),
            });
        }
        continue_family(program.pid());
        if round % 4 == 3 {
            session.succeed(["verify", "a"]);
            session.succeed(["copy", "a", "b"]);
            session.succeed(["verify", "b"]);
        }
    }
    assert!(!saved.is_empty());
    kill_family(program.pid());
    program.finish();
    session.expect_no_process();
    let newest = saved.last().expect("a point");
    let copied = Saved {
        dir: "b",
        point: newest.point,
        copies: newest.copies.clone(),
    };
    saved.push(copied);
    for saved in saved {
        saved.check(&session, region);
    }
}

/// A restarted program goes on with its chain, and its chain with it, over generations.
#[test]
fn chains_go_on_over_restarts() {
    let session = Session::new();
    let (program, region) = start(&session, 7, 2);
    let mut pid = program.pid();
    let mut first = Some(program);
    let mut saved = Vec::new();
    for generation in 0..4_u64 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        stop_family(pid);
        let copies = copies(pid, region);
        let codec = CODECS[generation as usize];
        let args = ["snap", "--full-every", "9", "--codec", codec];
        let report = session.checkpoint(pid, &args);
        let parent = report["parent"].as_u64().unwrap_or(0);
        assert_eq!(parent, generation, "{report}");
        let point = report["point"].as_u64().expect("a number");
        kill_family(pid);
        if let Some(program) = first.take() {
            program.finish();
        }
        session.expect_no_process();
        pid = session.restart_stopped("snap", point);
        expect_same(&self::copies(pid, region), &copies, "snap", point);
        saved.push(Saved {
            dir: "snap",
            point,
            copies,
        });
        continue_family(pid);
    }
    kill_family(pid);
    session.expect_no_process();
    for saved in saved {
        saved.check(&session, region);
    }
}

/// Where the kernel grants no userfaultfd(2), as in many containers, what is written cannot be followed. A process that may have
/// no further descriptor gets none either.
#[test]
fn where_changes_cannot_be_followed_memory_is_compared() {
    let session = Session::new();
    let (program, region) = start(&session, 11, 2);
    for pid in family(program.pid()) {
        let mut limit = session.command("prlimit");
        limit.args(["--nofile=3:64", "--pid", &pid.to_string()]);
        let limited = session.finish(&mut limit);
        assert!(limited.status.success(), "{limited:?}");
    }
    let mut pid = program.pid();
    let mut first = Some(program);
    let mut saved = Vec::new();
    for point in 1..=4_u64 {
        std::thread::sleep(std::time::Duration::from_millis(2));
        stop_family(pid);
        let copies = copies(pid, region);
        let id = pid.to_string();
        let mut args = vec!["checkpoint", &id, "snap", "--full-every", "9", "--json"];
        args.extend((point == 4).then_some("--stop"));
        let taken = session.run(args);
        assert!(taken.status.success(), "{taken:?}");
        // That is said once, when the chain begins.
        let said = taken.stderr.contains("cannot be followed");
        assert_eq!(said, point == 1, "{taken:?}");
        let report: serde_json::Value = serde_json::from_str(&taken.stdout).expect("a report");
        let parent = report["parent"].as_u64().unwrap_or(0);
        assert_eq!(parent, point - 1, "{report}");
        saved.push(Saved {
            dir: "snap",
            point,
            copies,
        });
        if point == 2 {
            // It is so after a restart, too.
            kill_family(pid);
            first.take().map(Running::finish);
            session.expect_no_process();
            pid = session.restart_stopped("snap", point);
        }
        if point < 4 {
            continue_family(pid);
        }
    }
    session.expect_no_process();
    for saved in saved {
        saved.check(&session, region);
    }
}

/// The program writes over all of its memory while a snapshot of it is being saved, which has nothing of that.
#[test]
fn what_is_written_during_a_live_snapshot_is_not_in_it() {
    let session = Session::new();
    let mut command = session.command(compile("scribble.c", Language::C));
    command.arg("8").stdin(Stdio::piped());
    let mut program = session.start(&mut command);
    let mut stdin = program.take_stdin();
    let said = program.wait_for("ready");
    let region = Region::told(&mut said.split_whitespace().skip(1));
    let pid = program.pid();
    let status = format!("/proc/{pid}/status");
    let mut saved = Vec::new();
    for (point, codec) in [(1, "deflate:9"), (2, "zstd:19"), (3, "deflate:9")] {
        let copies = vec![region.copy(pid)];
        let id = pid.to_string();
        let mut command = session.snapify(["checkpoint", &id, "snap", "--live", "--json"]);
        // The slower the better: there is time to write.
        command.args(["--full-every", "9", "--codec", codec, "--workers", "1"]);
        let mut taking = session.start(&mut command);
        poll_until("a copy is made and the program goes on", || {
            let status = std::fs::read_to_string(&status).unwrap_or_default();
            let alone = status.contains("TracerPid:\t0");
            (alone && family(pid).len() > 1) || !taking.is_running()
        });
        std::io::Write::write_all(&mut stdin, b"write\n").expect("tell the program");
        program.wait_for("written");
        let taken = taking.finish();
        assert!(taken.status.success(), "{taken:?}");
        let report: serde_json::Value = serde_json::from_str(&taken.stdout).expect("a report");
        assert_eq!(report["live"], true, "{report}");
        assert_eq!(report["parent"].as_u64().unwrap_or(0), point - 1);
        saved.push(Saved {
            dir: "snap",
            point,
            copies,
        });
    }
    drop(stdin);
    assert!(program.finish().status.success());
    for saved in saved {
        let name = format!("pid-{}", saved.point);
        let at = saved.point.to_string();
        let mut command = session.snapify(["restart", "snap", "--at", &at, "--pid-file", &name]);
        let mut again = session.start(command.stdin(Stdio::piped()));
        let stdin = again.take_stdin();
        let file = session.path(&name);
        let mut pid = None;
        poll_until("it has been restarted or has failed", || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            pid = text.trim().parse::<i32>().ok();
            pid.is_some() || !again.is_running()
        });
        // It waits for its next line: its memory stays as it is.
        let found = region.copy(pid.expect("it has been restarted"));
        found.expect_is(&saved.copies[0], &format!("point {}", saved.point));
        drop(stdin);
        assert!(again.finish().status.success());
    }
    session.expect_no_process();
}
