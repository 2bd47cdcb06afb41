//! A program with cards that is measured: it is asked for its swaps and snapshots as a user asks.

use crate::place::Place;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running application. It is killed when this is dropped.
pub struct Application<'a> {
    place: &'a Place,
    run: Child,
    output: BufReader<ChildStdout>,
}

impl<'a> Application<'a> {
    /// Starts it: `command` is a `snapify run` or `snapify restart`.
    pub fn start(place: &'a Place, command: &mut Command) -> Result<Self> {
        let mut run = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        let output = BufReader::new(run.stdout.take().context("standard output is a pipe")?);
        Ok(Self { place, run, output })
    }

    /// The next line that it says.
    pub fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the program has ended");
        Ok(line)
    }

    /// Its standard input.
    pub fn input(&mut self) -> Result<&mut ChildStdin> {
        self.run.stdin.as_mut().context("standard input is a pipe")
    }

    /// `snapify OPERATION HOST ARGUMENTS --json`: what it tells.
    pub fn ask(&self, operation: &str, arguments: &[&str]) -> Result<Value> {
        self.place.ask(
            &[
                &[operation, &self.run.id().to_string()],
                arguments,
                &["--json"],
            ]
            .concat(),
        )
    }

    /// Closes its input, upon which it is to end.
    pub fn end(mut self) -> Result<()> {
        drop(self.run.stdin.take());
        ensure!(self.run.wait()?.success(), "the program failed");
        Ok(())
    }

    /// Waits until it has ended, however it did.
    pub fn wait(mut self) -> Result<()> {
        self.run.wait()?;
        Ok(())
    }
}

impl Drop for Application<'_> {
    fn drop(&mut self) {
        if matches!(self.run.try_wait(), Ok(None)) {
            // The program ends with its supervisor.
            let _ = self.run.kill();
            let _ = self.run.wait();
        }
    }
}
