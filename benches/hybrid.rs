//! Full and incremental snapshots of the kernels: figures 7 to 11 of paper 5.

use crate::kernel::{KERNELS, Kernel, base};
use crate::place::Place;
use crate::table::{median, print};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use snapify_plan::bars::Bars;
use snapify_plan::hybrid::savings;
use std::path::Path;
use std::time::Instant;

const RUNS: usize = 3;
const CLASSES: [&str; 2] = ["A", "B"];
/// Incremental snapshots on each full one, as in the paper.
const INCREMENTS: u32 = 3;
/// Steps from one snapshot to the next.
const STEPS: u32 = 2;
/// Numbers of incremental snapshots for which savings are told.
const SAVINGS: [u32; 3] = [1, 3, 10];

/// What a kernel was found to cost: seconds and bytes.
struct Costs {
    base: f64,
    full: f64,
    incremental: f64,
    stood_full: f64,
    stood_incremental: f64,
    full_bytes: f64,
    incremental_bytes: f64,
    restart_full: f64,
    restart_chain: f64,
}

pub fn run(place: &Place) -> Result<()> {
    for class in CLASSES {
        let mut found = Vec::new();
        // Their figure 10 is of mpiBLAST.
        let all = KERNELS.into_iter().chain(["blast"]);
        for name in all.filter(|name| is_wanted(name)) {
            found.push((name, measure(place, name, class)?));
        }
        tables(class, &found);
        place.plot(
            &format!("hybrid-{}.svg", class.to_lowercase()),
            &format!("Full and incremental snapshots, class {class}"),
            &charts(class, &found),
        )?;
    }
    Ok(())
}

/// Whether a kernel is among those that `SNAPIFY_BENCH_KERNELS` lists, with commas; all are if it is not set.
fn is_wanted(name: &str) -> bool {
    let list = std::env::var("SNAPIFY_BENCH_KERNELS");
    list.map_or(true, |list| list.split(',').any(|wanted| wanted == name))
}

fn measure(place: &Place, name: &str, class: &str) -> Result<Costs> {
    let [_, (_, disk)] = place.directories();
    let dir = disk.join("kernels");
    let base = base(place, name, class)?;
    let mut all: [Vec<f64>; 8] = Default::default();
    for _ in 0..RUNS {
        let _ = std::fs::remove_dir_all(&dir);
        rustix::fs::syncfs(std::fs::File::open(disk)?)?;
        let mut kernel = Kernel::start(place, name, class)?;
        for n in 0..=INCREMENTS {
            kernel.steps(STEPS)?;
            let report = checkpoint(place, kernel.id(), &dir)?;
            ensure!(report["parent"].is_null() == (n == 0), "{report}");
            let figure = |name: &str| report[name].as_f64().context("the report is complete");
            let at = usize::from(n > 0);
            all[at].push(figure("total_seconds")?);
            all[2 + at].push(figure("frozen_seconds")?);
            all[4 + at].push(figure("file_bytes")?);
        }
        drop(kernel);
        all[6].push(restart(place, &dir, 1)?);
        all[7].push(restart(place, &dir, 1 + INCREMENTS)?);
    }
    std::fs::remove_dir_all(&dir)?;
    let [
        full,
        incremental,
        stood_full,
        stood_incremental,
        full_bytes,
        incremental_bytes,
        restart_full,
        restart_chain,
    ] = all.map(median);
    Ok(Costs {
        base,
        full,
        incremental,
        stood_full,
        stood_incremental,
        full_bytes,
        incremental_bytes,
        restart_full,
        restart_chain,
    })
}

fn checkpoint(place: &Place, pid: u32, dir: &Path) -> Result<Value> {
    let output = place
        .snapify()
        .args([
            "checkpoint",
            &pid.to_string(),
            "--full-every",
            "64",
            "--json",
        ])
        .arg(dir)
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Has the page cache forget what it has of the snapshots: each restart reads from the disk.
fn forget(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            forget(&path)?;
        } else {
            let file = std::fs::File::open(&path)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// Seconds until a point of the chain runs again.
fn restart(place: &Place, dir: &Path, point: u32) -> Result<f64> {
    let file = place.scratch().join("pid");
    let _ = std::fs::remove_file(&file);
    forget(dir)?;
    let mut command = place.snapify();
    command
        .arg("restart")
        .arg(dir)
        .args(["--at", &point.to_string(), "--detach", "--pid-file"])
        .arg(&file)
        .stdout(std::process::Stdio::null());
    let begin = Instant::now();
    ensure!(command.status()?.success(), "point {point} is restarted");
    let time = begin.elapsed().as_secs_f64();
    let pid: i32 = std::fs::read_to_string(&file)?.trim().parse()?;
    let pid = Pid::from_raw(pid).context("an id")?;
    kill_process(pid, Signal::KILL)?;
    // It is another's child, and its id is needed again.
    while test_kill_process(pid).is_ok() {
        std::thread::yield_now();
    }
    Ok(time)
}

fn saved(costs: &Costs, n: u32) -> f64 {
    // What each incremental snapshot adds to a restart is taken to be the same.
    let more = (costs.restart_chain - costs.restart_full) * f64::from(n) / f64::from(INCREMENTS);
    let chain = costs.restart_full + more;
    savings(n, costs.full, costs.incremental, chain, costs.restart_full)
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.0} ms", seconds * 1e3)
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / (1 << 20) as f64)
}

fn tables(class: &str, found: &[(&str, Costs)]) {
    let row = |(name, costs): &(&str, Costs)| {
        vec![
            (*name).to_owned(),
            format!("{:.1} s", costs.base),
            milliseconds(costs.full),
            milliseconds(costs.incremental),
            milliseconds(costs.stood_full),
            milliseconds(costs.stood_incremental),
            mebibytes(costs.full_bytes),
            mebibytes(costs.incremental_bytes),
            milliseconds(costs.restart_full),
            milliseconds(costs.restart_chain),
        ]
    };
    print(
        &format!("Snapshots of kernels of class {class}, to disk, every {STEPS} steps"),
        &[
            "kernel",
            "by itself",
            "full",
            "incremental",
            "stood still: full",
            "incremental",
            "size: full",
            "incremental",
            "restart: full",
            "full + 3",
        ],
        &found.iter().map(row).collect::<Vec<_>>(),
    );
    let row = |(name, costs): &(&str, Costs)| {
        let mut row = vec![(*name).to_owned()];
        row.extend(SAVINGS.map(|n| milliseconds(saved(costs, n))));
        row
    };
    let heads = SAVINGS.map(|n| format!("n = {n}"));
    let mut head = vec!["kernel"];
    head.extend(heads.iter().map(String::as_str));
    print(
        &format!("Saved by n incremental snapshots in the place of full ones, class {class}: S_n"),
        &head,
        &found.iter().map(row).collect::<Vec<_>>(),
    );
}

fn charts(class: &str, found: &[(&str, Costs)]) -> Vec<Bars> {
    let chart = |title: &str, series: &[&str], text, values: &dyn Fn(&Costs) -> Vec<f64>| Bars {
        title: format!("{title}, class {class}"),
        series: series.iter().map(ToString::to_string).collect(),
        groups: found
            .iter()
            .map(|(name, costs)| ((*name).to_owned(), values(costs)))
            .collect(),
        text,
    };
    let heads = SAVINGS.map(|n| format!("{n} incremental"));
    vec![
        chart(
            "(a) Run time without snapshots",
            &["from start to end"],
            |value| format!("{value:.1} s"),
            &|costs| vec![costs.base],
        ),
        chart(
            "(b) Time of a snapshot",
            &["full", "incremental"],
            milliseconds,
            &|costs| vec![costs.full, costs.incremental],
        ),
        chart(
            "(c) Size of a snapshot",
            &["full", "incremental"],
            mebibytes,
            &|costs| vec![costs.full_bytes, costs.incremental_bytes],
        ),
        chart(
            "(d) Restart",
            &["from a full one", "from a full one and three more"],
            milliseconds,
            &|costs| vec![costs.restart_full, costs.restart_chain],
        ),
        chart(
            "S_n: time saved between two full ones",
            &heads.each_ref().map(String::as_str),
            milliseconds,
            &|costs| SAVINGS.map(|n| saved(costs, n)).into(),
        ),
    ]
}
