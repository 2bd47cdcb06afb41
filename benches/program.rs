//! A program that is measured: it says "ready" when it is, and ends when its standard input does.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A started program. It is killed when this is dropped.
pub struct Program {
    child: Child,
}

impl Program {
    /// Starts it and waits until it is ready.
    pub fn start(program: &Path, args: &[String]) -> Result<Self> {
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the program")?;
        let mut program = Self { child };
        let line = program.line()?;
        ensure!(line == "ready", "the program said '{line}'");
        Ok(program)
    }

    /// Has it fork; seconds that that took.
    pub fn fork(&mut self) -> Result<f64> {
        self.tell("fork")
    }

    /// Has it write to every `n`-th of its pages; seconds that that took.
    pub fn write(&mut self, n: u32) -> Result<f64> {
        self.tell(&format!("write {n}"))
    }

    /// Has it follow its own writes, with nothing but the system calls that this takes; seconds that that took.
    pub fn arm(&mut self) -> Result<f64> {
        self.tell("arm")
    }

    /// Has it ask what was written since, and follow it again; seconds that that took. Afterwards nothing is followed.
    pub fn scan(&mut self) -> Result<f64> {
        self.tell("scan")
    }

    fn tell(&mut self, what: &str) -> Result<f64> {
        let input = self.child.stdin.as_mut();
        writeln!(input.context("standard input is a pipe")?, "{what}")?;
        let nanoseconds: f64 = self.line()?.parse()?;
        Ok(nanoseconds / 1e9)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says; it says one at a time.
    fn line(&mut self) -> Result<String> {
        let output = self.child.stdout.as_mut();
        let mut lines = BufReader::new(output.context("standard output is a pipe")?);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
