//! Swapping and migrating an offload process while its program runs, against plain operations on as many bytes. Both sides
//! begin with [warm](machine::warm) memory.

use crate::application::Application;
use crate::machine::{self, Buffer, plain_write_and_read};
use crate::place::Place;
use crate::table::{at_least, at_most, median, print, under};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::Write;
use std::path::Path;

/// Sizes of the local store in MiB, unless `SNAPIFY_BENCH_SIZES` names others: `64,4096`.
const SIZES: [usize; 3] = [64, 256, 1024];
const RUNS: usize = 3;

pub fn run(place: &Place) -> Result<()> {
    let flags = ["-fopenmp", "-fopenmp-targets=x86_64-pc-linux-gnu"];
    let program = place.compile("clang-16", "omp_hold.c", &flags)?;
    let mut rows = Vec::new();
    for size in sizes(&SIZES)? {
        let mut held = start(place, &program, size, 1)?;
        let data = Buffer::random(size << 20)?;
        let before = sum(&mut held)?;
        for (name, dir) in place.directories() {
            let mut taken = [const { Vec::new() }; 9];
            for _ in 0..RUNS {
                machine::warm(size << 20)?;
                let (write, read) = plain_write_and_read(dir, &data)?;
                let image = dir.join("swap");
                let image = image.to_str().context("a directory whose name is text")?;
                machine::warm(size << 20)?;
                let out = held.ask("swap-out", &[image])?;
                machine::warm(size << 20)?;
                let fill = machine::fill(size << 20)?;
                machine::warm(size << 20)?;
                let back = held.ask("swap-in", &["0"])?;
                let copy = machine::copy(&data)?;
                machine::warm(size << 20)?;
                let moved = held.ask("migrate", &["1"])?;
                held.ask("migrate", &["0"])?;
                let seconds =
                    |report: &Value, name: &str| report[name].as_f64().unwrap_or(f64::NAN);
                let figures = [
                    write,
                    read,
                    fill,
                    copy,
                    seconds(&out, "pause_seconds"),
                    seconds(&out, "capture_seconds"),
                    seconds(&out, "total_seconds"),
                    seconds(&back, "total_seconds"),
                    seconds(&moved, "total_seconds"),
                ];
                for (all, figure) in taken.iter_mut().zip(figures) {
                    all.push(figure);
                }
            }
            let [write, read, fill, copy, pause, capture, out, back, moved] = taken.map(median);
            let rate = |seconds: f64| format!("{:.2} GiB/s", size as f64 / 1024.0 / seconds);
            let mut row = |operation: String, seconds: f64, against: String, ratio: String| {
                rows.push(vec![
                    format!("{size} MiB, {operation}"),
                    format!("{:.1} ms", seconds * 1e3),
                    rate(seconds),
                    against,
                    ratio,
                ]);
            };
            row(
                format!("pause ({name})"),
                pause,
                String::new(),
                under(pause * 1e3, 1.0, "ms"),
            );
            let plain = format!("plain write {}", rate(write));
            row(
                format!("capture to {name}"),
                capture,
                plain.clone(),
                at_least(write / capture, 0.8),
            );
            row(
                format!("swap-out to {name}"),
                out,
                plain,
                at_least(write / out, 0.8),
            );
            let plain = format!("fill {}, plain read {}", rate(fill), rate(read));
            row(
                format!("swap-in from {name}"),
                back,
                plain,
                at_least(fill.max(read) / back, 0.8),
            );
            if name == "tmpfs" {
                let plain = format!("memcpy into fresh memory {}", rate(copy));
                row("migrate".into(), moved, plain, at_least(copy / moved, 0.7));
            }
        }
        ensure!(sum(&mut held)? == before, "the card's memory has changed");
        held.end()?;
    }
    print(
        "Swap-out, swap-in and migration of an offload process (seconds of the supervisor)",
        &["operation", "time", "rate", "against", "ratio"],
        &rows,
    );
    small_buffers(place, &program)
}

/// The sizes that the user names in `SNAPIFY_BENCH_SIZES`, else these, in MiB.
pub fn sizes(usual: &[usize]) -> Result<Vec<usize>> {
    let Ok(named) = std::env::var("SNAPIFY_BENCH_SIZES") else {
        return Ok(usual.to_vec());
    };
    named
        .split(',')
        .map(|size| {
            size.trim()
                .parse()
                .context("SNAPIFY_BENCH_SIZES: sizes in MiB, with commas")
        })
        .collect()
}

/// What 64 MiB cost in 10,000 buffers and in one.
fn small_buffers(place: &Place, program: &Path) -> Result<()> {
    const SIZE: usize = 64;
    let image = place.scratch().join("swap");
    let image = image.to_str().context("a directory whose name is text")?;
    let mut taken = Vec::new();
    for buffers in [1, 10_000] {
        let mut held = start(place, program, SIZE, buffers)?;
        let before = sum(&mut held)?;
        let mut figures = [const { Vec::new() }; 3];
        for _ in 0..RUNS {
            machine::warm(SIZE << 20)?;
            let out = held.ask("swap-out", &[image])?;
            machine::warm(SIZE << 20)?;
            let back = held.ask("swap-in", &["0"])?;
            machine::warm(SIZE << 20)?;
            let moved = held.ask("migrate", &["1"])?;
            held.ask("migrate", &["0"])?;
            for (all, report) in figures.iter_mut().zip([out, back, moved]) {
                all.push(report["total_seconds"].as_f64().unwrap_or(f64::NAN));
            }
        }
        ensure!(sum(&mut held)? == before, "the card's memory has changed");
        held.end()?;
        taken.push(figures.map(median));
    }
    let rows: Vec<Vec<String>> = ["swap-out", "swap-in", "migrate"]
        .iter()
        .zip(taken[0].iter().zip(taken[1]))
        .map(|(name, (one, many))| {
            vec![
                format!("{name}, tmpfs"),
                format!("{:.1} ms", one * 1e3),
                format!("{:.1} ms", many * 1e3),
                at_most(many / one, 3.0),
            ]
        })
        .collect();
    print(
        "64 MiB in one buffer and in 10,000",
        &["operation", "one", "10,000", "ratio"],
        &rows,
    );
    Ok(())
}

/// Starts a program that holds so many MiB on a card, in so many buffers.
fn start<'a>(
    place: &'a Place,
    program: &Path,
    size: usize,
    buffers: usize,
) -> Result<Application<'a>> {
    let mut command = place.snapify();
    command
        .args(["run", "--cards", "2", "--card-memory"])
        .arg(format!("{}M", size + 128))
        .arg("--")
        .arg(program)
        .args([size.to_string(), buffers.to_string()]);
    let mut held = Application::start(place, &mut command)?;
    let line = held.line()?;
    ensure!(line.trim() == "ready", "the program said '{line}'");
    Ok(held)
}

/// The sum of what it holds.
fn sum(held: &mut Application<'_>) -> Result<String> {
    held.input()?.write_all(b"sum\n")?;
    let line = held.line()?;
    ensure!(line.starts_with("sum "), "the program said '{line}'");
    Ok(line)
}
