//! Taking snapshots of a program until it ends.

use super::cleaner::Cleaner;
use super::copier::{Copier, News};
use super::pacemaker::Pacemaker;
use super::{Schedule, WatchOptions};
use crate::clients::{CheckpointOptions, checkpoint_with, supervisor_of};
use crate::copy::CopyEvent;
use crate::error::JobError;
use crate::events::{Event, Observer};
use crate::processes::{end_with, own_process, wait_readable};
use crate::protocol::CheckpointReport;
use crate::signals::{Arrived, Signals};
use serde::Serialize;
use snapify_store::{StoreError, clean_plan, newest, retain};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What happens while snapshots are taken.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum WatchEvent {
    /// It begins.
    Watching {
        /// The host process.
        pid: i32,
        /// Where snapshots go.
        dir: PathBuf,
        /// Seconds until the first.
        next_seconds: f64,
    },
    /// A snapshot is taken.
    Snapshot {
        /// What was done.
        report: Box<CheckpointReport>,
        /// Seconds until the next.
        next_seconds: f64,
    },
    /// None was taken; everything is as it was.
    Failed {
        /// Why.
        message: String,
        /// Seconds until the next try.
        next_seconds: f64,
    },
    /// Older snapshots were removed.
    Removed {
        /// Their numbers.
        points: Vec<u32>,
    },
    /// The newest snapshot is on shared storage.
    Copied {
        /// Where.
        dir: PathBuf,
        /// Numbers of the snapshots that were copied for that.
        points: Vec<u32>,
        /// Bytes of these.
        bytes: u64,
        /// Of these, bytes that were there from a copy that had been interrupted.
        resumed: u64,
        /// Seconds that it took.
        seconds: f64,
    },
    /// It is not. Snapshots go on being taken.
    CopyFailed {
        /// Where it was to be.
        dir: PathBuf,
        /// Why.
        message: String,
        /// Seconds until the next try.
        next_seconds: f64,
    },
    /// Shared storage does not answer. Snapshots go on being taken.
    CopyStalled {
        /// Where.
        dir: PathBuf,
        /// Seconds since it was last heard of.
        seconds: f64,
    },
    /// Something that the user should know, though it goes on.
    Warning {
        /// What.
        message: String,
    },
    /// No more snapshots are taken.
    Ended {
        /// `program`, if that has ended, or `signal`.
        reason: &'static str,
    },
}

/// How long the first snapshot waits for what is on shared storage to be known.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes snapshots of a program as scheduled, until it ends or a signal comes.
///
/// # Errors
/// If there is no such process, or it is someone else's. A snapshot that fails is told of and tried again.
pub fn watch(options: &WatchOptions, tell: &mut dyn FnMut(&WatchEvent)) -> Result<(), JobError> {
    if let Some(parent) = options.parent {
        end_with(parent, rustix::process::Signal::TERM)?;
    }
    let signals = Signals::new()?;
    let pid = supervisor_of(options.pid)?.map_or(options.pid, |running| running.status.pid);
    let program = match own_process(pid) {
        // It has been quick.
        Err(JobError::NoSuchProcess { .. }) if options.parent.is_some() => return Ok(()),
        other => other?,
    };
    let schedule = &options.schedule;
    let dir = std::path::absolute(&schedule.dir).map_err(|source| JobError::File {
        operation: "use",
        path: schedule.dir.clone(),
        source,
    })?;
    let pacemaker = Pacemaker::new(schedule.every, schedule.mtbf, Instant::now());
    tell(&WatchEvent::Watching {
        pid,
        dir: dir.clone(),
        next_seconds: until(pacemaker.due()),
    });
    let copier = Copier::new(schedule, &dir)?;
    let mut watcher = Watcher {
        pid,
        program,
        ready: copier.as_ref().map(|_| Instant::now() + PATIENCE),
        copier,
        cleaner: Cleaner::default(),
        schedule,
        dir,
        pacemaker,
        signals,
        after: 0,
        tell,
    };
    let mut end = watcher.run()?;
    if end == End::Program {
        end = watcher.finish_copying()?;
    }
    if let Some(copier) = &mut watcher.copier {
        copier.stop();
    }
    watcher.cleaner.stop();
    (watcher.tell)(&WatchEvent::Ended {
        reason: match end {
            End::Program => "program",
            End::Signal => "signal",
        },
    });
    Ok(())
}

/// Why it is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Program,
    Signal,
}

struct Watcher<'a> {
    pid: i32,
    /// Readable when the program has ended.
    program: OwnedFd,
    schedule: &'a Schedule,
    dir: PathBuf,
    pacemaker: Pacemaker,
    copier: Option<Copier>,
    cleaner: Cleaner,
    signals: Signals,
    /// Snapshots get greater numbers than this: that of the newest one on shared storage.
    after: u32,
    /// Until when that is waited for, as long as it is not known.
    ready: Option<Instant>,
    tell: &'a mut dyn FnMut(&WatchEvent),
}

impl Watcher<'_> {
    fn run(&mut self) -> Result<End, JobError> {
        loop {
            if self.due() <= Instant::now()
                && let Some(end) = self.checkpoint()?
            {
                return Ok(end);
            }
            let due = self.due();
            if let Some(end) = self.wait(Some(due))? {
                return Ok(end);
            }
        }
    }

    /// When the next snapshot is due.
    fn due(&self) -> Instant {
        let due = self.pacemaker.due();
        self.ready.map_or(due, |ready| due.max(ready))
    }

    /// Waits until something happens, or it is `due`. Sees to copies meanwhile.
    fn wait(&mut self, due: Option<Instant>) -> Result<Option<End>, JobError> {
        self.start_copy();
        let copies = self.copier.as_ref().and_then(Copier::due);
        let first = [due, copies].into_iter().flatten().min();
        let timeout = first.map(|due| due.saturating_duration_since(Instant::now()));
        let mut fds = vec![self.signals.as_fd()];
        // Where nothing is due any more, it has ended.
        fds.extend(due.map(|_| self.program.as_fd()));
        fds.extend(self.copier.as_ref().and_then(Copier::fd));
        fds.extend(self.cleaner.fd());
        // Rounded up, or the last millisecond would be spent asking again and again.
        let timeout = timeout.map(|timeout| timeout + Duration::from_millis(1));
        let ready = wait_readable(&fds, timeout)?;
        if ready.first() == Some(&true) && self.signals.take().iter().any(Arrived::calls_off) {
            return Ok(Some(End::Signal));
        }
        self.hear_copier();
        if let Some(why) = self.cleaner.hear() {
            self.warn_of_old(&why);
        }
        Ok((due.is_some() && ready.get(1) == Some(&true)).then_some(End::Program))
    }

    fn start_copy(&mut self) {
        let news = self
            .copier
            .as_mut()
            .and_then(|copier| copier.start(&self.signals));
        self.take_news(news);
    }

    fn hear_copier(&mut self) {
        let news = self.copier.as_mut().map(Copier::hear);
        self.take_news(news.into_iter().flatten());
    }

    fn take_news(&mut self, news: impl IntoIterator<Item = News>) {
        let Some(dir) = self.copier.as_ref().map(|copier| copier.to.clone()) else {
            return;
        };
        for news in news {
            // Whatever it is, there is no more to be known.
            self.ready = None;
            let event = match news {
                News::Said(CopyEvent::Found { newest }) => {
                    self.after = self.after.max(newest.unwrap_or(0));
                    continue;
                }
                News::Said(CopyEvent::Copied {
                    points,
                    bytes,
                    resumed,
                    seconds,
                    ..
                }) if !points.is_empty() => WatchEvent::Copied {
                    dir: dir.clone(),
                    points,
                    bytes,
                    resumed,
                    seconds,
                },
                News::Said(_) => continue,
                News::Failed { message, retry } => WatchEvent::CopyFailed {
                    dir: dir.clone(),
                    message,
                    next_seconds: retry.as_secs_f64(),
                },
                News::Stalled(time) => WatchEvent::CopyStalled {
                    dir: dir.clone(),
                    seconds: time.as_secs_f64(),
                },
            };
            (self.tell)(&event);
        }
    }

    /// Takes a snapshot now.
    fn checkpoint(&mut self) -> Result<Option<End>, JobError> {
        let sequence = self.schedule.sequence();
        let options = CheckpointOptions {
            pid: self.pid,
            dir: self.dir.clone(),
            stop: false,
            outside: self.schedule.outside,
            live: self.schedule.live,
            sequence,
            write: self.schedule.write,
            after: self.after,
        };
        let began = Instant::now();
        let taken = checkpoint_with(&options, &mut self.signals, &mut Warnings(self.tell));
        let now = Instant::now();
        match taken {
            Ok(report) => {
                self.pacemaker
                    .succeeded(&report, sequence.full_every, began, now);
                (self.tell)(&WatchEvent::Snapshot {
                    report: Box::new(report),
                    next_seconds: until(self.pacemaker.due()),
                });
                self.remove_old();
                if let Some(copier) = &mut self.copier {
                    copier.want();
                }
                Ok(None)
            }
            Err(_) if self.signals.was_called_off() => Ok(Some(End::Signal)),
            Err(error) => {
                let over = wait_readable(&[self.program.as_fd()], Some(Duration::ZERO))?;
                if over.contains(&true) {
                    return Ok(Some(End::Program));
                }
                self.pacemaker.failed(now);
                (self.tell)(&WatchEvent::Failed {
                    message: error.to_string(),
                    next_seconds: until(self.pacemaker.due()),
                });
                Ok(None)
            }
        }
    }

    fn remove_old(&mut self) {
        match retain(&self.dir, self.schedule.keep) {
            Ok(done) if done.removed.is_empty() => {}
            Ok(done) => (self.tell)(&WatchEvent::Removed {
                points: done.removed,
            }),
            // After the next one.
            Err(StoreError::Busy { .. }) => {}
            Err(error) => return self.warn_of_old(&error.to_string()),
        }
        // What newer ones build on stays for now. It is got rid of where that gives back more than it writes.
        let started = match clean_plan(&self.dir, self.schedule.keep) {
            Ok(plan) if !plan.rewritten.is_empty() && plan.is_due() => {
                let keep = self.schedule.keep;
                self.cleaner.start(&self.dir, keep, &self.signals)
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = started {
            self.warn_of_old(&error.to_string());
        }
    }

    fn warn_of_old(&mut self, why: &str) {
        (self.tell)(&WatchEvent::Warning {
            message: format!("old snapshots are not removed: {why}"),
        });
    }

    /// The program has ended: its last snapshot may be wanted elsewhere. Gives up where shared storage fails or stalls.
    fn finish_copying(&mut self) -> Result<End, JobError> {
        if !newest(&self.dir).is_ok_and(|newest| newest.is_some()) {
            return Ok(End::Program);
        }
        if let Some(copier) = &mut self.copier {
            copier.retry_now();
        }
        loop {
            match &self.copier {
                Some(copier) if !copier.is_done() && !copier.is_stuck() => {}
                _ => return Ok(End::Program),
            }
            if let Some(end) = self.wait(None)? {
                return Ok(end);
            }
        }
    }
}

/// Tells of warnings only.
struct Warnings<'a>(&'a mut dyn FnMut(&WatchEvent));

impl Observer for Warnings<'_> {
    fn event(&mut self, event: Event) {
        if let Event::Warning(message) = event {
            (self.0)(&WatchEvent::Warning { message });
        }
    }
}

fn until(due: Instant) -> f64 {
    due.saturating_duration_since(Instant::now()).as_secs_f64()
}
