//! Stopping and describing trees of processes: how long all of it takes, what each kind of object costs, and whether
//! ten times as many cost ten times as much.

use crate::place::Place;
use crate::program::Program;
use crate::table::{median, print, under};
use anyhow::{Result, ensure};
use snapify_proc::{Frozen, Pid};
use std::path::Path;
use std::time::Instant;

const RUNS: usize = 5;

/// So many processes, with so many threads and so many mappings of their own each.
#[derive(Clone, Copy)]
struct Shape {
    processes: u32,
    threads: u32,
    mappings: u32,
}

const fn shape(processes: u32, threads: u32, mappings: u32) -> Shape {
    Shape {
        processes,
        threads,
        mappings,
    }
}

/// The tree that the target is for: 100 processes, 1,000 threads, 10,000 mappings.
const LARGE: Shape = shape(100, 10, 100);

pub fn run(place: &Place) -> Result<()> {
    let program = place.compile("cc", "tree.c", &[])?;
    let mut rows = Vec::new();
    let mut whole = |name: &str, shape: Shape| -> Result<f64> {
        let [freeze, describe, thaw] = measure(&program, shape)?;
        rows.push(vec![
            name.to_owned(),
            milliseconds(freeze),
            milliseconds(describe),
            milliseconds(thaw),
        ]);
        Ok(freeze + describe)
    };
    let tenth = whole(
        "10 processes, 100 threads, 1,000 mappings",
        shape(10, 10, 100),
    )?;
    let large = whole("100 processes, 1,000 threads, 10,000 mappings", LARGE)?;
    let tenfold = whole(
        "1,000 processes, 10,000 threads, 100,000 mappings",
        shape(1000, 10, 100),
    )?;
    // What one object costs: the difference that many of its kind make.
    let one = whole("1 process", shape(1, 1, 0))?;
    let processes = whole("201 processes", shape(201, 1, 0))?;
    let threads = whole("1 process, 2,001 threads", shape(1, 2001, 0))?;
    let mappings = whole("1 process, 20,000 mappings", shape(1, 1, 20_000))?;
    print(
        "Stopping and describing a tree of processes",
        &["tree", "stop", "describe", "let go"],
        &rows,
    );

    let micro = |seconds: f64, count: f64| format!("{:.1} us", seconds / count * 1e6);
    print(
        "Cost of scale",
        &["what", "cost"],
        &[
            vec![
                "100 processes, 1,000 threads, 10,000 mappings".to_owned(),
                under(large, 1.0, "s"),
            ],
            vec!["a process".to_owned(), micro(processes - one, 200.0)],
            vec!["a thread".to_owned(), micro(threads - one, 2000.0)],
            vec!["a mapping".to_owned(), micro(mappings - one, 20_000.0)],
            vec![
                "10 times 10 processes".to_owned(),
                format!("{:.1} times the time", large / tenth),
            ],
            vec![
                "10 times 100 processes".to_owned(),
                format!("{:.1} times the time", tenfold / large),
            ],
        ],
    );
    Ok(())
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

/// Seconds to stop a tree, to describe it and to let it go: medians.
fn measure(program: &Path, shape: Shape) -> Result<[f64; 3]> {
    let counts = [shape.processes, shape.threads, shape.mappings].map(|count| count.to_string());
    let program = Program::start(program, &counts)?;
    let mut taken = [const { Vec::new() }; 3];
    for _ in 0..RUNS {
        let begin = Instant::now();
        let mut frozen = Frozen::freeze(Pid(program.id().cast_signed()))?;
        let stopped = Instant::now();
        let image = frozen.describe(&[])?;
        let described = Instant::now();
        frozen.thaw()?;
        let gone = Instant::now();
        ensure!(
            image.processes.len() == shape.processes as usize,
            "a process was missed"
        );
        taken[0].push((stopped - begin).as_secs_f64());
        taken[1].push((described - stopped).as_secs_f64());
        taken[2].push((gone - described).as_secs_f64());
    }
    Ok(taken.map(median))
}
