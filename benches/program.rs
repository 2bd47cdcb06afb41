//! A program that is measured: it says "ready" when it is, and ends when its standard input does.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
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
        program.wait_for_line("ready")?;
        Ok(program)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn wait_for_line(&mut self, text: &str) -> Result<()> {
        let output = self.child.stdout.as_mut();
        let mut lines = BufReader::new(output.context("standard output is a pipe")?);
        let mut line = String::new();
        lines.read_line(&mut line)?;
        ensure!(line.trim() == text, "the program said '{line}'");
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
