//! Figure 10 of paper 1: checkpoint and restart, swap-out and swap-in, and migration of five programs, and what each of these
//! consists of. As in the paper the semantic search (SS) and the matrix product (SG) have a local store that is large against
//! the image of their offload process, the other three a small one.
//!
//! Sizes of the large stores in MiB are `SNAPIFY_BENCH_SIZES=64,4096`.

use crate::application::Application;
use crate::machine::{self, Buffer, plain_write_and_read};
use crate::place::Place;
use crate::table::{at_least, median, print};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

/// Sizes of large local stores unless others are named.
const SIZES: [usize; 2] = [64, 256];
const RUNS: usize = 3;

/// A program, what it is called in the paper, and how it is told to run for long with a local store of so many MiB.
struct Subject {
    title: String,
    example: &'static str,
    options: Vec<String>,
    /// Memory of a card in MiB.
    memory: usize,
}

fn subjects(sizes: &[usize]) -> Vec<Subject> {
    let subject = |title: &str, example, options: &[String], memory| Subject {
        title: title.to_owned(),
        example,
        options: options.to_vec(),
        memory,
    };
    let text = |options: &[&str]| -> Vec<String> { options.iter().map(|&o| o.into()).collect() };
    let mut all = vec![
        subject("MD", "md", &text(&["--steps", "100000000"]), 128),
        subject(
            "MC",
            "mc",
            &text(&["--particles", "100000000000", "--batches", "10000"]),
            128,
        ),
        subject("KM", "kmeans", &text(&["--iterations", "10000000"]), 256),
    ];
    for size in sizes {
        // Of 512 bytes each, and of 16 Ki times 4 bytes each.
        let vectors = ["--vectors".into(), (size << 11).to_string()];
        let columns = ["--columns".into(), (size << 4).to_string()];
        let search = text(&["--batches", "10000000", "--batch", "4"]);
        let product = text(&["--rows", "16384", "--inner", "64", "--rounds", "10000000"]);
        all.push(subject(
            &format!("SS, {size} MiB"),
            "search",
            &[&vectors[..], &search].concat(),
            size + 128,
        ));
        all.push(subject(
            &format!("SG, {size} MiB"),
            "sgemm",
            &[&columns[..], &product].concat(),
            size + size / 4 + 128,
        ));
    }
    all
}

pub fn run(place: &Place) -> Result<()> {
    let sizes = crate::swap::sizes(&SIZES)?;
    let mut tables = Tables::default();
    for subject in subjects(&sizes) {
        measure(place, &subject, &mut tables)
            .with_context(|| format!("measure {}", subject.title))?;
    }
    tables.print();
    Ok(())
}

#[derive(Default)]
struct Tables {
    sizes: Vec<Vec<String>>,
    checkpoint: Vec<Vec<String>>,
    restart: Vec<Vec<String>>,
    out: Vec<Vec<String>>,
    back: Vec<Vec<String>>,
    moved: Vec<Vec<String>>,
}

impl Tables {
    fn print(&self) {
        print(
            "Sizes (paper 1, figure 10b)",
            &["program", "host process", "offload process", "local store"],
            &self.sizes,
        );
        print(
            "Checkpoint (figure 10a), to tmpfs",
            &[
                "program",
                "pause",
                "capture of the host process",
                "capture by the card",
                "commit",
                "in all",
                "to a plain write",
            ],
            &self.checkpoint,
        );
        print(
            "Restart (figure 10c), from tmpfs",
            &[
                "program",
                "check, start cards",
                "offload process",
                "host process",
                "in all",
                "to filling fresh memory",
            ],
            &self.restart,
        );
        print(
            "Migration (figure 10d)",
            &[
                "program",
                "pause",
                "capture",
                "restore",
                "resume, release",
                "in all",
                "to memcpy into fresh memory",
            ],
            &self.moved,
        );
        print(
            "Swap-out (figure 10e), to tmpfs",
            &[
                "program",
                "pause",
                "capture",
                "commit",
                "release",
                "in all",
                "to a plain write",
            ],
            &self.out,
        );
        print(
            "Swap-in (figure 10f), from tmpfs",
            &[
                "program",
                "check",
                "restore and resume",
                "remove the image",
                "in all",
                "to filling fresh memory",
            ],
            &self.back,
        );
    }
}

fn measure(place: &Place, subject: &Subject, tables: &mut Tables) -> Result<()> {
    let dir = place.scratch();
    let (snapshots, image) = (dir.join("snapshots"), dir.join("image"));
    let (snapshots, image) = (text(&snapshots)?, text(&image)?);
    let mut command = place.snapify();
    command
        .args(["run", "--cards", "2", "--card-memory"])
        .arg(format!("{}M", subject.memory))
        .arg("--")
        .arg(place.example(subject.example))
        .args(&subject.options);
    let mut program = Application::start(place, &mut command)?;
    // Its title, and what it says when it has worked for a while.
    for _ in 0..4 {
        program.line()?;
    }
    // Nobody reads what else it says: a pipe holds more than it says meanwhile.
    let mut taken = Taken::default();
    let mut sizes = Value::Null;
    for _ in 0..RUNS {
        let saved = program.ask("checkpoint", &[snapshots])?;
        let timeline = newest(place, snapshots)?;
        let bytes = number(&saved, "file_bytes") as usize;
        taken.plain_write(0, dir, bytes)?;
        taken.note(0, &timeline, &["pause", "capture", "commit"]);
        taken.push(0, "host", within(&timeline, "host", "save pages"));
        taken.push(0, "card", within(&timeline, "card", "save"));
        sizes = saved;
        std::fs::remove_dir_all(snapshots)?;

        let out = program.ask("swap-out", &[image])?;
        let bytes = number(&out, "file_bytes") as usize;
        taken.plain_write(1, dir, bytes)?;
        taken.note(
            1,
            &out["timeline"],
            &["pause", "capture", "commit", "release"],
        );
        machine::warm(bytes)?;
        let back = program.ask("swap-in", &["0"])?;
        taken.plain_fill(2, bytes)?;
        let phases = ["check", "restore and resume", "remove the image"];
        taken.note(2, &back["timeline"], &phases);

        let bytes = number(&out, "store_bytes") as usize;
        machine::warm(bytes)?;
        let moved = program.ask("migrate", &["1"])?;
        taken.plain_copy(3, bytes)?;
        let phases = ["pause", "capture", "restore", "resume", "release"];
        taken.note(3, &moved["timeline"], &phases);
        program.ask("migrate", &["0"])?;
    }
    let last = program.ask("checkpoint", &[snapshots, "--stop"])?;
    program.wait()?;
    for _ in 0..RUNS {
        let bytes = number(&last, "file_bytes") as usize;
        machine::warm(bytes)?;
        let mut restart = place.snapify();
        restart.args(["restart", snapshots]);
        let mut restarted = Application::start(place, &mut restart)?;
        restarted.line()?;
        let timeline = await_restart(place, snapshots)?;
        drop(restarted);
        std::fs::remove_dir_all(Path::new(snapshots).join("reports"))?;
        taken.plain_fill(4, bytes)?;
        let phases = [
            "check",
            "start cards",
            "restore offload processes",
            "restore host process",
        ];
        taken.note(4, &timeline, &phases);
    }
    std::fs::remove_dir_all(snapshots)?;
    tell(subject, &sizes, &taken, tables);
    Ok(())
}

fn tell(subject: &Subject, saved: &Value, taken: &Taken, tables: &mut Tables) {
    let members = saved["members"].as_array().map_or(&[][..], Vec::as_slice);
    let of = |offload: bool, what: &str| -> f64 {
        let wanted = members
            .iter()
            .filter(|member| member["card"].is_null() != offload);
        wanted.map(|member| number(member, what)).sum()
    };
    let store = of(true, "store_bytes");
    let title = || subject.title.clone();
    let size = |bytes: f64| format!("{:.1} MiB", bytes / (1 << 20) as f64);
    tables.sizes.push(vec![
        title(),
        size(of(false, "stored_bytes")),
        size(of(true, "stored_bytes") - store),
        size(store),
    ]);
    let ms = |seconds: f64| format!("{:.1} ms", seconds * 1e3);
    let part = |operation, names: &[&str]| {
        let seconds = names.iter().map(|name| taken.median(operation, name)).sum();
        ms(seconds)
    };
    let ratio = |operation, target| {
        let ratio = taken.median(operation, PLAIN) / taken.median(operation, ALL);
        // Of little memory the fixed costs are all that there is.
        if store < (64 << 20) as f64 {
            format!("{ratio:.2}")
        } else {
            at_least(ratio, target)
        }
    };
    tables.checkpoint.push(vec![
        title(),
        part(0, &["pause"]),
        part(0, &["host"]),
        part(0, &["card"]),
        part(0, &["commit"]),
        part(0, &[ALL]),
        ratio(0, 0.8),
    ]);
    tables.out.push(vec![
        title(),
        part(1, &["pause"]),
        part(1, &["capture"]),
        part(1, &["commit"]),
        part(1, &["release"]),
        part(1, &[ALL]),
        ratio(1, 0.8),
    ]);
    tables.back.push(vec![
        title(),
        part(2, &["check"]),
        part(2, &["restore and resume"]),
        part(2, &["remove the image"]),
        part(2, &[ALL]),
        ratio(2, 0.8),
    ]);
    tables.moved.push(vec![
        title(),
        part(3, &["pause"]),
        part(3, &["capture"]),
        part(3, &["restore"]),
        part(3, &["resume", "release"]),
        part(3, &[ALL]),
        ratio(3, 0.7),
    ]);
    tables.restart.push(vec![
        title(),
        part(4, &["check", "start cards"]),
        part(4, &["restore offload processes"]),
        part(4, &["restore host process"]),
        part(4, &[ALL]),
        ratio(4, 0.8),
    ]);
}

const ALL: &str = "in all";
const PLAIN: &str = "plain";

/// Seconds by operation and part of it, one for each run.
#[derive(Default)]
struct Taken(std::collections::HashMap<(usize, String), Vec<f64>>);

impl Taken {
    fn push(&mut self, operation: usize, part: &str, seconds: f64) {
        let key = (operation, part.to_owned());
        self.0.entry(key).or_default().push(seconds);
    }

    /// Notes phases of the coordinator, and the whole.
    fn note(&mut self, operation: usize, timeline: &Value, names: &[&str]) {
        for name in names {
            let seconds = within(timeline, "coordinator", name);
            self.push(operation, name, seconds);
        }
        self.push(operation, ALL, number(timeline, "took_ns") / 1e9);
    }

    fn plain_write(&mut self, operation: usize, dir: &Path, bytes: usize) -> Result<()> {
        let data = Buffer::random(bytes.next_multiple_of(1 << 20))?;
        machine::warm(bytes)?;
        let (write, _) = plain_write_and_read(dir, &data)?;
        self.push(operation, PLAIN, write);
        Ok(())
    }

    fn plain_fill(&mut self, operation: usize, bytes: usize) -> Result<()> {
        machine::warm(bytes)?;
        let seconds = machine::fill(bytes)?;
        self.push(operation, PLAIN, seconds);
        Ok(())
    }

    fn plain_copy(&mut self, operation: usize, bytes: usize) -> Result<()> {
        let data = Buffer::random(bytes.next_multiple_of(8))?;
        let seconds = machine::copy(&data)?;
        self.push(operation, PLAIN, seconds);
        Ok(())
    }

    fn median(&self, operation: usize, part: &str) -> f64 {
        let key = (operation, part.to_owned());
        median(self.0.get(&key).cloned().unwrap_or_default())
    }
}

/// Seconds from the first beginning to the last end of what somebody did whose name begins like this; 0 if nothing.
fn within(timeline: &Value, actor: &str, name: &str) -> f64 {
    let phases = timeline["phases"].as_array().map_or(&[][..], Vec::as_slice);
    let wanted = phases.iter().filter(|phase| {
        let begins = |text: &str| text == name || (name == "save" && text.starts_with(name));
        phase["actor"]["kind"] == actor && phase["name"].as_str().is_some_and(begins)
    });
    let (from, to) = wanted.fold((f64::MAX, 0.0_f64), |(from, to), phase| {
        (
            from.min(number(phase, "start_ns")),
            to.max(number(phase, "end_ns")),
        )
    });
    (to - from).max(0.0) / 1e9
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or(f64::NAN)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a directory whose name is text")
}

/// The newest timeline that is kept in a directory.
fn newest(place: &Place, dir: &str) -> Result<Value> {
    let mut told = place.ask(&["report", dir, "--last", "1", "--json"])?;
    Ok(told["timelines"][0].take())
}

/// The timeline of a restart. It is written when the program runs already.
fn await_restart(place: &Place, dir: &str) -> Result<Value> {
    for _ in 0..1000 {
        let told = newest(place, dir)?;
        if told["operation"] == "restart" {
            return Ok(told);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    anyhow::bail!("the restart from {dir} is not recorded");
}
