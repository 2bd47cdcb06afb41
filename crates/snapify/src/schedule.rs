//! Snapshots by the clock, and copies of them: `snapify watch`, `snapify copy`, and `--every` of `run` and `restart`.

use crate::args::{Live, Pipeline, Sequence, Tcp, parse_size};
use crate::units::{bytes, long_time, parse_duration, seconds};
use anyhow::Result;
use clap::Args;
use snapify_job::{
    CopyEvent, CopyOptions, Outside, Schedule, WatchEvent, WatchOptions, copy as copy_snapshots,
};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Take snapshots of a running program on an interval, until it ends.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify watch 4711 /scratch/sim --every 10m\n  \
    snapify watch 4711 --local /local/sim --shared /lustre/sim --rate 200M --every 2m --keep 3\n  \
    snapify watch 4711 /scratch/sim --every 10m --mtbf 8h --json\n\n\
    A snapshot that fails is told of and tried again; earlier ones stay. SIGINT and SIGTERM end it cleanly; \
    the program goes on.")]
pub struct Watch {
    /// The host process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Where the snapshots go
    #[arg(required_unless_present = "local")]
    pub dir: Option<PathBuf>,
    /// The same: where they go first, on storage of this node
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    pub local: Option<PathBuf>,
    /// Time from one snapshot to the next: 90, 250ms, 10m, 1h30m
    #[arg(long, value_name = "DURATION", value_parser = parse_interval)]
    pub every: Duration,
    /// Copy each snapshot to this directory, on storage that outlives the node
    #[arg(long, value_name = "DIR")]
    pub shared: Option<PathBuf>,
    #[command(flatten)]
    pub manner: Manner,
    /// What becomes of TCP connections to programs that are not saved; without this they are refused
    #[arg(long, value_name = "WHAT")]
    pub tcp: Option<Tcp>,
    /// Let the program go on before its memory is saved, as for `checkpoint`
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "auto",
          default_missing_value = "always")]
    pub live: Live,
    /// Print a JSON object for everything that happens, one a line, on standard output
    #[arg(long)]
    pub json: bool,
    /// The process that runs the program: with its end this one ends
    #[arg(long, hide = true, value_name = "PID")]
    pub for_parent: Option<i32>,
}

/// How snapshots are taken on an interval.
#[derive(Args, Debug)]
pub struct Manner {
    /// How often the program fails, on average: then the interval is the best one for what snapshots turn out to cost
    #[arg(long, value_name = "DURATION", value_parser = parse_interval)]
    pub mtbf: Option<Duration>,
    /// How many snapshots stay; older ones are removed, with the exception of those that newer ones build on
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: u32,
    #[command(flatten)]
    pub sequence: Sequence,
    #[command(flatten)]
    pub pipeline: Pipeline,
    /// Copy at most so many bytes a second
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub rate: Option<u64>,
}

/// When snapshots are taken of a program that is run.
#[derive(Args, Debug)]
pub struct Regular {
    /// Take a snapshot this often: 90, 250ms, 10m, 1h30m
    #[arg(long, value_name = "DURATION", value_parser = parse_interval, requires = "dir")]
    pub every: Option<Duration>,
    /// Where the snapshots go
    #[arg(
        id = "dir",
        long = "into",
        visible_alias = "local",
        value_name = "DIR",
        requires = "every"
    )]
    pub dir: Option<PathBuf>,
    /// Copy each snapshot to this directory, on storage that outlives the node
    #[arg(long, value_name = "DIR")]
    pub shared: Option<PathBuf>,
    #[command(flatten)]
    pub manner: Manner,
    /// Add a JSON object for everything that happens to this file, one a line
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

impl Manner {
    /// A schedule with these.
    pub fn schedule(self, dir: PathBuf, shared: Option<PathBuf>, every: Duration) -> Schedule {
        Schedule {
            every,
            mtbf: self.mtbf,
            keep: self.keep,
            dir,
            shared,
            rate: self.rate,
            outside: Outside::Refuse,
            live: snapify_job::Live::Auto,
            increments: self.sequence.increments(),
            full_every: self.sequence.full_every,
            write: self.pipeline.options(),
            log: None,
        }
    }
}

impl Regular {
    /// The schedule, if there is one.
    pub fn schedule(self) -> Option<Schedule> {
        let (every, dir) = (self.every?, self.dir?);
        Some(Schedule {
            log: self.log,
            ..self.manner.schedule(dir, self.shared, every)
        })
    }
}

/// Copy the newest snapshot of a directory to another one, with those that it builds on.
///
/// An interrupted copy is gone on with by the next. The copy is read back and compared with its checksums before it
/// counts.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify copy /local/sim /lustre/sim\n  \
    snapify copy /local/sim /lustre/sim --rate 200M --keep 3")]
pub struct Copy {
    /// The directory that `checkpoint` wrote
    pub from: PathBuf,
    /// Where the copy goes: created if missing
    pub to: PathBuf,
    /// Copy at most so many bytes a second
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// How many snapshots stay in TO; all if not given
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
    /// Print a JSON object for everything that happens, one a line, on standard output
    #[arg(long)]
    pub json: bool,
    /// The process that wants it: with its end this one ends
    #[arg(long, hide = true, value_name = "PID")]
    pub for_parent: Option<i32>,
}

/// Takes snapshots until the program ends.
pub fn watch(arguments: Watch) -> Result<ExitCode> {
    let Some(dir) = arguments.dir.or(arguments.local) else {
        return Ok(ExitCode::from(2));
    };
    let options = WatchOptions {
        pid: arguments.pid,
        schedule: Schedule {
            outside: arguments.tcp.map_or(Outside::Refuse, Tcp::outside),
            live: arguments.live.into(),
            ..arguments
                .manner
                .schedule(dir, arguments.shared, arguments.every)
        },
        parent: arguments.for_parent,
    };
    let mut told = Told::default();
    snapify_job::watch(&options, &mut |event| {
        if arguments.json {
            print_line(event);
        } else {
            told.tell(event);
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Copies the newest snapshot.
pub fn copy(arguments: Copy) -> Result<ExitCode> {
    let options = CopyOptions {
        from: arguments.from,
        to: arguments.to.clone(),
        rate: arguments.rate,
        keep: arguments.keep,
        parent: arguments.for_parent,
    };
    let to = arguments.to;
    let done = copy_snapshots(&options, &|event| {
        if arguments.json {
            print_line(event);
        } else if let CopyEvent::Copied {
            points,
            bytes: size,
            resumed,
            seconds: time,
            ..
        } = event
        {
            let time = seconds(Duration::from_secs_f64(*time));
            match points[..] {
                [] => println!("{} has the newest snapshot already", to.display()),
                _ => println!(
                    "{} copied to {}: {} in {time}{}",
                    numbers(points),
                    to.display(),
                    bytes(*size),
                    if *resumed > 0 {
                        format!(", of which {} were there already", bytes(*resumed))
                    } else {
                        String::new()
                    }
                ),
            }
        }
    });
    if let (Err(error), true) = (&done, arguments.json) {
        print_line(&CopyEvent::Failed {
            message: error.to_string(),
        });
    }
    done?;
    Ok(ExitCode::SUCCESS)
}

/// Prints an event as one line of JSON.
fn print_line(event: &impl serde::Serialize) {
    use std::io::Write;
    // Nobody may be listening any more; what is done is done all the same.
    if let Ok(mut line) = serde_json::to_value(event) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        line["time_unix_ms"] = now
            .map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(0))
            .into();
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

/// Tells people what happens: on standard output, and what went wrong on standard error. Of failures that repeat only the
/// first is told.
#[derive(Default)]
struct Told {
    failing: bool,
    copy_failing: bool,
}

impl Told {
    fn tell(&mut self, event: &WatchEvent) {
        use std::io::Write;
        let text = match event {
            WatchEvent::Watching {
                pid,
                dir,
                next_seconds,
            } => format!(
                "process {pid}: snapshots go to {}, the first in {}",
                dir.display(),
                long_time(*next_seconds)
            ),
            WatchEvent::Snapshot {
                report,
                next_seconds,
            } => {
                self.failing = false;
                format!(
                    "snapshot {}: {} in {}, the program stood still for {}; next in {}",
                    report.point,
                    bytes(report.file_bytes),
                    long_time(report.total_seconds),
                    long_time(report.frozen_seconds),
                    long_time(*next_seconds)
                )
            }
            WatchEvent::Removed { points } => format!("{} removed", numbers(points)),
            WatchEvent::Copied {
                dir,
                points,
                bytes: size,
                seconds,
                ..
            } => {
                self.copy_failing = false;
                format!(
                    "{} copied to {}: {} in {}",
                    numbers(points),
                    dir.display(),
                    bytes(*size),
                    long_time(*seconds)
                )
            }
            WatchEvent::Failed {
                message,
                next_seconds,
            } => {
                if !std::mem::replace(&mut self.failing, true) {
                    warn(&format!(
                        "no snapshot was taken: {message}; earlier ones are as they were; next try in {}",
                        long_time(*next_seconds)
                    ));
                }
                return;
            }
            WatchEvent::CopyFailed {
                dir,
                message,
                next_seconds,
            } => {
                if !std::mem::replace(&mut self.copy_failing, true) {
                    warn(&format!(
                        "nothing is copied to {}: {message}; next try in {}",
                        dir.display(),
                        long_time(*next_seconds)
                    ));
                }
                return;
            }
            WatchEvent::CopyStalled { dir, seconds } => {
                return warn(&format!(
                    "{} has not answered for {}; snapshots go on being taken",
                    dir.display(),
                    long_time(*seconds)
                ));
            }
            WatchEvent::Warning { message } => return warn(message),
            WatchEvent::Ended { reason } => match *reason {
                "signal" => "no more snapshots are taken; the program goes on".into(),
                _ => "the program has ended".into(),
            },
        };
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

fn warn(text: &str) {
    eprintln!("snapify: warning: {text}");
}

/// Numbers of snapshots: `snapshot 3`, `snapshots 3, 4`.
fn numbers(points: &[u32]) -> String {
    let list: Vec<String> = points.iter().map(u32::to_string).collect();
    format!(
        "snapshot{} {}",
        if points.len() == 1 { "" } else { "s" },
        list.join(", ")
    )
}

/// Parses a duration that is one.
pub(crate) fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("it must be longer than nothing".into()),
        time => Ok(time),
    }
}

/// Parses bytes a second.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("it must be more than nothing".into()),
        rate => Ok(rate),
    }
}
