//! Swapping and migrating an offload process while its program runs, against plain operations on as many bytes.

use crate::machine::{self, Buffer, plain_write_and_read};
use crate::place::Place;
use crate::table::{at_least, median, print, under};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

/// Sizes of the local store in MiB, unless `SNAPIFY_BENCH_SIZES` names others: `64,4096`.
const SIZES: [usize; 3] = [64, 256, 1024];
const RUNS: usize = 3;

pub fn run(place: &Place) -> Result<()> {
    let flags = ["-fopenmp", "-fopenmp-targets=x86_64-pc-linux-gnu"];
    let program = place.compile("clang-16", "omp_hold.c", &flags)?;
    let mut rows = Vec::new();
    for size in sizes()? {
        let mut held = Held::start(place, &program, size)?;
        let data = Buffer::random(size << 20)?;
        let sum = held.sum()?;
        for (name, dir) in place.directories() {
            let mut taken = [const { Vec::new() }; 9];
            for _ in 0..RUNS {
                let (write, read) = plain_write_and_read(dir, &data)?;
                let image = dir.join("swap");
                let image = image.to_str().context("a directory whose name is text")?;
                let out = held.ask("swap-out", image)?;
                let fill = machine::fill(size << 20)?;
                let back = held.ask("swap-in", "0")?;
                let copy = copy(&data)?;
                let moved = held.ask("migrate", "1")?;
                held.ask("migrate", "0")?;
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
        ensure!(held.sum()? == sum, "the card's memory has changed");
        held.end()?;
    }
    print(
        "Swap-out, swap-in and migration of an offload process (seconds of the supervisor)",
        &["operation", "time", "rate", "against", "ratio"],
        &rows,
    );
    Ok(())
}

fn sizes() -> Result<Vec<usize>> {
    let Ok(named) = std::env::var("SNAPIFY_BENCH_SIZES") else {
        return Ok(SIZES.to_vec());
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

/// Seconds for a copy into fresh memory.
fn copy(data: &Buffer) -> Result<f64> {
    let mut fresh = Buffer::fresh(data.as_ref().len())?;
    let begin = std::time::Instant::now();
    fresh.as_mut().copy_from_slice(data.as_ref());
    Ok(begin.elapsed().as_secs_f64())
}

/// A program that holds memory on a card.
struct Held<'a> {
    place: &'a Place,
    run: Child,
    output: BufReader<ChildStdout>,
    host: String,
}

impl<'a> Held<'a> {
    fn start(place: &'a Place, program: &std::path::Path, size: usize) -> Result<Self> {
        let mut run = place
            .snapify()
            .args(["run", "--cards", "2", "--card-memory"])
            .arg(format!("{}M", size + 128))
            .arg("--")
            .arg(program)
            .arg(size.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start snapify run")?;
        let mut output = BufReader::new(run.stdout.take().context("standard output is a pipe")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(line.trim() == "ready", "the program said '{line}'");
        let host = run.id().to_string();
        Ok(Self {
            place,
            run,
            output,
            host,
        })
    }

    /// `snapify OPERATION HOST ARGUMENT`.
    fn ask(&self, operation: &str, argument: &str) -> Result<Value> {
        let done = self
            .place
            .snapify()
            .args([operation, &self.host, argument, "--json"])
            .output()?;
        ensure!(
            done.status.success(),
            "{operation}: {}",
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(serde_json::from_slice(&done.stdout)?)
    }

    fn sum(&mut self) -> Result<String> {
        let input = self
            .run
            .stdin
            .as_mut()
            .context("standard input is a pipe")?;
        input.write_all(b"sum\n")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(line.starts_with("sum "), "the program said '{line}'");
        Ok(line)
    }

    fn end(mut self) -> Result<()> {
        drop(self.run.stdin.take());
        ensure!(self.run.wait()?.success(), "the program failed");
        Ok(())
    }
}
