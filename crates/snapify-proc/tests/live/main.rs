//! Programs that go on while their memory is saved from copies: what is saved is the memory of one moment, and nothing of the
//! copies remains. As root and as an ordinary user.

#[path = "../kinds/stage.rs"]
#[allow(dead_code)]
mod stage;

use stage::{Running, Stage, User};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Starts the engine to save a program that goes on, and waits until it does.
fn save_live(stage: &Stage, pid: i32, name: &str) -> Child {
    let mut engine = stage.engine();
    engine
        .arg("save")
        .arg(pid.to_string())
        .arg(stage.path(name))
        .arg("--live")
        .stderr(Stdio::piped());
    let mut engine = engine.spawn().unwrap();
    let mut text = String::new();
    BufReader::new(engine.stderr.as_mut().unwrap())
        .read_line(&mut text)
        .unwrap();
    assert!(text.contains("it goes on"), "{text}");
    engine
}

fn children(pid: i32) -> Vec<i32> {
    let mut children = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let list = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap();
        children.extend(list.split_whitespace().map(|id| id.parse::<i32>().unwrap()));
    }
    children
}

/// What /proc tells about a process in one line: its name and the letter of its state.
fn state(pid: i32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let end = stat.rfind(')').map_or(0, |end| end + 3);
    stat[stat.find('(').unwrap_or(0)..end].to_owned()
}

#[test]
fn what_is_saved_is_one_moment() {
    for user in User::all() {
        let stage = Stage::of("live", "writers", user);
        let original = stage.start();
        let child = children(original.pid());
        for round in 0..4_u64 {
            std::thread::sleep(Duration::from_micros(round * 7919 % 20_000));
            let mut engine = save_live(&stage, original.pid(), &format!("round{round}"));
            assert!(engine.wait().unwrap().success());
            assert_eq!(children(original.pid()), child);
        }
        original.go_on_and_be_fine();
        for round in 0..4 {
            stage.restore(&format!("round{round}")).go_on_and_be_fine();
        }
        // What is restored, where ids are not ours, can be saved so too.
        let restored = stage.restore("round0");
        let mut engine = save_live(&stage, restored.pid(), "again");
        assert!(engine.wait().unwrap().success());
        restored.go_on_and_be_fine();
        stage.restore("again").go_on_and_be_fine();
    }
}

#[test]
fn signals_that_are_ignored_or_pending_stay_so() {
    for user in User::all() {
        for program in ["all_ignored", "all_pending"] {
            let stage = Stage::of("kinds", program, user);
            let original = stage.start();
            for name in ["first", "second"] {
                let mut engine = save_live(&stage, original.pid(), name);
                assert!(engine.wait().unwrap().success());
            }
            original.go_on_and_be_fine();
            let restored = stage.restore("second");
            let mut engine = save_live(&stage, restored.pid(), "third");
            assert!(engine.wait().unwrap().success());
            restored.go_on_and_be_fine();
            stage.restore("third").go_on_and_be_fine();
        }
    }
}

#[test]
fn what_a_copy_does_not_have_is_saved_too() {
    for user in User::all() {
        let stage = Stage::of("live", "flags", user);
        for kind in ["plain", "left-out", "locked", "nameless"] {
            let original = stage.start_with(|command| {
                command.arg(kind);
            });
            for round in 0..2_u64 {
                std::thread::sleep(Duration::from_micros(round * 7919));
                let engine = save_live(&stage, original.pid(), &format!("{kind}{round}"));
                let output = engine.wait_with_output().unwrap();
                let text = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{kind}: {text}");
            }
            original.go_on_and_be_fine();
            for round in 0..2 {
                let restored = stage.restore(&format!("{kind}{round}"));
                restored.go_on_and_be_fine();
            }
        }
    }
}

#[test]
fn memory_that_another_process_watches_is_refused() {
    for user in User::all() {
        let stage = Stage::of("live", "flags", user);
        for kind in ["watched", "watched-file"] {
            let start = |command: &mut std::process::Command| {
                command.arg(kind);
            };
            let program = stage.start_with(start);
            let save = |live: bool| {
                let mut engine = stage.engine();
                engine.arg("save").arg(program.pid().to_string());
                engine.arg(stage.path("none"));
                engine.args(live.then_some("--live"));
                let output = engine.output().unwrap();
                assert!(!output.status.success(), "{kind}");
                String::from_utf8_lossy(&output.stderr).into_owned()
            };
            for text in [stage.check(program.pid()), save(false), save(true)] {
                assert!(
                    text.contains("it is watched with userfaultfd"),
                    "{kind}: {text}"
                );
            }
            program.go_on_and_be_fine();
        }
    }
}

/// The engine hangs in the writing of pages while the copies are there.
fn hanging(stage: &Stage, program: &Running) -> (Child, Vec<i32>, File) {
    let folder = stage.path("hangs");
    std::fs::create_dir_all(&folder).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&folder, open).unwrap();
    let pages = folder.join("pages.snap");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pages,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&pages, open).unwrap();
    let before = children(program.pid());
    let engine = save_live(stage, program.pid(), "hangs");
    let copies: Vec<i32> = children(program.pid())
        .into_iter()
        .filter(|pid| !before.contains(pid))
        .collect();
    let pipe = File::open(&pages).unwrap();
    std::fs::remove_file(&pages).unwrap();
    (engine, copies, pipe)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_copy_dies_with_its_maker() {
    for user in User::all() {
        let stage = Stage::of("live", "writers", user);
        let program = stage.start();
        let (mut engine, copies, _pipe) = hanging(&stage, &program);
        let [copy] = copies[..] else {
            panic!("{copies:?}");
        };
        assert_eq!(state(copy), "(snapify-copy) t");
        // It keeps nothing open that its original may close.
        let open = std::fs::read_dir(format!("/proc/{copy}/fd")).unwrap();
        assert_eq!(open.count(), 0);
        engine.kill().unwrap();
        engine.wait().unwrap();
        until("the copy dies", || state(copy) == "(snapify-copy) Z");
        let mut clean = stage.engine();
        let clean = clean.arg("reap").arg(program.pid().to_string());
        assert!(clean.status().unwrap().success());
        assert_eq!(state(copy), "");
        program.go_on_and_be_fine();
    }
}

#[test]
fn a_program_may_end_before_it_is_saved() {
    for user in User::all() {
        let stage = Stage::of("live", "writers", user);
        let program = stage.start();
        let (mut engine, _, mut pipe) = hanging(&stage, &program);
        drop(program);
        // The engine itself has the pipe open for reading: there is no end of it before its own.
        let mut pages = File::create(stage.path("hangs/pages.snap")).unwrap();
        let copy = std::thread::spawn(move || std::io::copy(&mut pipe, &mut pages).unwrap());
        assert!(engine.wait().unwrap().success());
        copy.join().unwrap();
        stage.restore("hangs").go_on_and_be_fine();
    }
}

#[test]
fn without_room_for_a_copy_nothing_happens() {
    // Root may have as many processes as it likes.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let stage = Stage::of("live", "writers", User::Ordinary);
    let program = stage.start_with(|command| {
        command.arg("alone");
    });
    let before = children(program.pid());
    let mut engine = stage.engine();
    engine
        .arg("save")
        .arg(program.pid().to_string())
        .arg(stage.path("none"))
        .arg("--live");
    let output = engine.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && text.contains("clone3"),
        "{text}"
    );
    assert_eq!(children(program.pid()), before);
    program.go_on_and_be_fine();
}
