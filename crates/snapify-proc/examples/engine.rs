//! The engine by itself: saves one process into a folder, and restores it from there.
//!
//! ```text
//! engine save PID DIR [--stop]    saves process PID; --stop ends it then
//! engine restore DIR              restores it and ends as it does
//! engine launch PROGRAM [ARGS]    runs a program in namespaces of its own
//! engine check PID                lists what stands in the way
//! ```

use snapify_proc::{Frozen, LaunchSpec, Pid, ProcessImage, RestorePlan, check, launch, restore};
use snapify_store::PageFile;
use std::error::Error;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Instant;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["save", pid, dir] => save(pid, Path::new(dir), false),
        ["save", pid, dir, "--stop"] => save(pid, Path::new(dir), true),
        ["restore", dir] => run_restored(Path::new(dir)),
        ["launch", program, ..] => run_launched(program, &args[2..]),
        ["check", pid] => list(pid),
        _ => Err("usage: engine save PID DIR [--stop] | restore DIR | launch PROGRAM [ARGS] | check PID".into()),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            eprintln!("engine: {e}");
            ExitCode::from(125)
        }
    }
}

fn save(pid: &str, dir: &Path, stop: bool) -> Result<ExitCode, Box<dyn Error>> {
    std::fs::create_dir_all(dir)?;
    let begin = Instant::now();
    let mut frozen = Frozen::freeze(Pid(pid.parse()?))?;
    let stopped = begin.elapsed();
    let image = frozen.describe(&[])?;
    let described = begin.elapsed();
    let pages = dir.join("pages.snap");
    let out = File::options().read(true).write(true).create(true).truncate(true).open(&pages)?;
    let summary = frozen.save_pages(&image, out, "pages.snap", &())?;
    let saved = begin.elapsed();
    serde_json::to_writer(File::create(dir.join("process.json"))?, &image)?;
    if stop {
        frozen.kill()?;
    } else {
        frozen.thaw()?;
    }
    eprintln!(
        "engine: {} threads; stopped in {stopped:?}, described in {:?}, {} pages saved in {:?}",
        image.threads.len(),
        described - stopped,
        summary.pages_stored,
        saved - described
    );
    Ok(ExitCode::SUCCESS)
}

fn run_restored(dir: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let begin = Instant::now();
    let image: ProcessImage = serde_json::from_slice(&std::fs::read(dir.join("process.json"))?)?;
    let path = dir.join("pages.snap");
    let mut restored = restore(RestorePlan {
        image,
        pages: PageFile::open(File::open(&path)?, path)?,
        externals: Vec::new(),
        stdio: None,
        progress: &(),
        init_name: "snapify-init".into(),
    })?;
    for warning in restored.warnings() {
        eprintln!("engine: {warning}");
    }
    restored.start()?;
    eprintln!("engine: restored as process {} in {:?}", restored.pid(), begin.elapsed());
    Ok(code(restored.wait()?))
}

fn run_launched(program: &str, args: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let mut launched = launch(LaunchSpec {
        program: program.into(),
        args: args.iter().map(Into::into).collect(),
        env: None,
        directory: None,
        fds: Vec::new(),
        limits: Vec::new(),
        init_name: "snapify-init".into(),
    })?;
    launched.start()?;
    eprintln!("engine: launched as process {}", launched.pid());
    Ok(code(launched.wait()?))
}

fn list(pid: &str) -> Result<ExitCode, Box<dyn Error>> {
    let obstacles = check(Pid(pid.parse()?))?;
    for obstacle in &obstacles {
        println!("{obstacle}");
    }
    Ok(ExitCode::from(u8::from(!obstacles.is_empty())))
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(code as u8)
}
