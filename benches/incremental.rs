//! What a snapshot costs of which a hundredth has changed since the one before, beside a full one; and what it costs the program that
//! its changes are followed.

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
    let (mut times, mut costs) = (Vec::new(), Vec::new());
    for (size, huge) in SIZES {
        let pages = if huge { "huge" } else { "small" };
        let name = format!("{size} GiB, {pages} pages");
        let mut running = Program::start(&program, &[(size << 10).to_string(), pages.to_owned()])?;
        // Once for whatever comes only once.
        running.write(1)?;
        let snapshot = dir.join("chain");
        let [mut free, mut followed] = [const { Vec::new() }; 2];
        let [mut full, mut part, mut first, mut again, mut ratio] = [const { Vec::new() }; 5];
        for run in 0..RUNS {
            let before = running.write(SPARSE)?;
            if run == 0 {
                free.push(before);
            }
            let report = checkpoint(place, &running, &snapshot, "--full")?;
            full.push(seconds(&report, "total_seconds")?);
            if run == 0 {
                first.push(tracking(&snapshot)?);
            }
            followed.push(running.write(SPARSE)?);
            let report = checkpoint(place, &running, &snapshot, "--incremental")?;
            ensure!(!report["parent"].is_null(), "it is incremental");
            part.push(seconds(&report, "total_seconds")?);
            again.push(tracking(&snapshot)?);
            let written = (size << 30) as f64 / f64::from(SPARSE);
            ratio.push(seconds(&report, "file_bytes")? / written);
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
        costs.push(vec![
            name,
            rate(first),
            rate(again),
            format!("{:.2} us", cost * 1e6),
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
            "again, 1 % written",
            "first write to a page",
        ],
        &costs,
    );
    Ok(())
}

fn checkpoint(place: &Place, program: &Program, dir: &Path, kind: &str) -> Result<Value> {
    let output = place
        .snapify()
        .arg("checkpoint")
        .arg(program.id().to_string())
        .arg(dir)
        .args([kind, "--live=never", "--json"])
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

/// Seconds for which the last checkpoint saw to the following of changes: the phase `track` of its report.
fn tracking(dir: &Path) -> Result<f64> {
    let reports = std::fs::read_dir(dir.join("reports"))?;
    let mut paths: Vec<_> = reports.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let last = paths.last().context("there is a report")?;
    let report: Value = serde_json::from_slice(&std::fs::read(last)?)?;
    find(&report).context("it tells of the phase `track`")
}

/// How long the phase took, in seconds, wherever in the report it is.
fn find(value: &Value) -> Option<f64> {
    match value {
        Value::Object(members) => {
            let is_it = members.get("name") == Some(&"track".into());
            let time = |name: &str| members.get(name)?.as_f64();
            match (is_it, time("start_ns"), time("end_ns")) {
                (true, Some(begin), Some(end)) => Some((end - begin) / 1e9),
                _ => members.values().find_map(find),
            }
        }
        Value::Array(values) => values.iter().find_map(find),
        _ => None,
    }
}
