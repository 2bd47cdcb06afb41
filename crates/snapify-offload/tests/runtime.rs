//! Host library, card daemon and offload processes at work, without snapshots.
#![allow(unsafe_code)]

mod support;

use snapify_offload::OffloadError;
use std::time::{Duration, Instant};
use support::{House, image, load, noise, read, read_word, write, write_word};

const MEMORY: u64 = 1 << 30;

const CODE: &str = r#"
    #include <stdint.h>
    #include <stdlib.h>
    #include <stdio.h>
    #include <string.h>
    #include <unistd.h>
    uint64_t global = 41;
    uint64_t zeroed[5000];
    static uint64_t constructed;
    __attribute__((constructor)) static void begin(void) { constructed = 4711; }
    void none(void) { global++; }
    void sum(uint64_t *out, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g, uint64_t h, uint64_t i) {
        *out = b + 10 * c + 100 * d + 1000 * e + 10000 * f + 100000 * g + 1000000 * h + 10000000 * i;
    }
    void get_constructed(uint64_t *out) { *out = constructed; }
    void allocate(uint64_t *out, uint64_t bytes) { *out = (uint64_t)malloc(bytes); memset((void *)*out, 7, bytes); }
    void add_up(uint64_t *out, unsigned char *from, uint64_t n) { uint64_t s = 0; for (uint64_t i = 0; i < n; i++) s = s * 31 + from[i]; *out = s; }
    void count(uint64_t *at) { __atomic_fetch_add(at, 1, __ATOMIC_RELAXED); }
    void nap(uint64_t *at, uint64_t us) { usleep(us); __atomic_fetch_add(at, 1, __ATOMIC_RELAXED); }
    void append(uint64_t *list, uint64_t value) { list[++list[0]] = value; }
    void say(void) { printf("half a line"); }
"#;

#[test]
fn buffers_keep_what_is_written_at_any_size_and_place() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let mut buffers = Vec::new();
    for (index, &bytes) in [
        0_usize,
        1,
        63,
        64,
        65,
        4095,
        4096,
        4097,
        1 << 20,
        (17 << 20) + 5,
    ]
    .iter()
    .enumerate()
    {
        let address = process.alloc(bytes as u64).unwrap();
        assert_eq!(address % if bytes >= 4096 { 4096 } else { 64 }, 0);
        let content = noise(bytes, index as u64);
        write(&process, address, &content);
        buffers.push((address, content));
    }
    for (address, content) in &buffers {
        assert_eq!(read(&process, *address, content.len()), *content);
        let middle = content.len() / 3;
        assert_eq!(
            read(&process, address + middle as u64, content.len() / 2),
            content[middle..middle + content.len() / 2]
        );
    }
    for (address, _) in &buffers {
        process.free(*address).unwrap();
        assert!(matches!(
            process.free(*address),
            Err(OffloadError::BadAddress { .. })
        ));
    }
    let mut word = [0; 8];
    let freed = buffers.last().unwrap().0;
    // SAFETY: `word` has 8 bytes.
    let outcome = unsafe { process.read(word.as_mut_ptr(), freed, 8) };
    assert!(
        matches!(outcome, Err(OffloadError::BadAddress { .. })),
        "{outcome:?}"
    );
    assert!(matches!(
        house.runtime.create_process(1),
        Err(OffloadError::NoSuchCard { card: 1, cards: 1 })
    ));
}

#[test]
fn functions_run_with_any_arguments_and_see_buffers() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let [none, sum, constructed, add_up, global] = load(
        &process,
        CODE,
        ["none", "sum", "get_constructed", "add_up", "global"],
    );
    let out = process.alloc(8).unwrap();
    process
        .run(sum, &[out, 1, 2, 3, 4, 5, 6, 7, 8], "sum")
        .unwrap();
    assert_eq!(read_word(&process, out), 87_654_321);
    process.run(constructed, &[out], "get_constructed").unwrap();
    assert_eq!(read_word(&process, out), 4711);
    process.run(none, &[], "none").unwrap();
    assert_eq!(read_word(&process, global), 42);

    let content = noise(3 << 20, 5);
    let buffer = process.alloc(content.len() as u64).unwrap();
    write(&process, buffer, &content);
    process
        .run(add_up, &[out, buffer, content.len() as u64], "add_up")
        .unwrap();
    let expected = content.iter().fold(0_u64, |sum, &byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    assert_eq!(read_word(&process, out), expected);
}

#[test]
fn globals_of_images_are_transferred_in_both_directions() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let [none, global, zeroed, add_up] =
        load(&process, CODE, ["none", "global", "zeroed", "add_up"]);
    assert_eq!(read_word(&process, global), 41);
    write_word(&process, global, 1000);
    process.run(none, &[], "none").unwrap();
    assert_eq!(read_word(&process, global), 1001);
    let content = noise(40_000, 9);
    write(&process, zeroed, &content);
    let out = process.alloc(8).unwrap();
    process
        .run(add_up, &[out, zeroed, 40_000], "add_up")
        .unwrap();
    let expected = content.iter().fold(0_u64, |sum, &byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    assert_eq!(read_word(&process, out), expected);

    // A second image of the same name and content is another one.
    let [second] = load(&process, CODE, ["global"]);
    assert_ne!(second, global);
    assert_eq!(read_word(&process, second), 41);
    let library = process.load_library(&image(CODE), "third").unwrap();
    assert_eq!(
        process.function_addresses(&library, &["missing"]).unwrap(),
        [None]
    );
    let names: Vec<String> = (0..3000).map(|index| format!("missing_{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(
        process.function_addresses(&library, &names).unwrap(),
        vec![None; 3000]
    );
}

#[test]
fn what_is_no_device_image_is_refused_in_words() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let error = process
        .load_library(b"#!/bin/sh\n", "a script")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a script") && error.contains("ELF"),
        "{error}"
    );
    let unresolved = image("void missing_function(void); void f(void) { missing_function(); }");
    let error = process
        .load_library(&unresolved, "image")
        .unwrap_err()
        .to_string();
    assert!(error.contains("missing_function"), "{error}");
    process.status().unwrap();
    load(&process, CODE, ["none"]);
}

#[test]
fn memory_outside_the_local_store_is_reached_too() {
    let house = House::new(2, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let other = house.runtime.create_process(1).unwrap();
    let [allocate, add_up] = load(&process, CODE, ["allocate", "add_up"]);
    let [other_allocate] = load(&other, CODE, ["allocate"]);
    let out = process.alloc(8).unwrap();
    let other_out = other.alloc(8).unwrap();
    let bytes = (5 << 20) + 3;
    process.run(allocate, &[out, bytes], "allocate").unwrap();
    other
        .run(other_allocate, &[other_out, bytes], "allocate")
        .unwrap();
    let (heap, other_heap) = (read_word(&process, out), read_word(&other, other_out));
    assert_eq!(
        read(&process, heap, bytes as usize),
        vec![7; bytes as usize]
    );
    let content = noise(bytes as usize, 3);
    write(&process, heap, &content);
    process.run(add_up, &[out, heap, bytes], "add_up").unwrap();
    let expected = content.iter().fold(0_u64, |sum, &byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    assert_eq!(read_word(&process, out), expected);

    // Every combination of store and elsewhere, between processes of two cards and within one.
    let (buffer, other_buffer) = (process.alloc(bytes).unwrap(), other.alloc(bytes).unwrap());
    let count = bytes as usize;
    for (from, to) in [
        (heap, other_heap),
        (heap, other_buffer),
        (buffer, other_heap),
        (buffer, other_buffer),
    ] {
        let content = noise(count, from ^ to);
        write(&process, from, &content);
        process.copy_to(&other, to, from, count).unwrap();
        assert_eq!(read(&other, to, count), content);
    }
    process.copy_to(&process, heap, buffer, count).unwrap();
    assert_eq!(read(&process, heap, count), read(&process, buffer, count));

    for address in [0, 8, u64::MAX - 4, 0x7fff_0000_0000] {
        let mut word = [0; 8];
        // SAFETY: `word` has 8 bytes.
        let outcome = unsafe { process.read(word.as_mut_ptr(), address, 8) };
        assert!(
            matches!(outcome, Err(OffloadError::Refused { .. })),
            "{outcome:?}"
        );
        // SAFETY: as above.
        let outcome = unsafe { process.write(address, word.as_ptr(), 8) };
        assert!(
            matches!(outcome, Err(OffloadError::Refused { .. })),
            "{outcome:?}"
        );
    }
    process.status().unwrap();
}

#[test]
fn overlapping_copies_within_a_store_are_exact() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let bytes = 50 << 20;
    let buffer = process.alloc(bytes as u64).unwrap();
    let mut content = noise(bytes, 1);
    write(&process, buffer, &content);
    for (from, to) in [(0, 5 << 20), (7 << 20, 1 << 20), (0, 17), (4097, 0)] {
        let count = 40 << 20;
        process
            .copy_to(&process, buffer + to as u64, buffer + from as u64, count)
            .unwrap();
        content.copy_within(from..from + count, to);
        assert!(read(&process, buffer, bytes) == content, "{from} to {to}");
    }
}

#[test]
fn many_threads_run_functions_at_once() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let [count, nap] = load(&process, CODE, ["count", "nap"]);
    let counter = process.alloc(8).unwrap();
    write_word(&process, counter, 0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        // More than there can be pipelines.
        for _ in 0..80 {
            scope.spawn(|| {
                process.run(nap, &[counter, 500_000], "nap").unwrap();
                for _ in 0..200 {
                    process.run(count, &[counter], "count").unwrap();
                }
            });
        }
    });
    assert_eq!(read_word(&process, counter), 80 * 201);
    assert!(
        start.elapsed() < Duration::from_millis(80 * 500),
        "they ran one after the other"
    );
}

#[test]
fn asynchronous_functions_complete_in_their_own_time() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let [count, nap] = load(&process, CODE, ["count", "nap"]);
    let counter = process.alloc(8).unwrap();
    write_word(&process, counter, 0);
    let slow = process.run_async(nap, &[counter, 200_000], "nap").unwrap();
    assert!(!slow.is_done());
    // A synchronous one does not wait for it.
    process.run(count, &[counter], "count").unwrap();
    assert_eq!(read_word(&process, counter), 1);
    // Many more than there are pipelines, most of them never waited for.
    let events: Vec<_> = (0..3000)
        .map(|_| process.run_async(count, &[counter], "count").unwrap())
        .collect();
    for event in events.iter().step_by(7) {
        event.wait().unwrap();
        event.wait().unwrap();
        assert!(event.is_done());
    }
    drop(events);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| slow.wait().unwrap());
        }
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    while read_word(&process, counter) != 3002 {
        assert!(
            Instant::now() < deadline,
            "{}",
            read_word(&process, counter)
        );
    }
}

#[test]
fn several_processes_share_a_card_and_are_destroyed() {
    let house = House::new(1, MEMORY);
    let processes: Vec<_> = (0..4)
        .map(|_| house.runtime.create_process(0).unwrap())
        .collect();
    for (index, process) in processes.iter().enumerate() {
        let [global] = load(process, CODE, ["global"]);
        write_word(process, global, index as u64);
    }
    house.cards[0].await_count(4);
    let [none] = load(&processes[0], CODE, ["none"]);
    processes[0].destroy().unwrap();
    processes[0].destroy().unwrap();
    house.cards[0].await_count(3);
    let error = processes[0].run(none, &[], "none").unwrap_err().to_string();
    assert!(error.contains("destroyed"), "{error}");
    assert!(processes[0].alloc(100).is_err() && processes[0].status().is_err());
    processes[1].status().unwrap();
    // Dropping a handle ends nothing.
    drop(processes);
    assert_eq!(house.cards[0].pids().len(), 3);
}

#[test]
fn a_card_that_is_full_says_so_and_has_room_again_later() {
    let memory = 64 << 20;
    let house = House::with(vec![support::card(0, memory, true)], memory, None);
    let process = house.runtime.create_process(0).unwrap();
    assert!(matches!(
        process.alloc(65 << 20),
        Err(OffloadError::OutOfMemory { card: 0, .. })
    ));
    assert!(matches!(
        process.alloc(1 << 50),
        Err(OffloadError::OutOfMemory { .. })
    ));
    assert!(matches!(
        process.alloc(u64::MAX),
        Err(OffloadError::OutOfMemory { .. })
    ));
    let mut buffers = Vec::new();
    loop {
        match process.alloc(1 << 20) {
            Ok(buffer) => {
                write(&process, buffer, &noise(1 << 20, buffer));
                buffers.push(buffer);
            }
            Err(OffloadError::OutOfMemory { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(buffers.len() > 55, "{}", buffers.len());
    for &buffer in &buffers {
        assert_eq!(read(&process, buffer, 1 << 20), noise(1 << 20, buffer));
        process.free(buffer).unwrap();
    }
    // What was freed piece by piece serves a large one, and another process.
    let large = process.alloc(50 << 20).unwrap();
    write(&process, large, &noise(50 << 20, 1));
    process.free(large).unwrap();
    let other = house.runtime.create_process(0).unwrap();
    other.alloc(40 << 20).unwrap();
}

#[test]
fn what_functions_print_arrives_before_they_return() {
    // The offload process inherits this process's standard output: look at it from a child of ours.
    let me = std::env::current_exe().unwrap();
    if std::env::var_os("SNAPIFY_TEST_SAY").is_some() {
        let house = House::new(1, MEMORY);
        let process = house.runtime.create_process(0).unwrap();
        let [say] = load(&process, CODE, ["say"]);
        process.run(say, &[], "say").unwrap();
        // SAFETY: ends the process before anything could be flushed late.
        unsafe { libc::_exit(0) };
    }
    let out = std::process::Command::new(me)
        .args([
            "--exact",
            "what_functions_print_arrives_before_they_return",
            "--nocapture",
        ])
        .env("SNAPIFY_TEST_SAY", "1")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&out.stdout).contains("half a line"));
}

#[test]
fn functions_of_one_pipeline_keep_their_order() {
    let house = House::new(1, MEMORY);
    let process = house.runtime.create_process(0).unwrap();
    let [append, nap, count] = load(&process, CODE, ["append", "nap", "count"]);
    let list = process.alloc(8 * 2001).unwrap();
    write_word(&process, list, 0);
    let counter = process.alloc(8).unwrap();
    let pipeline = process.create_pipeline().unwrap();
    let first = pipeline.run_async(nap, &[counter, 20_000], "nap").unwrap();
    let events: Vec<_> = (0..1999)
        .map(|value| {
            pipeline
                .run_async(append, &[list, value], "append")
                .unwrap()
        })
        .collect();
    // Another pipeline does not wait for this one.
    process.run(count, &[counter], "count").unwrap();
    pipeline.run(append, &[list, 1999], "append").unwrap();
    assert!(first.is_done() && events.iter().all(|event| event.is_done()));
    let expected: Vec<u8> = std::iter::once(2000)
        .chain(0..2000)
        .flat_map(u64::to_ne_bytes)
        .collect();
    assert_eq!(read(&process, list, 8 * 2001), expected);
}
