//! How long a program stands still while a snapshot of it is taken: with its memory saved meanwhile, and with its memory
//! saved from a copy while it goes on; and how long the fork by itself takes that makes such a copy.

use crate::machine::has_room;
use crate::place::Place;
use crate::program::Program;
use crate::table::{median, print};
use anyhow::{Context, Result, ensure};
use std::path::Path;

const RUNS: usize = 3;

/// Gibibytes of private memory, and whether in huge pages.
const SIZES: [(usize, bool); 6] = [
    (1, false),
    (4, false),
    (8, false),
    (1, true),
    (4, true),
    (8, true),
];

pub fn run(place: &Place) -> Result<()> {
    let program = place.compile("cc", "touched.c", &[])?;
    let dir = place.scratch();
    let mut rows = Vec::new();
    for (size, huge) in SIZES {
        let pages = if huge { "huge" } else { "small" };
        // The program, its snapshot, and a margin.
        if !has_room((size as u64 * 2 + 1) << 30)? {
            let name = format!("{size} GiB, {pages} pages");
            rows.push(vec![name, "not enough memory".to_owned()]);
            continue;
        }
        let mut running = Program::start(&program, &[(size << 10).to_string(), pages.to_owned()])?;
        let mut taken = [const { Vec::new() }; 3];
        for _ in 0..RUNS {
            taken[0].push(stop(place, &running, dir, "never")?);
            taken[1].push(stop(place, &running, dir, "always")?);
            taken[2].push(running.fork()?);
        }
        let [stopped, live, fork] = taken.map(median);
        rows.push(vec![
            format!("{size} GiB, {pages} pages"),
            format!("{:.1} ms", stopped * 1e3),
            format!("{:.1} ms", live * 1e3),
            format!("{:.1} ms", fork * 1e3),
            format!("{:.2} times", live / fork),
        ]);
    }
    print(
        "How long a program stands still for a snapshot (to tmpfs)",
        &[
            "memory",
            "stop and copy",
            "live",
            "fork alone",
            "live to fork",
        ],
        &rows,
    );
    Ok(())
}

/// Seconds that a snapshot stops the program for.
fn stop(place: &Place, program: &Program, dir: &Path, live: &str) -> Result<f64> {
    let snapshot = dir.join("snapshot");
    let output = place
        .snapify()
        .arg("checkpoint")
        .arg(program.id().to_string())
        .arg(&snapshot)
        .args([&format!("--live={live}"), "--json"])
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    std::fs::remove_dir_all(&snapshot)?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(report["live"] == (live == "always"), "{errors}");
    report["frozen_seconds"]
        .as_f64()
        .context("the report tells how long the program stood still")
}
