//! What a snapshot costs of which a hundredth has changed since the one before, beside a full one; and what it costs the program that
//! its changes are followed, beside what the kernel alone takes for that.

use crate::place::Place;
use crate::program::Program;
use crate::table::{median, print};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;

const RUNS: usize = 3;

/// Gibibytes of private memory, and whether in huge pages.
const SIZES: [(usize, bool); 3] = [(1, false), (4, false), (4, true)];

/// Every so many pages one is written.
const SPARSE: u32 = 100;

pub fn run(place: &Place) -> Result<()> {
    let program = place.compile("cc", "touched.c", &[])?;
    let dir = place.scratch();
    let (mut times, mut costs, mut steady) = (Vec::new(), Vec::new(), Vec::new());
    for (size, huge) in SIZES {
        let pages = if huge { "huge" } else { "small" };
        let name = format!("{size} GiB, {pages} pages");
        let mut running = Program::start(&program, &[(size << 10).to_string(), pages.to_owned()])?;
        // Once for whatever comes only once.
        running.write(1)?;
        // Before anybody else follows it: the system calls alone, by the program itself.
        let [mut arm, mut scan] = [const { Vec::new() }; 2];
        for _ in 0..RUNS {
            arm.push(running.arm()?);
            running.write(SPARSE)?;
            scan.push(running.scan()?);
        }
        let all_free = running.write(1)?;
        let snapshot = dir.join("chain");
        let [mut free, mut followed] = [const { Vec::new() }; 2];
        let [mut full, mut part, mut first, mut again, mut ratio] = [const { Vec::new() }; 5];
        let [mut look, mut stopped, mut all_followed] = [const { Vec::new() }; 3];
        for run in 0..RUNS {
            let before = running.write(SPARSE)?;
            if run == 0 {
                free.push(before);
            }
            let report = checkpoint(place, &running, &snapshot, "--full")?;
            full.push(seconds(&report, "total_seconds")?);
            if run == 0 {
                first.push(phase(&snapshot, "track")?);
            }
            followed.push(running.write(SPARSE)?);
            let report = checkpoint(place, &running, &snapshot, "--incremental")?;
            ensure!(!report["parent"].is_null(), "it is incremental");
            part.push(seconds(&report, "total_seconds")?);
            again.push(phase(&snapshot, "track")?);
            look.push(phase(&snapshot, "describe")?);
            let written = (size << 30) as f64 / f64::from(SPARSE);
            ratio.push(seconds(&report, "file_bytes")? / written);
            all_followed.push(running.write(1)?);
            // As it is meant: it goes on while it is saved.
            let report = live(place, &running, &snapshot)?;
            stopped.push(seconds(&report, "frozen_seconds")?);
            std::fs::remove_dir_all(&snapshot)?;
        }
        let [full, part] = [full, part].map(median);
        times.push(vec![
            name.clone(),
            format!("{:.0} ms", full * 1e3),
            format!("{:.0} ms", part * 1e3),
            format!("{:.1} times", full / part),
            format!("{:.3}", median(ratio)),
        ]);
        let written = (size << 18) as f64 / f64::from(SPARSE);
        let cost = (median(followed) - median(free)) / written;
        let rate = |taken: Vec<f64>| format!("{:.2} ms/GiB", median(taken) * 1e3 / size as f64);
        let alone = [arm, scan].map(median);
        let times_as = |ours: &[f64], alone: f64| format!("{:.2}", median(ours.to_vec()) / alone);
        let [begin_ratio, again_ratio] = [times_as(&first, alone[0]), times_as(&again, alone[1])];
        costs.push(vec![
            name.clone(),
            rate(first),
            rate(vec![alone[0]]),
            begin_ratio,
            rate(again),
            rate(look),
            rate(vec![alone[1]]),
            again_ratio,
        ]);
        let (rewritten, stop) = (median(all_followed) - all_free, median(stopped));
        steady.push(vec![
            name,
            format!("{:.2} us", cost * 1e6),
            format!("{:.2} us", rewritten / (size << 18) as f64 * 1e6),
            format!("{:.0} ms", stop * 1e3),
            format!("{:.2} %", (rewritten + stop) / 60.0 * 100.0),
        ]);
    }
    print(
        "Snapshots of a program that has written 1 % of its pages since the last one (to tmpfs)",
        &[
            "memory",
            "full",
            "incremental",
            "full to incremental",
            "file to pages written",
        ],
        &times,
    );
    print(
        "What following its changes takes",
        &[
            "memory",
            "begin",
            "kernel alone",
            "ratio",
            "again, 1 % written",
            "describe",
            "look and again, kernel alone",
            "ratio",
        ],
        &costs,
    );
    print(
        "What it takes of a program that rewrites its memory all the time, with a live incremental snapshot each minute",
        &[
            "memory",
            "first write to one page in 100",
            "to each page",
            "stop",
            "of a minute",
        ],
        &steady,
    );
    Ok(())
}

fn checkpoint(place: &Place, program: &Program, dir: &Path, kind: &str) -> Result<Value> {
    run_checkpoint(place, program, dir, [kind, "--live=never"])
}

fn live(place: &Place, program: &Program, dir: &Path) -> Result<Value> {
    run_checkpoint(place, program, dir, ["--incremental", "--live=always"])
}

fn run_checkpoint(
    place: &Place,
    program: &Program,
    dir: &Path,
    manner: [&str; 2],
) -> Result<Value> {
    let output = place
        .snapify()
        .arg("checkpoint")
        .arg(program.id().to_string())
        .arg(dir)
        .args(manner)
        .arg("--json")
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn seconds(report: &Value, name: &str) -> Result<f64> {
    report[name]
        .as_f64()
        .with_context(|| format!("the report has no {name}"))
}

/// Seconds that a phase of the last checkpoint took, from its report. `describe` has the looking for written pages in it, `track`
/// is to have the kernel follow further writes.
fn phase(dir: &Path, name: &str) -> Result<f64> {
    let reports = std::fs::read_dir(dir.join("reports"))?;
    let mut paths: Vec<_> = reports.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let last = paths.last().context("there is a report")?;
    let report: Value = serde_json::from_slice(&std::fs::read(last)?)?;
    find(&report, name).with_context(|| format!("it tells of the phase `{name}`"))
}

/// How long the phase took, in seconds, wherever in the report it is.
fn find(value: &Value, name: &str) -> Option<f64> {
    match value {
        Value::Object(members) => {
            let is_it = members.get("name") == Some(&name.into());
            let time = |key: &str| members.get(key)?.as_f64();
            match (is_it, time("start_ns"), time("end_ns")) {
                (true, Some(begin), Some(end)) => Some((end - begin) / 1e9),
                _ => members.values().find_map(|value| find(value, name)),
            }
        }
        Value::Array(values) => values.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}
