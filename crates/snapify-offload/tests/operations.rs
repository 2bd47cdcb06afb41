//! The operations on one offload process, out of turn and with an engine that fails them: each says why, and the process
//! goes on.
#![allow(unsafe_code)]

mod support;

use snapify_offload::control::{HostToSupervisor, SupervisorToHost};
use snapify_offload::host::{ImageFiles, Process, State};
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{House, load, read_word, write_word};

const MEMORY: u64 = 256 << 20;

const CODE: &str = r#"
    #include <stdint.h>
    void count(uint64_t *at) { __atomic_fetch_add(at, 1, __ATOMIC_RELAXED); }
"#;

/// A process with a counter that functions of it count up.
struct Counter {
    process: Arc<Process>,
    count: u64,
    counter: u64,
}

impl Counter {
    fn new(house: &House) -> Self {
        let process = house.runtime.create_process(0).unwrap();
        let [count] = load(&process, CODE, ["count"]);
        let counter = process.alloc(8).unwrap();
        write_word(&process, counter, 0);
        Self {
            process,
            count,
            counter,
        }
    }

    fn runs(&self) {
        let before = read_word(&self.process, self.counter);
        self.process
            .run(self.count, &[self.counter], "count")
            .unwrap();
        assert_eq!(read_word(&self.process, self.counter), before + 1);
        assert_eq!(self.process.state(), State::Running);
    }
}

fn files() -> ImageFiles {
    let file = || tempfile::tempfile().unwrap();
    ImageFiles {
        process: file(),
        pages: file(),
        store: file(),
    }
}

fn refused<T: std::fmt::Debug>(outcome: Result<T, snapify_offload::OffloadError>, words: &str) {
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains(words), "no '{words}' in '{error}'");
}

#[test]
fn out_of_turn_they_are_refused() {
    let house = House::new(2, MEMORY);
    let counter = Counter::new(&house);
    let process = &counter.process;
    refused(process.capture(&files(), false), "not paused");
    refused(process.resume(), "not paused");
    refused(process.release(None), "not paused");
    refused(process.restore(1, &files()), "not swapped out");
    refused(process.migrate(0), "on that card already");
    refused(process.migrate(7), "no card 7");
    counter.runs();

    let paused = process.pause().unwrap();
    assert_eq!((paused.id, paused.card), (process.id(), 0));
    assert_eq!(process.state(), State::Paused);
    refused(process.pause(), "paused already");
    refused(process.release(None), "not saved");
    refused(process.migrate(1), "paused already");
    process.resume().unwrap();
    refused(process.resume(), "not paused");
    counter.runs();
}

#[test]
fn what_the_engine_fails_leaves_the_process_running() {
    let house = House::new(2, MEMORY);
    let counter = Counter::new(&house);
    let process = &counter.process;
    for hold in [false, true] {
        process.pause().unwrap();
        let saving = process.capture(&files(), hold).unwrap();
        refused(saving.wait(), "saves nothing");
        refused(saving.wait(), "saves nothing");
        if hold {
            refused(process.release(None), "saves nothing");
        } else {
            refused(process.release(None), "gone on");
        }
        process.resume().unwrap();
        counter.runs();
    }
    refused(process.migrate(1), "saves nothing");
    assert_eq!(process.card(), 0);
    counter.runs();
}

#[test]
fn others_go_on_while_one_is_paused() {
    let house = House::new(2, MEMORY);
    let (paused, other) = (Counter::new(&house), Counter::new(&house));
    paused.process.pause().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Whatever needs the paused one waits, and keeps nobody else from anything.
        scope.spawn(|| {
            load(&paused.process, CODE, ["count"]);
            assert!(done.load(Ordering::SeqCst));
        });
        scope.spawn(|| {
            paused
                .process
                .copy_to(&other.process, other.counter, paused.counter, 8)
                .unwrap();
            assert!(done.load(Ordering::SeqCst));
        });
        scope.spawn(|| {
            paused.runs();
            assert!(done.load(Ordering::SeqCst));
        });
        for _ in 0..100 {
            other
                .process
                .run(other.count, &[other.counter], "count")
                .unwrap();
            other.process.pause().unwrap();
            other.process.resume().unwrap();
        }
        let brief = Counter::new(&house);
        brief.runs();
        brief.process.destroy().unwrap();
        // A snapshot of the whole would have to wait for the caller, and does not.
        let HostToSupervisor::Failed { message } = house.pause() else {
            panic!("the snapshot was not refused")
        };
        assert!(message.contains("paused already"), "{message}");
        house.resume();
        done.store(true, Ordering::SeqCst);
        paused.process.resume().unwrap();
    });
    other.runs();
}

#[test]
fn a_paused_process_that_dies_or_is_destroyed_keeps_nobody_waiting() {
    let house = House::new(1, MEMORY);
    let counter = Counter::new(&house);
    counter.process.pause().unwrap();
    // SAFETY: a process that this test started.
    unsafe { libc::kill(counter.process.pid(), libc::SIGKILL) };
    while counter.process.state() != State::Dead {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(counter.process.alloc(8).is_err()));
        refused(counter.process.resume(), "signal 9");
    });
    let destroyed = Counter::new(&house);
    destroyed.process.pause().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(destroyed.process.alloc(8).is_err()));
        destroyed.process.destroy().unwrap();
    });
    house.cards[0].await_count(0);
}

#[test]
fn the_supervisor_asks_for_the_same() {
    let house = House::new(2, MEMORY);
    let counter = Counter::new(&house);
    let id = counter.process.id();
    let ask = |request: &SupervisorToHost, fds: &[&File]| {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        house.agent.send(request, &fds).unwrap();
        house.agent.recv::<HostToSupervisor>().unwrap().0
    };
    match ask(&SupervisorToHost::Processes, &[]) {
        HostToSupervisor::Processes { processes } => assert_eq!(processes[0].id, id),
        other => panic!("{other:?}"),
    }
    let failed = |answer: HostToSupervisor, words: &str| match answer {
        HostToSupervisor::Failed { message } if message.contains(words) => {}
        other => panic!("no '{words}' in {other:?}"),
    };
    let file = tempfile::tempfile().unwrap();
    let files = [&file; 3];
    failed(
        ask(&SupervisorToHost::SwapIn { id, card: 1 }, &files),
        "not swapped out",
    );
    failed(
        ask(&SupervisorToHost::SwapIn { id, card: 1 }, &[]),
        "descriptors",
    );
    failed(
        ask(&SupervisorToHost::SwapOut { id }, &files),
        "descriptors",
    );
    failed(
        ask(&SupervisorToHost::Migrate { id, card: 1 }, &[]),
        "saves nothing",
    );
    let unknown = snapify_offload::ProcessId(7);
    failed(
        ask(
            &SupervisorToHost::Migrate {
                id: unknown,
                card: 1,
            },
            &[],
        ),
        "no offload process",
    );
    let image = "/nowhere".into();
    failed(ask(&SupervisorToHost::Release { image }, &[]), "not paused");
    counter.runs();
    // A swap-out that is given up.
    let (ours, theirs) = snapify_fabric::Channel::pair().unwrap();
    let theirs = File::from(std::os::fd::OwnedFd::from(theirs));
    let answer = ask(
        &SupervisorToHost::SwapOut { id },
        &[&theirs, &file, &file, &file],
    );
    assert!(
        matches!(answer, HostToSupervisor::Saving { .. }),
        "{answer:?}"
    );
    failed(ask(&SupervisorToHost::Processes, &[]), "has to wait");
    drop(ours);
    assert!(matches!(
        ask(&SupervisorToHost::Resume, &[]),
        HostToSupervisor::Resumed
    ));
    counter.runs();
}
