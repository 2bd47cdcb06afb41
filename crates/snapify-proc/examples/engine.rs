//! The engine by itself: saves one process into a folder, and restores it from there.
//!
//! ```text
//! engine save PID DIR [--stop|--live] [KEY:FD:ADDRESS:BYTES...]
//!                                 saves process PID, but for the externals; --stop ends it then, --live
//!                                 lets it go on before its memory is saved
//! engine restore DIR [KEY=FILE...]
//!                                 restores it with these files for the externals, and ends as it does
//! engine launch PROGRAM [ARGS]    runs a program in namespaces of its own
//! engine follow PID DIR ROUNDS [--live]
//!                                 saves it again and again, and fails if a page has changed that counts as
//!                                 unchanged
//! engine calls PID [COUNT]        how long remote system calls take in it
//! engine check PID                lists what stands in the way
//! engine reap PID                 removes dead copies that an engine left that was killed
//! ```
//!
//! With `ENGINE_CLOSE_TCP` in its environment it saves TCP connections to others as closed by the peer.

use snapify_proc::{
    Declared, External, Frozen, LaunchSpec, Orphans, Outside, Pid, RemoteAddr, RemoteFd,
    RestorePlan, Tracking, TreeImage,
};
use snapify_proc::{check, launch, reap_copies, restore};
use snapify_store::{PAGE_SIZE, PageFile, PageSink, SpaceId};
use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["save", pid, dir, "--stop", externals @ ..] => {
            save(pid, Path::new(dir), After::Stop, externals)
        }
        ["save", pid, dir, "--live", externals @ ..] => {
            save(pid, Path::new(dir), After::Live, externals)
        }
        ["save", pid, dir, externals @ ..] => save(pid, Path::new(dir), After::GoOn, externals),
        ["restore", dir, externals @ ..] => run_restored(Path::new(dir), externals),
        ["launch", program, ..] => run_launched(program, &args[2..]),
        ["follow", pid, dir, rounds] => follow(pid, Path::new(dir), rounds, false),
        ["follow", pid, dir, rounds, "--live"] => follow(pid, Path::new(dir), rounds, true),
        ["calls", pid] => time_calls(pid, "10000"),
        ["calls", pid, count] => time_calls(pid, count),
        ["check", pid] => list(pid),
        ["reap", pid] => reap(pid),
        _ => Err("usage: engine save|restore|launch|calls|check ...".into()),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            eprintln!("engine: {e}");
            ExitCode::from(125)
        }
    }
}

/// What becomes of a saved program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    GoOn,
    Stop,
    /// It goes on before its memory is saved.
    Live,
}

fn save(
    pid: &str,
    dir: &Path,
    after: After,
    externals: &[&str],
) -> Result<ExitCode, Box<dyn Error>> {
    std::fs::create_dir_all(dir)?;
    let externals = externals
        .iter()
        .map(|text| external(text))
        .collect::<Result<Vec<_>, _>>()?;
    let begin = Instant::now();
    let mut frozen = Frozen::freeze(Pid(pid.parse()?))?;
    let stopped = begin.elapsed();
    if std::env::var_os("ENGINE_CLOSE_TCP").is_some() {
        frozen.set_outside(Outside::CloseTcp);
    }
    let declared = Declared {
        pid: frozen.pid(),
        externals,
        partners: Vec::new(),
    };
    let outline = frozen.outline(&[declared])?;
    let described = begin.elapsed();
    let pages = dir.join("pages.snap");
    let out = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&pages)?;
    let (summary, image) = if after == After::Live {
        for failure in frozen.track(true) {
            eprintln!("engine: {failure}");
        }
        let mut copies = frozen.thaw_copied().map_err(|refused| refused.why)?;
        eprintln!("engine: it goes on after {:?}", begin.elapsed());
        let rest = copies.read_rest();
        let summary = copies.save_pages(out, "pages.snap", &())?;
        let image = rest.complete(outline)?;
        copies.finish()?;
        (summary, image)
    } else {
        let rest = frozen.read_rest();
        let summary = frozen.save_pages(out, "pages.snap", &())?;
        let image = rest.complete(outline)?;
        match after {
            After::Stop => frozen.kill()?,
            _ => frozen.thaw()?,
        }
        (summary, image)
    };
    let saved = begin.elapsed();
    serde_json::to_writer(
        BufWriter::new(File::create(dir.join("process.json"))?),
        &image,
    )?;
    eprintln!(
        "engine: {} processes, {} threads; stopped in {stopped:?}, described in {:?}, {} pages saved in {:?}",
        image.processes.len(),
        image
            .processes
            .iter()
            .map(|p| p.threads.len())
            .sum::<usize>(),
        described - stopped,
        summary.pages_stored,
        saved - described
    );
    Ok(ExitCode::SUCCESS)
}

/// Hashes of the pages of processes; what is not there is zero.
#[derive(Default)]
struct Memory(Mutex<HashMap<(SpaceId, u64), u64>>);

impl PageSink for Memory {
    fn write(&self, space: SpaceId, start: u64, data: &[u8]) -> std::io::Result<()> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut pages = self
            .0
            .lock()
            .map_err(|_| std::io::Error::other("poisoned"))?;
        for (page, at) in data
            .chunks(PAGE_SIZE as usize)
            .zip((start..).step_by(PAGE_SIZE as usize))
        {
            let mut hasher = DefaultHasher::new();
            page.hash(&mut hasher);
            pages.insert((space, at), hasher.finish());
        }
        Ok(())
    }
}

fn follow(pid: &str, dir: &Path, rounds: &str, live: bool) -> Result<ExitCode, Box<dyn Error>> {
    std::fs::create_dir_all(dir)?;
    let path = dir.join("pages.snap");
    let mut tracking = Tracking::default();
    let mut before: HashMap<(SpaceId, u64), u64> = HashMap::new();
    let (mut bytes, mut changed_bytes) = (0, 0);
    for round in 0..rounds.parse::<u32>()? {
        std::thread::sleep(Duration::from_micros(u64::from(round) * 7919 % 30_000));
        let mut frozen = Frozen::freeze(Pid(pid.parse()?))?;
        // As it is handed from one process to another.
        let (text, descriptors) = tracking.into_parts()?;
        frozen.set_tracking(Tracking::from_parts(&text, descriptors)?);
        let outline = frozen.outline(&[])?;
        if let Some(failure) = frozen.track(true).first() {
            return Err(failure.clone().into());
        }
        tracking = frozen.take_tracking();
        let changed = tracking.changed_since(&round.to_string());
        let changes = changed.map(|changed| frozen.changes(&changed));
        let out = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        let image = if live {
            let mut copies = frozen.thaw_copied().map_err(|refused| refused.why)?;
            let rest = copies.read_rest();
            copies.save_pages(out, "pages.snap", &())?;
            let image = rest.complete(outline)?;
            copies.finish()?;
            image
        } else {
            let rest = frozen.read_rest();
            frozen.save_pages(out, "pages.snap", &())?;
            let image = rest.complete(outline)?;
            frozen.thaw()?;
            image
        };
        tracking.saved_as((round + 1).to_string(), Some(&round.to_string()));
        let now = Memory::default();
        PageFile::open(File::open(&path)?, path.clone())?.fill(&now, &())?;
        let now = now.0.into_inner()?;
        if round > 0 {
            let changes = changes.ok_or("it is not known what has changed")?;
            for range in &changes.unchanged {
                for at in (range.start..range.start + range.bytes).step_by(PAGE_SIZE as usize) {
                    let place = (range.space, at);
                    if now.get(&place) != before.get(&place) {
                        let space = range.space;
                        return Err(
                            format!("round {round}: page {at:#x} of {space} changed").into()
                        );
                    }
                }
            }
            bytes += image.private_bytes();
            changed_bytes += changes.bytes();
        }
        before = now;
    }
    println!("{changed_bytes} of {bytes} bytes have changed");
    Ok(ExitCode::SUCCESS)
}

/// `KEY:FD:ADDRESS:BYTES`; -1 for no descriptor, 0 bytes for no mapping.
fn external(text: &str) -> Result<External, Box<dyn Error>> {
    let parts: Vec<&str> = text.split(':').collect();
    let [key, fd, address, bytes] = parts.as_slice() else {
        return Err("an external is KEY:FD:ADDRESS:BYTES".into());
    };
    let fd: i32 = fd.parse()?;
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
    let bytes: u64 = bytes.parse()?;
    Ok(External {
        key: (*key).into(),
        fds: (fd >= 0).then_some(RemoteFd(fd)).into_iter().collect(),
        mappings: (bytes > 0)
            .then_some((RemoteAddr(address), bytes))
            .into_iter()
            .collect(),
    })
}

fn run_restored(dir: &Path, externals: &[&str]) -> Result<ExitCode, Box<dyn Error>> {
    let begin = Instant::now();
    let mut supplied = Vec::new();
    for text in externals {
        let (key, path) = text.split_once('=').ok_or("an external is KEY=FILE")?;
        let file = File::options().read(true).write(true).open(path)?;
        supplied.push((key.to_owned(), file.into()));
    }
    let image: TreeImage = serde_json::from_slice(&std::fs::read(dir.join("process.json"))?)?;
    let path = dir.join("pages.snap");
    let mut restored = restore(RestorePlan {
        image,
        pages: PageFile::open(File::open(&path)?, path)?,
        externals: supplied,
        stdio: None,
        progress: &(),
        init_name: "snapify-init".into(),
        orphans: Orphans::Survive,
        track: false,
    })?;
    for warning in restored.warnings() {
        eprintln!("engine: {warning}");
    }
    restored.start()?;
    eprintln!(
        "engine: restored as process {} in {:?}",
        restored.pid(),
        begin.elapsed()
    );
    Ok(code(restored.wait()?))
}

fn run_launched(program: &str, args: &[String]) -> Result<ExitCode, Box<dyn Error>> {
    let mut launched = launch(LaunchSpec {
        name: None,
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

fn time_calls(pid: &str, count: &str) -> Result<ExitCode, Box<dyn Error>> {
    let mut frozen = Frozen::freeze(Pid(pid.parse()?))?;
    let mut times = frozen.time_remote_calls(count.parse()?)?;
    frozen.thaw()?;
    times.sort_unstable();
    let within = |share: usize| times[times.len() * share / 100];
    println!("median {:?}, 99 of 100 within {:?}", within(50), within(99));
    Ok(ExitCode::SUCCESS)
}

fn list(pid: &str) -> Result<ExitCode, Box<dyn Error>> {
    let obstacles = check(Pid(pid.parse()?))?;
    for obstacle in &obstacles {
        println!("{obstacle}");
    }
    Ok(ExitCode::from(u8::from(!obstacles.is_empty())))
}

fn reap(pid: &str) -> Result<ExitCode, Box<dyn Error>> {
    reap_copies(Pid(pid.parse()?))?;
    Ok(ExitCode::SUCCESS)
}

fn code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(code as u8)
}
