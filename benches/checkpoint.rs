//! Checkpoint and restart of a process full of incompressible pages, against a plain write of the same bytes to the
//! same place, against filling as much fresh memory and against a plain read. All of them begin with [warm](machine::warm) memory.

use crate::machine::{self, Buffer, fill, has_room, plain_write_and_read};
use crate::place::Place;
use crate::program::Program;
use crate::table::{at_least, median, print};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

/// Gibibytes of memory, and how often each is measured.
const SIZES: [(usize, usize); 2] = [(1, 5), (4, 3)];

/// What is asked for.
const TARGET: f64 = 0.9;

pub fn run(place: &Place) -> Result<()> {
    let program = place.compile("cc", "fill.c", &[])?;
    let mut rows = Vec::new();
    for (size, runs) in SIZES {
        // The data, the program, its snapshot in memory, and a margin.
        if has_room((size as u64 * 7 / 2) << 30)? {
            measure(place, &program, (size, runs), &mut rows)?;
        } else {
            rows.push(vec![format!("{size} GiB"), "not enough memory".to_owned()]);
        }
    }
    print(
        "Checkpoint and restart of a process with incompressible memory (whole commands)",
        &["operation", "rate", "against", "ratio"],
        &rows,
    );
    Ok(())
}

/// Measures a program with `size` gibibytes of memory in turn with what it is measured against.
fn measure(
    place: &Place,
    program: &Path,
    (size, runs): (usize, usize),
    rows: &mut Vec<Vec<String>>,
) -> Result<()> {
    let bytes = size << 30;
    let data = Buffer::random(bytes)?;
    for (name, dir) in place.directories() {
        let mut taken = [const { Vec::new() }; 5];
        for _ in 0..runs {
            machine::warm(bytes)?;
            let (write, read) = plain_write_and_read(dir, &data)?;
            taken[0].push(write);
            taken[4].push(read);
            let (checkpoint, restart) = once(place, program, bytes >> 20, dir)?;
            taken[1].push(checkpoint);
            machine::warm(bytes)?;
            taken[2].push(fill(bytes)?);
            taken[3].push(restart);
        }
        let [plain, checkpoint, fill, restart, read] = taken.map(median);
        let rate = |seconds: f64| format!("{:.2} GiB/s", size as f64 / seconds);
        rows.push(vec![
            format!("{size} GiB: checkpoint to {name}"),
            rate(checkpoint),
            format!("plain write {}", rate(plain)),
            at_least(plain / checkpoint, TARGET),
        ]);
        rows.push(vec![
            format!("{size} GiB: restart from {name}"),
            rate(restart),
            format!("fill of fresh memory {}", rate(fill)),
            at_least(fill / restart, TARGET),
        ]);
        // What is on disk only, a restart cannot have faster than the disk gives it.
        rows.push(vec![
            String::new(),
            String::new(),
            format!("plain read {}", rate(read)),
            format!("{:.2}", read / restart),
        ]);
    }
    Ok(())
}

/// Seconds for one checkpoint, and for the restart of a program that has nothing left to do.
fn once(place: &Place, program: &Path, mebibytes: usize, dir: &Path) -> Result<(f64, f64)> {
    let snapshot = dir.join("snapshot");
    let running = Program::start(program, &[mebibytes.to_string()])?;
    machine::warm(mebibytes << 20)?;
    let begin = Instant::now();
    let done = place
        .snapify()
        .arg("checkpoint")
        .arg(running.id().to_string())
        .arg(&snapshot)
        .stdout(Stdio::null())
        .status()?;
    let checkpoint = begin.elapsed().as_secs_f64();
    drop(running);
    ensure!(done.success(), "the checkpoint failed");

    machine::warm(mebibytes << 20)?;
    let begin = Instant::now();
    let mut restarted = place
        .snapify()
        .arg("restart")
        .arg(&snapshot)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // The program runs when it answers; what it takes to look through its memory is not counted, so ask it for
    // nothing but its end.
    drop(restarted.stdin.take());
    let ended = restarted.wait()?;
    let restart = begin.elapsed().as_secs_f64();
    ensure!(ended.success(), "the restarted program failed");
    std::fs::remove_dir_all(&snapshot)?;
    Ok((checkpoint, restart))
}
