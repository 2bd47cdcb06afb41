//! Threads and memory, end to end: programs that are saved, killed and restored, at a quiet moment and at random ones, as root and as
//! an ordinary user.

mod contract;
#[path = "../kinds/stage.rs"]
#[allow(dead_code)]
mod stage;

use stage::{Stage, User};
use std::time::Duration;

/// Runs a program of `programs/` through a save after which it goes on, and through two generations of restores.
fn survives(program: &str) {
    for user in User::all() {
        let stage = Stage::of("core", program, user);
        stage.survives(|| stage.start());
    }
}

#[test]
fn threads() {
    survives("threads");
}

#[test]
fn memory() {
    survives("memory");
}

#[test]
fn blocking_calls() {
    survives("calls");
}

#[test]
fn a_stopped_process_stays_stopped() {
    for user in User::all() {
        let stage = Stage::of("core", "threads", user);
        let original = stage.start();
        let pid = original.pid();
        signal(pid, libc::SIGSTOP);
        wait_for_state(pid, 'T');
        stage.save(pid, "kept", false);
        // Let go, it runs for a moment in the kernel until it has stopped again.
        wait_for_state(pid, 'T');
        stage.save(pid, "stopped", true);
        original.expect_killed();
        let restored = stage.restore("stopped");
        wait_for_state(restored.pid(), 'T');
        signal(restored.pid(), libc::SIGCONT);
        restored.go_on_and_be_fine();
    }
}

/// The program works in all its threads all the time, and checks itself; it is saved at moments that nobody has chosen.
#[test]
fn random_moments() {
    for user in User::all() {
        let stage = Stage::of("core", "busy", user);
        let mut running = stage.start();
        for round in 0..8_u64 {
            std::thread::sleep(Duration::from_micros(round * 7919 % 40_000));
            let name = format!("round{round}");
            stage.save(running.pid(), &name, round % 2 == 1);
            if round % 2 == 1 {
                running.expect_killed();
                running = stage.restore(&name);
            }
        }
        running.go_on_and_be_fine();
    }
}

fn signal(pid: i32, signal: i32) {
    snapify_sys::process::kill(pid, signal).unwrap();
}

fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

fn wait_for_state(pid: i32, wanted: char) {
    let begin = std::time::Instant::now();
    while state(pid) != wanted {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "process {pid} is in state {}",
            state(pid)
        );
        std::thread::yield_now();
    }
}

/// The vDSO of a fresh process lies, without address randomization, where that of every other does; the program has moved its own by
/// half its length. The restore has to move the one to where the other was, over itself.
#[test]
fn the_vdso_is_moved_over_itself() {
    // SAFETY: changes a flag of this thread, which programs that it starts inherit.
    let before = unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
    assert_ne!(before, -1);
    let stage = Stage::of("core", "vdso", User::Ourselves);
    // Linked statically, so that the program itself has nothing at that place.
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/core/programs/vdso.c");
    let status = std::process::Command::new("cc")
        .args(["-O1", "-static", "-o"])
        .arg(stage.path("vdso"))
        .arg(source)
        .status()
        .unwrap();
    assert!(status.success());
    let maps = stage
        .command("cat")
        .arg("/proc/self/maps")
        .output()
        .unwrap();
    let maps = String::from_utf8(maps.stdout).unwrap();
    let start = maps.lines().find(|line| line.contains("[vvar")).unwrap();
    let start = u64::from_str_radix(start.split('-').next().unwrap(), 16).unwrap();
    let program = stage.start_with(|command| {
        command.arg(format!("{:x}", start + 0x3000));
    });
    stage.save(program.pid(), "snap", true);
    program.expect_killed();
    stage.restore("snap").go_on_and_be_fine();
}
