//! A kernel of `examples/kernels` that is measured: it tells of every step, and is killed when this is dropped.

use crate::place::Place;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Those that are NAS parallel benchmarks, in the order of the papers' figures.
pub const KERNELS: [&str; 7] = ["bt", "cg", "ep", "ft", "lu", "mg", "sp"];

/// A running kernel.
pub struct Kernel {
    child: Child,
    output: BufReader<ChildStdout>,
}

fn command(place: &Place, name: &str, class: &str) -> Command {
    let mut command = Command::new(place.example("kernels").join(name));
    command.args(["--class", class]);
    command
}

/// Seconds that it takes by itself, from start to end, with so many steps as the class has.
pub fn base(place: &Place, name: &str, class: &str) -> Result<f64> {
    let begin = Instant::now();
    let status = command(place, name, class).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "{name} of class {class} fails");
    Ok(begin.elapsed().as_secs_f64())
}

impl Kernel {
    /// Starts one that does not come to its end by itself soon.
    pub fn start(place: &Place, name: &str, class: &str) -> Result<Self> {
        let mut child = command(place, name, class)
            .args(["--steps", "100000"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let output = child.stdout.take().context("its output is a pipe")?;
        Ok(Self {
            child,
            output: BufReader::new(output),
        })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has done so many more steps.
    pub fn steps(&mut self, count: u32) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let mut line = String::new();
            let read = self.output.read_line(&mut line)?;
            ensure!(read > 0, "it has ended");
            left -= u32::from(line.starts_with("step "));
        }
        Ok(())
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
