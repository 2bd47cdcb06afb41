//! What `snapify run` costs a program of which no snapshot is taken (paper 1, figure 9): the same binary with the
//! stock x86_64 plugin of libomptarget, in the host process, against one card.

use crate::place::Place;
use crate::table::{median, print};
use anyhow::{Result, ensure};
use std::process::{Command, Stdio};
use std::time::Instant;

const RUNS: usize = 3;
const EXAMPLES: [&str; 5] = ["md", "mc", "sgemm", "search", "kmeans"];

pub fn run(place: &Place) -> Result<()> {
    let mut rows = Vec::new();
    let mut ratios = Vec::new();
    for name in EXAMPLES {
        let program = place.example(name);
        let mut taken = [const { Vec::new() }; 2];
        for _ in 0..RUNS {
            let mut stock = Command::new(&program);
            stock
                .env("LD_LIBRARY_PATH", "/usr/lib/llvm-16/lib")
                .env("OMP_TARGET_OFFLOAD", "MANDATORY");
            taken[0].push(time(&mut stock)?);
            let mut ours = place.snapify();
            ours.args(["run", "--cards", "1", "--"])
                .arg(&program)
                .env("OMP_TARGET_OFFLOAD", "MANDATORY");
            taken[1].push(time(&mut ours)?);
        }
        let [stock, ours] = taken.map(median);
        let overhead = (ours / stock - 1.0) * 100.0;
        ratios.push(overhead);
        rows.push(vec![
            name.to_owned(),
            format!("{stock:.2} s"),
            format!("{ours:.2} s"),
            format!(
                "{overhead:+.1} % (at most 5 %: {})",
                if overhead <= 5.0 { "met" } else { "MISSED" }
            ),
        ]);
    }
    let average = ratios.iter().sum::<f64>() / ratios.len() as f64;
    rows.push(vec![
        "average".to_owned(),
        String::new(),
        String::new(),
        format!(
            "{average:+.1} % (at most 1.5 %: {})",
            if average <= 1.5 { "met" } else { "MISSED" }
        ),
    ]);
    print(
        "Run time without snapshots: stock plugin against `snapify run --cards 1`",
        &["example", "stock", "snapify", "overhead"],
        &rows,
    );
    Ok(())
}

fn time(command: &mut Command) -> Result<f64> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begin = Instant::now();
    let status = command.status()?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(begin.elapsed().as_secs_f64())
}
