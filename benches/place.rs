//! Where benchmarks run: the staged installation, and directories on a disk and in memory.

use anyhow::{Context, Result, ensure};
use snapify_plan::bars::{Bars, document};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Directories of one run; removed when dropped.
pub struct Place {
    stage: PathBuf,
    disk: TempDir,
    memory: TempDir,
}

impl Place {
    /// Makes the directories: the one on disk in `SNAPIFY_BENCH_DIR` or the working directory.
    pub fn new() -> Result<Self> {
        let stage =
            std::env::var_os("SNAPIFY_STAGE").map_or_else(|| PathBuf::from("build"), PathBuf::from);
        ensure!(
            stage.join("bin/snapify").exists(),
            "run the benchmarks by `make bench`"
        );
        let on_disk =
            std::env::var_os("SNAPIFY_BENCH_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from);
        let make = |dir: &Path| {
            tempfile::Builder::new()
                .prefix("snapify-bench-")
                .tempdir_in(dir)
                .with_context(|| format!("make a directory in {}", dir.display()))
        };
        Ok(Self {
            stage: stage.canonicalize()?,
            disk: make(&on_disk)?,
            memory: make(Path::new("/dev/shm"))?,
        })
    }

    /// The directory on disk and the one in memory, by name.
    pub fn directories(&self) -> [(&'static str, &Path); 2] {
        [("tmpfs", self.memory.path()), ("disk", self.disk.path())]
    }

    /// A place for files that are not measured.
    pub fn scratch(&self) -> &Path {
        self.memory.path()
    }

    /// Draws charts into a file of the directory that is to have plots, if there is one.
    pub fn plot(&self, name: &str, title: &str, charts: &[Bars]) -> Result<()> {
        let Some(dir) = std::env::var_os("SNAPIFY_BENCH_PLOTS") else {
            return Ok(());
        };
        let path = PathBuf::from(dir).join(name);
        std::fs::write(&path, document(title, charts))
            .with_context(|| format!("write {}", path.display()))
    }

    /// The command line.
    pub fn snapify(&self) -> Command {
        let mut command = Command::new(self.stage.join("bin/snapify"));
        command.env("SNAPIFY_RUNTIME_DIR", self.memory.path().join("run"));
        command
    }

    /// `snapify ARGUMENTS`, which print one JSON object: that.
    pub fn ask(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        let done = self.snapify().args(arguments).output()?;
        ensure!(
            done.status.success(),
            "snapify {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&done.stderr)
        );
        Ok(serde_json::from_slice(&done.stdout)?)
    }

    /// A staged example.
    pub fn example(&self, name: &str) -> PathBuf {
        self.stage.join("examples").join(name)
    }

    /// Compiles `tests/programs/<source>` with `compiler`.
    pub fn compile(&self, compiler: &str, source: &str, flags: &[&str]) -> Result<PathBuf> {
        let from = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/programs")
            .join(source);
        let to = self.scratch().join(source.trim_end_matches(".c"));
        let mut command = Command::new(compiler);
        command
            .args(["-O2", "-pthread"])
            .args(flags)
            .arg("-o")
            .arg(&to)
            .arg(&from)
            .arg("-lm");
        ensure!(
            command.status()?.success(),
            "cannot compile {}",
            from.display()
        );
        Ok(to)
    }
}
