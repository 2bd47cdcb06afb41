//! Snapshots by the clock: on an interval that fits what they cost, the last few kept, and copies of them on storage that
//! outlives the node.
//!
//! A process of its own takes them ([`watch`]), be it for `snapify watch` or beside a program that `snapify run` runs:
//! if it is killed, the program goes on. Copying is done by yet another one, [`copy`](crate::copy): storage that stalls
//! holds nobody up but that.

mod child;
mod cleaner;
mod copier;
mod pacemaker;
mod watch;

pub(crate) use child::{Prepared, WatcherProcess};
pub use watch::{WatchEvent, watch};

use crate::checkpoint::{Increments, Live, Sequence};
use snapify_proc::Outside;
use snapify_store::WriteOptions;
use std::path::PathBuf;
use std::time::Duration;

/// When to take snapshots, and where they go.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The time from the beginning of one to that of the next.
    pub every: Duration,
    /// How often the program fails, on average: with it the interval is Daly's optimum for what snapshots turn out to cost,
    /// and `every` only the first.
    pub mtbf: Option<Duration>,
    /// So many snapshots stay; older ones are removed.
    pub keep: u32,
    /// The snapshot directory.
    pub dir: PathBuf,
    /// A directory on shared storage, to which each snapshot is copied.
    pub shared: Option<PathBuf>,
    /// At most so many bytes a second are copied there.
    pub rate: Option<u64>,
    /// What becomes of connections to programs that are not part of the application.
    pub outside: Outside,
    /// Whether the program goes on before its memory is saved.
    pub live: Live,
    /// Whether snapshots hold everything, or only what has changed.
    pub increments: Increments,
    /// Every so many snapshots one holds everything; `None` for what the cost of those before makes best.
    pub full_every: Option<u32>,
    /// How the memory of the host process is written.
    pub write: WriteOptions,
    /// A file to which a JSON object is added for everything that happens; only where a program is run or restarted.
    pub log: Option<PathBuf>,
}

impl Schedule {
    /// How the next snapshot follows those in the directory.
    fn sequence(&self) -> Sequence {
        let mtbf = self.mtbf.map(|mtbf| mtbf.as_secs_f64());
        Sequence::after(&self.dir, self.increments, self.full_every, mtbf)
    }
}

/// What `snapify watch` does.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// The host process, or the supervisor of it.
    pub pid: i32,
    /// When and where.
    pub schedule: Schedule,
    /// The process that runs or restarted the program, if this is done for it.
    pub parent: Option<i32>,
}
