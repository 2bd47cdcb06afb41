//! Offload processes, daemons and host processes that die.
#![allow(unsafe_code)]

mod support;

use snapify_offload::{DeathCause, OffloadError};
use std::process::Command;
use std::time::{Duration, Instant};
use support::{House, load};

const MEMORY: u64 = 256 << 20;

const CODE: &str = r#"
    #include <unistd.h>
    #include <stdlib.h>
    void spin(void) { for (;;) usleep(1000); }
    void crash(void) { *(volatile int *)8 = 1; }
    void fail(void) { abort(); }
    void leave(void) { exit(3); }
    void none(void) {}
"#;

fn kill(pid: i32) {
    // SAFETY: a process that this test started.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
}

fn cause(error: &OffloadError) -> DeathCause {
    match error {
        OffloadError::ProcessDied { cause, card: 0, .. } => cause.clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_crash_names_the_function_and_the_daemon_lives_on() {
    let house = House::new(1, MEMORY);
    let cases = [
        ("crash", Some(libc::SIGSEGV), None),
        ("fail", Some(libc::SIGABRT), None),
        ("leave", None, Some(3)),
    ];
    for (name, signal, status) in cases {
        let process = house.runtime.create_process(0).unwrap();
        let [function] = load(&process, CODE, [name]);
        let error = process.run(function, &[], name).unwrap_err();
        let expected = DeathCause::Ended {
            signal,
            status,
            functions: vec![name.into()],
        };
        assert_eq!(cause(&error), expected);
        assert!(
            error.to_string().contains("card 0") && error.to_string().contains(name),
            "{error}"
        );
        // Everything else on it fails the same way, at once.
        assert_eq!(
            cause(&process.run(function, &[], name).unwrap_err()),
            expected
        );
        assert_eq!(cause(&process.alloc(1).unwrap_err()), expected);
        assert_eq!(
            cause(&process.load_library(b"", "x").unwrap_err()),
            expected
        );
        process.destroy().unwrap();
    }
    house.cards[0].await_count(0);
    let process = house.runtime.create_process(0).unwrap();
    let [none] = load(&process, CODE, ["none"]);
    process.run(none, &[], "none").unwrap();
}

#[test]
fn all_who_wait_for_a_killed_process_are_told_at_once() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let survivor = house.runtime.create_process(0).unwrap();
    let [spin] = load(&process, CODE, ["spin"]);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..70)
            .map(|_| scope.spawn(|| process.run(spin, &[], "spin")))
            .collect();
        while house.cards[0].pids().is_empty() || start.elapsed() < Duration::from_millis(300) {
            std::thread::yield_now();
        }
        let killed = Instant::now();
        kill(process.pid());
        for thread in waiting {
            let error = thread.join().unwrap().unwrap_err();
            assert!(
                matches!(
                    cause(&error),
                    DeathCause::Ended {
                        signal: Some(libc::SIGKILL),
                        ..
                    }
                ),
                "{error}"
            );
        }
        assert!(
            killed.elapsed() < Duration::from_secs(60),
            "{:?}",
            killed.elapsed()
        );
    });
    let [none] = load(&survivor, CODE, ["none"]);
    survivor.run(none, &[], "none").unwrap();
}

#[test]
fn a_lost_card_is_told_and_the_other_works_on() {
    let mut house = House::new(2, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let survivor = house.runtime.create_process(1).unwrap();
    let [spin] = load(&process, CODE, ["spin"]);
    let [none] = load(&survivor, CODE, ["none"]);
    let event = process.run_async(spin, &[], "spin").unwrap();
    house.cards[0].daemon.kill().unwrap();
    house.cards[0].daemon.wait().unwrap();
    assert_eq!(cause(&event.wait().unwrap_err()), DeathCause::CardLost);
    assert!(house.runtime.create_process(0).is_err());
    survivor.run(none, &[], "none").unwrap();
    process.destroy().unwrap();
}

#[test]
fn a_dead_host_process_leaves_nothing_on_the_card() {
    let mut host = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&host);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let house = House::with(vec![support::card(0, MEMORY, true)], MEMORY, Some(pidfd));
    assert_eq!(house.cards[0].warnings, [""; 0]);
    let process = house.runtime.create_process(0).unwrap();
    let [spin] = load(&process, CODE, ["spin"]);
    let event = process.run_async(spin, &[], "spin").unwrap();
    house.cards[0].await_count(1);
    // The daemon goes by the process it was told of, though this one holds the connection.
    host.kill().unwrap();
    host.wait().unwrap();
    assert!(event.wait().is_err());
    house.cards[0].await_count(0);
}

#[test]
fn processes_die_with_their_daemon_and_the_daemon_with_its_supervisor() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let pid = rustix::process::Pid::from_raw(process.pid()).unwrap();
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    drop(house);
    let mut fds = [rustix::event::PollFd::new(
        &pidfd,
        rustix::event::PollFlags::IN,
    )];
    let limit = rustix::event::Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1));
}
