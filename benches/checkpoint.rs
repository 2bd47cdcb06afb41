//! Checkpoint and restart of a process full of incompressible pages, against a plain write of the same bytes to the
//! same place, against filling as much fresh memory and against a plain read.

use crate::machine::{Buffer, fill, plain_write_and_read};
use crate::place::Place;
use crate::program::Program;
use crate::table::{at_least, median, print};
use anyhow::{Result, ensure};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

const MEBIBYTES: usize = 1024;
const RUNS: usize = 5;

pub fn run(place: &Place) -> Result<()> {
    let program = place.compile("cc", "fill.c", &[])?;
    let data = Buffer::random(MEBIBYTES << 20)?;
    let mut rows = Vec::new();
    for (name, dir) in place.directories() {
        let mut taken = [const { Vec::new() }; 5];
        for _ in 0..RUNS {
            let (write, read) = plain_write_and_read(dir, &data)?;
            taken[0].push(write);
            taken[4].push(read);
            let (checkpoint, restart) = once(place, &program, dir)?;
            taken[1].push(checkpoint);
            taken[2].push(fill(MEBIBYTES << 20)?);
            taken[3].push(restart);
        }
        let [plain, checkpoint, fill, restart, read] = taken.map(median);
        let rate = |seconds: f64| format!("{:.2} GiB/s", MEBIBYTES as f64 / 1024.0 / seconds);
        rows.push(vec![
            format!("checkpoint to {name}"),
            rate(checkpoint),
            format!("plain write {}", rate(plain)),
            at_least(plain / checkpoint, 0.8),
        ]);
        rows.push(vec![
            format!("restart from {name}"),
            rate(restart),
            format!("fill of fresh memory {}", rate(fill)),
            at_least(fill / restart, 0.8),
        ]);
        // What is on disk only, a restart cannot have faster than the disk gives it.
        rows.push(vec![
            String::new(),
            String::new(),
            format!("plain read {}", rate(read)),
            format!("{:.2}", read / restart),
        ]);
    }
    print(
        "Checkpoint and restart of a process of 1 GiB, incompressible (whole commands)",
        &["operation", "rate", "against", "ratio"],
        &rows,
    );
    Ok(())
}

/// Seconds for one checkpoint, and for the restart of a program that has nothing left to do.
fn once(place: &Place, program: &Path, dir: &Path) -> Result<(f64, f64)> {
    let snapshot = dir.join("snapshot");
    let running = Program::start(program, &[MEBIBYTES.to_string()])?;
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
