//! The command line, as DESIGN section 5 fixes it: scripts and tests rely on it.

use clap::{Args, Parser, Subcommand, ValueEnum};
use snapify_job::Increments;
use snapify_store::{Compression, WriteOptions};
use std::ffi::OsString;
use std::path::PathBuf;

/// Snapshots of running offload applications: checkpoint, restart, look before and after.
#[derive(Parser, Debug)]
#[command(
    name = "snapify",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0 done; 1 refused or failed, nothing changed; 2 wrong use. \
                  `run` and `restart` exit as the program does.\n\n\
                  Examples:\n  \
                  snapify run --cards 2 -- ./simulation input.dat\n  \
                  snapify checkpoint 4711 /scratch/sim --stop\n  \
                  snapify restart /scratch/sim"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    Run(Run),
    Checkpoint(Checkpoint),
    Restart(Restart),
    SwapOut(SwapOut),
    SwapIn(SwapIn),
    Migrate(Migrate),
    Check(Check),
    Ps(Ps),
    Cards(Cards),
    Inspect(Inspect),
    Verify(Verify),
    Clean(crate::cleaning::CleanArgs),
    Watch(crate::schedule::Watch),
    Copy(crate::schedule::Copy),
    Plan(crate::plan::PlanArgs),
    Report(crate::drawing::ReportArgs),
    /// A card daemon: started by `run` and `restart`, never by hand.
    #[command(hide = true)]
    CardDaemon(CardDaemon),
}

/// Run a program with cards: each card is one OpenMP device of the program.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify run --cards 1 -- ./md --steps 1000\n  \
    snapify run --cards 2 --card-memory 8G -- ./sgemm\n  \
    snapify run --cards 2 --share-cards -- ./md --steps 1000\n  \
    snapify run --every 10m --into /scratch/md -- ./md --steps 1000\n\n\
    The program needs no change: one compiled with clang -fopenmp \
    -fopenmp-targets=x86_64-pc-linux-gnu finds the cards as its OpenMP devices.")]
pub struct Run {
    /// How many cards to start
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=16))]
    pub cards: u32,
    /// Memory of each card, in bytes or with K, M, G or T (powers of 1024); 4G if not given, or what shared cards have
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub card_memory: Option<u64>,
    /// Use the cards that your programs on this machine share: the first one starts them, they end with the last
    #[arg(long)]
    pub share_cards: bool,
    #[command(flatten)]
    pub regular: crate::schedule::Regular,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Take a snapshot of a running program, with all its offload processes.
///
/// PID is a program started by `snapify run` or `snapify restart`, or any other process of yours.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify checkpoint 4711 /scratch/sim           take a snapshot, the program goes on\n  \
    snapify checkpoint 4711 /scratch/sim --live    and does so before its memory is saved\n  \
    snapify checkpoint 4711 /scratch/sim --stop    and end the program once it is committed")]
pub struct Checkpoint {
    /// The host process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Where the snapshot goes: created if missing; holds the snapshots of one program
    pub dir: PathBuf,
    /// End the program once the snapshot is committed
    #[arg(long)]
    pub stop: bool,
    /// What becomes of TCP connections to programs that are not saved; without this they are refused
    #[arg(long, value_name = "WHAT")]
    pub tcp: Option<Tcp>,
    /// Let the program go on before its memory is saved, from a copy that the kernel makes of each page when it is
    /// written; auto does so from 64 MiB of private memory on. With --stop, and where memory is short, it stands still
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_value = "auto",
          default_missing_value = "always")]
    pub live: Live,
    #[command(flatten)]
    pub sequence: Sequence,
    #[command(flatten)]
    pub pipeline: Pipeline,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// How snapshots follow each other.
#[derive(Args, Clone, Debug)]
pub struct Sequence {
    /// Save everything, not only what has changed since the last snapshot
    #[arg(long, conflicts_with = "incremental")]
    pub full: bool,
    /// Save only what has changed since the last snapshot, even if all memory has to be read and compared to find out;
    /// without this, everything is saved then
    #[arg(long)]
    pub incremental: bool,
    /// Save everything each time that so many snapshots build on each other; if not given, what is best by the cost of
    /// those in the directory, and 16 where there are none
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub full_every: Option<u32>,
}

/// How the memory of the host process is written.
#[derive(Args, Clone, Debug)]
pub struct Pipeline {
    /// Compress the memory of the host process: none, lz4, zstd[:LEVEL], deflate[:LEVEL], or auto for whatever shortens
    /// the checkpoint. Worth it where storage is slow or scarce
    #[arg(long, value_name = "CODEC", default_value = "none")]
    pub codec: Compression,
    /// Threads that compress; one per processor if not given
    #[arg(long, value_name = "N", value_parser = ranged(1, 256))]
    pub workers: Option<usize>,
    /// Blocks of 1 MiB that may wait between reading and compressing, and between compressing and storing; two per thread if
    /// not given
    #[arg(long, value_name = "N", value_parser = ranged(1, 1024))]
    pub queue: Option<usize>,
    /// Bytes of compressed blocks that are written at a time; 2M if not given
    #[arg(long, value_name = "SIZE", value_parser = parse_segment)]
    pub segment: Option<usize>,
}

impl Pipeline {
    /// The same for those who do it.
    pub fn options(&self) -> WriteOptions {
        WriteOptions {
            compression: self.codec,
            workers: self.workers,
            queue: self.queue,
            write_bytes: self.segment,
            ..WriteOptions::default()
        }
    }
}

fn ranged(least: usize, most: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| match text.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("a number from {least} to {most} is wanted")),
    }
}

fn parse_segment(text: &str) -> Result<usize, String> {
    match parse_size(text)? {
        // What is less is taken for a block.
        bytes @ 4096..=0x4000_0000 => Ok(bytes as usize),
        _ => Err("a size from 4K to 1G is wanted".into()),
    }
}

/// What becomes of TCP connections to programs that are not saved.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// They come back as closed by the peer
    Close,
}

impl Sequence {
    /// Whether everything is saved.
    pub fn increments(&self) -> Increments {
        match (self.full, self.incremental) {
            (true, _) => Increments::Full,
            (_, true) => Increments::Always,
            _ => Increments::Auto,
        }
    }
}

impl Tcp {
    /// The same for those who do it.
    pub fn outside(self) -> snapify_job::Outside {
        match self {
            Self::Close => snapify_job::Outside::CloseTcp,
        }
    }
}

/// When a program goes on before its memory is saved.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Live {
    Never,
    Auto,
    Always,
}

impl From<Live> for snapify_job::Live {
    fn from(live: Live) -> Self {
        match live {
            Live::Never => Self::Never,
            Live::Auto => Self::Auto,
            Live::Always => Self::Always,
        }
    }
}

/// Start a program again from its snapshot, in the foreground; exits as the program does.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify restart /scratch/sim\n  \
    snapify restart /scratch/sim --at 3 --detach --pid-file sim.pid\n  \
    snapify restart /scratch/sim --card 1=0    what was on card 1 goes to card 0\n  \
    snapify restart --local /local/sim --shared /lustre/sim    the newest of both\n  \
    snapify restart /scratch/sim --root /home/a=/mnt/a --files=truncate")]
pub struct Restart {
    /// The directory that `checkpoint` wrote
    #[arg(required_unless_present_any = ["local", "shared"])]
    pub dir: Option<PathBuf>,
    /// The same, on storage of this node
    #[arg(long, value_name = "DIR", conflicts_with = "dir")]
    pub local: Option<PathBuf>,
    /// A directory with copies of its snapshots: the newest of both that can be used is restarted
    #[arg(long, value_name = "DIR")]
    pub shared: Option<PathBuf>,
    /// Go on taking snapshots this often, into the same directories
    #[arg(long, value_name = "DURATION", value_parser = crate::schedule::parse_interval)]
    pub every: Option<std::time::Duration>,
    #[command(flatten, next_help_heading = "With --every")]
    pub manner: crate::schedule::Manner,
    /// What becomes of TCP connections to programs that were not saved; `checkpoint` has decided it
    #[arg(long, value_name = "WHAT")]
    pub tcp: Option<Tcp>,
    /// Which snapshot of the directory, by number; the newest if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub at: Option<u32>,
    /// Return once the program runs, and leave it running
    #[arg(long)]
    pub detach: bool,
    /// Write the process id of the restarted program to this file
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// Restore what was on card OLD on card NEW (may be given several times)
    #[arg(long = "card", value_name = "OLD=NEW", value_parser = parse_card)]
    pub cards: Vec<(u32, u32)>,
    /// Memory of each card; as it was if not given
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub card_memory: Option<u64>,
    /// How many cards to start; as many as there were if not given
    #[arg(long = "cards", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=16))]
    pub card_count: Option<u32>,
    /// Use the cards that your programs on this machine share, as with `run`
    #[arg(long)]
    pub share_cards: bool,
    /// Look for files, directories and sockets that were below directory OLD below NEW (may be given several times)
    #[arg(long = "root", value_name = "OLD=NEW", value_parser = parse_root)]
    pub roots: Vec<(PathBuf, PathBuf)>,
    /// Keep what files that the program has open for writing have got since the checkpoint, or cut them back to the
    /// length that they had
    #[arg(long, value_name = "WHAT", default_value = "keep")]
    pub files: Files,
}

/// What becomes of files that have grown.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Files {
    Keep,
    Truncate,
}

/// Say what stands in the way of a snapshot of a process, without touching it.
#[derive(Args, Debug)]
pub struct Check {
    /// The process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Save an offload process of a running application, and free all of the card's memory that it has.
///
/// The program runs on until it needs the process, and then waits. The image is removed when the process is swapped in, or
/// when the application ends.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify swap-out 4711 /scratch/swap             the one offload process that there is\n  \
    snapify swap-out 4711 /scratch/swap --card 1    the one on card 1")]
pub struct SwapOut {
    /// The host process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// Where the image goes: created if missing; not a directory of snapshots
    pub dir: PathBuf,
    /// The offload process, by its id as `ps` shows it, or the beginning of that
    #[arg(long, value_name = "ID", value_parser = parse_process)]
    pub process: Option<String>,
    /// The offload process on this card
    #[arg(long, value_name = "N")]
    pub card: Option<u32>,
    /// Keep what it took in this directory as well, for `snapify report`: created if missing
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Bring an offload process that is swapped out back, to any card with enough memory.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify swap-in 4711 0\n  \
    snapify swap-in 4711 1 --process 3f0a")]
pub struct SwapIn {
    /// The host process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// The card
    pub card: u32,
    /// The offload process, by its id as `ps` shows it, or the beginning of that
    #[arg(long, value_name = "ID", value_parser = parse_process)]
    pub process: Option<String>,
    /// Keep what it took in this directory as well, for `snapify report`: created if missing
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Move an offload process of a running application to another card, without a stop on disk.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify migrate 4711 1             the one offload process that there is\n  \
    snapify migrate 4711 1 --from 0    the one on card 0")]
pub struct Migrate {
    /// The host process
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: i32,
    /// The card that it goes to
    pub card: u32,
    /// The offload process, by its id as `ps` shows it, or the beginning of that
    #[arg(long, value_name = "ID", value_parser = parse_process)]
    pub process: Option<String>,
    /// The offload process on this card
    #[arg(long, value_name = "N")]
    pub from: Option<u32>,
    /// Keep what it took in this directory as well, for `snapify report`: created if missing
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// List the cards of running applications: memory used and free, and what is on them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify cards\n  \
    snapify cards --json | jq '.cards[] | select(.free > 1e9)'")]
pub struct Cards {
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// List running applications with their cards and offload processes.
#[derive(Args, Debug)]
pub struct Ps {
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Show what a snapshot directory holds, without reading its pages.
#[derive(Args, Debug)]
pub struct Inspect {
    /// The directory that `checkpoint` wrote
    pub dir: PathBuf,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Read a snapshot whole and check every block of it.
#[derive(Args, Debug)]
pub struct Verify {
    /// The directory that `checkpoint` wrote
    pub dir: PathBuf,
    /// Which snapshot of the directory, by number; all of them if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub at: Option<u32>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of a card daemon.
#[derive(Args, Debug)]
pub struct CardDaemon {
    /// The card's number
    #[arg(long)]
    pub index: u32,
    /// The card's memory in bytes
    #[arg(long)]
    pub memory: u64,
    /// The descriptor of the connection to the supervisor
    #[arg(long)]
    pub service_fd: i32,
    /// Where supervisors connect that share the card
    #[arg(long)]
    pub listen: Option<PathBuf>,
}

/// Parses a size such as `4G`, `512M` or `65536` into bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no size: give bytes, or a number with K, M, G or T");
    let upper = text.trim().to_ascii_uppercase();
    let upper = upper
        .strip_suffix("IB")
        .or(upper.strip_suffix('B'))
        .unwrap_or(&upper);
    let (digits, shift) = match upper.chars().last().ok_or_else(wrong)? {
        'K' => (&upper[..upper.len() - 1], 10),
        'M' => (&upper[..upper.len() - 1], 20),
        'G' => (&upper[..upper.len() - 1], 30),
        'T' => (&upper[..upper.len() - 1], 40),
        _ => (upper, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_shl(shift)
        .filter(|bytes| bytes >> shift == number)
        .ok_or_else(wrong)
}

/// Checks the id of an offload process, or the beginning of one.
fn parse_process(text: &str) -> Result<String, String> {
    if (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "'{text}' is no id of an offload process: those are up to 16 hexadecimal digits"
        ))
    }
}

/// Parses `OLD=NEW`.
fn parse_card(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("'{text}' is not OLD=NEW, two card numbers");
    let (old, new) = text.split_once('=').ok_or_else(wrong)?;
    Ok((
        old.parse().map_err(|_| wrong())?,
        new.parse().map_err(|_| wrong())?,
    ))
}

/// Parses `OLD=NEW`, two absolute paths.
fn parse_root(text: &str) -> Result<(PathBuf, PathBuf), String> {
    let wrong = || format!("'{text}' is not OLD=NEW, two absolute paths");
    let (old, new) = text.split_once('=').ok_or_else(wrong)?;
    let (old, new) = (PathBuf::from(old), PathBuf::from(new));
    let absolute = old.is_absolute() && new.is_absolute();
    absolute.then_some((old, new)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn connections_to_others() {
        let parse = |args: &[&str]| Cli::try_parse_from(args);
        let cli = parse(&["snapify", "checkpoint", "1", "d", "--tcp=close"]).unwrap();
        assert!(matches!(cli.command, Command::Checkpoint(c) if c.tcp == Some(Tcp::Close)));
        assert!(parse(&["snapify", "restart", "d", "--tcp=close"]).is_ok());
        assert!(parse(&["snapify", "checkpoint", "1", "d", "--tcp=keep"]).is_err());
    }

    #[test]
    fn a_report_goes_somewhere() {
        let parse = |args: &[&str]| Cli::try_parse_from(args);
        assert!(parse(&["snapify", "report", "d"]).is_err());
        assert!(parse(&["snapify", "report", "d", "-o", "x.html"]).is_ok());
        assert!(parse(&["snapify", "report", "d", "--json"]).is_ok());
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("65536"), Ok(65536));
        assert_eq!(parse_size("4G"), Ok(4 << 30));
        assert_eq!(parse_size("512MiB"), Ok(512 << 20));
        assert_eq!(parse_size("3k"), Ok(3072));
        for wrong in ["", "G", "-1", "4X", "99999999999999T", "1.5G"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn pipelines() {
        let parse = |args: &[&str]| {
            Cli::try_parse_from([&["snapify", "checkpoint", "1", "d"], args].concat())
        };
        let cli = parse(&["--codec=zstd:3", "--workers=3", "--queue=9", "--segment=8M"]);
        let Command::Checkpoint(checkpoint) = cli.unwrap().command else {
            panic!("it is a checkpoint");
        };
        let options = checkpoint.pipeline.options();
        assert_eq!(options.compression, Compression::Zstd { level: 3 });
        assert_eq!(
            (options.workers, options.queue, options.write_bytes),
            (Some(3), Some(9), Some(8 << 20))
        );
        for wrong in [
            "--workers=0",
            "--queue=0",
            "--queue=1025",
            "--segment=1",
            "--segment=2G",
        ] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn roots() {
        let root = parse_root("/a=/b c").unwrap();
        assert_eq!(root, (PathBuf::from("/a"), PathBuf::from("/b c")));
        for wrong in ["/a", "a=/b", "/a=b", "=/b", "/a="] {
            assert!(parse_root(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn processes() {
        assert_eq!(parse_process("3F0a"), Ok("3F0a".into()));
        for wrong in ["", "0x1", "00000000000000000"] {
            assert!(parse_process(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cards() {
        assert_eq!(parse_card("1=0"), Ok((1, 0)));
        assert!(parse_card("1").is_err());
        assert!(parse_card("a=b").is_err());
    }
}
