//! The pause protocol while everything is going on.
#![allow(unsafe_code)]

mod support;

use snapify_fabric::Channel;
use snapify_offload::control::{
    CaptureEvent, CaptureProcess, HostToSupervisor, SaveForm, SupervisorToHost,
};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{House, load, noise, read, read_word, write, write_word};

const MEMORY: u64 = 1 << 30;

const CODE: &str = r#"
    #include <stdint.h>
    #include <stdlib.h>
    #include <string.h>
    #include <unistd.h>
    uint64_t global;
    void count(uint64_t *at) { __atomic_fetch_add(at, 1, __ATOMIC_RELAXED); }
    void nap(uint64_t *at, uint64_t us) { usleep(us); __atomic_fetch_add(at, 1, __ATOMIC_RELAXED); }
    void allocate(uint64_t *out, uint64_t bytes) { *out = (uint64_t)malloc(bytes); memset((void *)*out, 7, bytes); }
"#;

/// Does things to a card until told to stop, and counts them.
struct Storm<'a> {
    house: &'a House,
    stop: AtomicBool,
    done: AtomicU64,
}

impl Storm<'_> {
    fn repeat(&self, mut act: impl FnMut(u64)) {
        let mut round = 0;
        while !self.stop.load(Ordering::Relaxed) {
            act(round);
            self.done.fetch_add(1, Ordering::SeqCst);
            round += 1;
        }
    }

    /// Pauses and resumes many times; while paused nothing may be completed.
    fn pause_often(&self, times: u32, threads: u64) {
        for round in 0..times {
            let HostToSupervisor::Paused {
                externals,
                processes,
            } = self.house.pause()
            else {
                panic!("no pause")
            };
            assert!(externals.iter().any(|external| external.key == "control"));
            assert_eq!(
                externals.len(),
                1 + self.house.cards.len() + processes.len()
            );
            // Who had its answer already may still count.
            std::thread::sleep(Duration::from_millis(2));
            let before = self.done.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(u64::from(round % 5)));
            let after = self.done.load(Ordering::SeqCst);
            assert!(after - before <= threads, "{before} {after}");
            self.house.resume();
            std::thread::sleep(Duration::from_micros(u64::from(round * 37 % 3000)));
        }
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn pauses_come_between_everything() {
    let house = House::new(2, MEMORY);
    let processes = [
        house.runtime.create_process(0).unwrap(),
        house.runtime.create_process(1).unwrap(),
    ];
    let storm = Storm {
        house: &house,
        stop: AtomicBool::new(false),
        done: AtomicU64::new(0),
    };
    let counts = AtomicU64::new(0);
    let [count, nap, allocate, global] =
        load(&processes[0], CODE, ["count", "nap", "allocate", "global"]);
    let counter = processes[0].alloc(8).unwrap();
    write_word(&processes[0], counter, 0);
    std::thread::scope(|scope| {
        let storm = &storm;
        let process = &processes[0];
        let other = &processes[1];
        let counts = &counts;
        // Case 4: run functions, short and long, synchronous and not.
        for _ in 0..2 {
            scope.spawn(move || {
                storm.repeat(|_| {
                    process.run(count, &[counter], "count").unwrap();
                    counts.fetch_add(1, Ordering::Relaxed);
                })
            });
        }
        scope.spawn(move || {
            storm.repeat(|_| {
                process.run(nap, &[counter, 3000], "nap").unwrap();
                counts.fetch_add(1, Ordering::Relaxed);
            })
        });
        scope.spawn(move || {
            storm.repeat(|_| {
                let events: Vec<_> = (0..100)
                    .map(|_| process.run_async(count, &[counter], "count").unwrap())
                    .collect();
                events.iter().for_each(|event| event.wait().unwrap());
                counts.fetch_add(100, Ordering::Relaxed);
            })
        });
        // Case 2: transfers, with the memory made and freed each time.
        for thread in 0..2 {
            scope.spawn(move || {
                storm.repeat(|round| {
                    let bytes = 1 + (round * 7919 + thread) % (40 << 20);
                    let content = noise(bytes as usize, round);
                    let buffer = process.alloc(bytes).unwrap();
                    write(process, buffer, &content);
                    let copy = other.alloc(bytes).unwrap();
                    process
                        .copy_to(other, copy, buffer, bytes as usize)
                        .unwrap();
                    assert!(read(other, copy, bytes as usize) == content);
                    process.free(buffer).unwrap();
                    other.free(copy).unwrap();
                })
            });
        }
        scope.spawn(move || {
            storm.repeat(|round| {
                write_word(process, global, round);
                assert_eq!(read_word(process, global), round);
            })
        });
        // Case 3: commands.
        scope.spawn(move || {
            let out = process.alloc(8).unwrap();
            process.run(allocate, &[out, 100_000], "allocate").unwrap();
            let heap = read_word(process, out);
            storm.repeat(|round| {
                let content = noise(100_000, round);
                write(process, heap, &content);
                assert!(read(process, heap, 100_000) == content);
            });
        });
        // Case 1: processes come and go, images are loaded.
        scope.spawn(move || {
            storm.repeat(|_| {
                let brief = house_process(storm.house);
                let [count] = load(&brief, CODE, ["count"]);
                let counter = brief.alloc(8).unwrap();
                write_word(&brief, counter, 5);
                brief.run(count, &[counter], "count").unwrap();
                assert_eq!(read_word(&brief, counter), 6);
                brief.destroy().unwrap();
            })
        });
        storm.pause_often(150, 10);
    });
    assert_eq!(
        read_word(&processes[0], counter),
        counts.load(Ordering::Relaxed)
    );
    assert!(storm.done.load(Ordering::Relaxed) > 100);
    house.cards[1].await_count(1);
}

fn house_process(house: &House) -> std::sync::Arc<snapify_offload::host::Process> {
    house.runtime.create_process(1).unwrap()
}

#[test]
fn a_function_in_flight_is_named_and_publishes_after_the_resume() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let [nap] = load(&process, CODE, ["nap"]);
    let counter = process.alloc(8).unwrap();
    write_word(&process, counter, 0);
    let event = process.run_async(nap, &[counter, 30_000], "a nap").unwrap();
    let HostToSupervisor::Paused { processes, .. } = house.pause() else {
        panic!("no pause")
    };
    assert_eq!(processes.len(), 1);
    assert_eq!(processes[0].in_flight, ["a nap"]);
    assert_eq!(
        (processes[0].id, processes[0].pid, processes[0].card),
        (process.id(), process.pid(), 0)
    );
    std::thread::sleep(Duration::from_millis(100));
    assert!(!event.is_done(), "a result was published during the pause");
    house.resume();
    event.wait().unwrap();
    assert_eq!(read_word(&process, counter), 1);
}

#[test]
fn requests_out_of_turn_are_answered_and_harm_nothing() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let ask = |message: &SupervisorToHost| {
        house.agent.send(message, &[]).unwrap();
        house.agent.recv::<HostToSupervisor>().unwrap().0
    };
    assert!(matches!(
        ask(&SupervisorToHost::Resume),
        HostToSupervisor::Resumed
    ));
    let capture = SupervisorToHost::Capture {
        processes: vec![CaptureProcess {
            id: process.id(),
            hold: false,
            form: SaveForm::default(),
        }],
    };
    assert!(matches!(ask(&capture), HostToSupervisor::Failed { .. }));
    assert!(matches!(house.pause(), HostToSupervisor::Paused { .. }));
    assert!(matches!(
        ask(&SupervisorToHost::Pause),
        HostToSupervisor::Failed { .. }
    ));
    assert!(
        matches!(ask(&capture), HostToSupervisor::Failed { .. }),
        "it lacks descriptors"
    );

    // With all it needs it begins; this engine then says that it cannot.
    let (ours, theirs) = Channel::pair().unwrap();
    let file = tempfile::tempfile().unwrap();
    let fds = [theirs.as_fd(), file.as_fd(), file.as_fd(), file.as_fd()];
    house.agent.send(&capture, &fds).unwrap();
    assert!(matches!(
        house.agent.recv().unwrap().0,
        HostToSupervisor::CaptureStarted
    ));
    drop(theirs);
    match ours.recv::<CaptureEvent>().unwrap().0 {
        CaptureEvent::Failed { id, message } => {
            assert_eq!(id, process.id());
            assert!(message.contains("saves nothing"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    house.resume();
    process.alloc(100).unwrap();
}

#[test]
fn a_vanished_supervisor_leaves_nobody_paused() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    assert!(matches!(house.pause(), HostToSupervisor::Paused { .. }));
    let House {
        cards,
        agent,
        runtime,
        ..
    } = house;
    drop(agent);
    // Were it still paused, this would wait for ever.
    process.alloc(100).unwrap();
    let [count] = load(&process, CODE, ["count"]);
    let counter = process.alloc(8).unwrap();
    process.run(count, &[counter], "count").unwrap();
    drop((runtime, cards));
}

#[test]
fn dead_processes_are_no_part_of_a_pause() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let survivor = house.runtime.create_process(0).unwrap();
    let HostToSupervisor::Paused { externals, .. } = house.pause() else {
        panic!("no pause")
    };
    house.resume();
    let key = format!("store:{}", process.id());
    let store = externals
        .iter()
        .find(|external| external.key == key)
        .unwrap();
    let address = store.mappings[0].0;
    // SAFETY: a process that this test started.
    unsafe { libc::kill(process.pid(), libc::SIGKILL) };
    while process.status().is_ok() {
        std::thread::yield_now();
    }
    for _ in 0..2 {
        let HostToSupervisor::Paused {
            externals,
            processes,
        } = house.pause()
        else {
            panic!("no pause")
        };
        assert_eq!(processes.len(), 1);
        assert_eq!(processes[0].id, survivor.id());
        assert_eq!(externals.len(), 3);
        house.resume();
    }
    assert!(process.alloc(8).is_err());
    survivor.alloc(8).unwrap();
    // The dead one's store is not held any more by this process.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps
        .lines()
        .find(|line| line.starts_with(&format!("{address:x}-")))
        .unwrap();
    assert!(!line.contains("/dev/shm"), "{line}");
}
