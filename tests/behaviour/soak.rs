//! Random operations (checkpoint, swap-out, swap-in, migrate, kill, restart) on three applications that share two cards, one
//! thread an application: all results are right, and nothing is left behind.

use Step::{Checkpoint, Kill, Migrate, Restart, Swap};
use snapify_tests::{Finished, OffloadApp, Random, Running, Session, Shape, poll_until, rounds};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What is done to an application.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Checkpoint,
    /// In, if something is out.
    Swap,
    Migrate,
    /// With SIGKILL, at once; and a restart of the last snapshot, if there is one.
    Kill,
    /// A checkpoint that ends it, and a restart of that.
    Restart,
}

/// One of the applications.
struct Subject {
    shape: Shape,
    expected: String,
    session: Arc<Session>,
    random: Random,
    /// Directories of its own.
    snapshots: String,
    swapped: String,
    has_snapshot: bool,
    tally: Tally,
}

/// What has come to pass.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    /// How often a program has come to its end, with the right result.
    ends: usize,
    /// How many operations were carried out, by kind.
    done: [usize; STEPS.len()],
}

const STEPS: [Step; 5] = [Checkpoint, Swap, Migrate, Kill, Restart];

impl Subject {
    fn new(
        name: &'static str,
        devices: &'static str,
        session: &Arc<Session>,
        random: Random,
    ) -> Self {
        let shape = Shape {
            shared: true,
            ..Shape::of(name, devices)
        };
        Self {
            shape,
            expected: shape.digest(),
            session: session.clone(),
            random,
            snapshots: format!("{name}-snapshots"),
            swapped: format!("{name}-swapped"),
            has_snapshot: false,
            tally: Tally::default(),
        }
    }

    /// Carries out its share of the operations that are left, then lets the program come to its end.
    fn operate(mut self, left: &AtomicUsize) -> Tally {
        let take = |left: usize| left.checked_sub(1);
        let mut app = Some(self.begin());
        while left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
        {
            // The moment is random: there is no event to wait for.
            std::thread::sleep(Duration::from_millis(self.random.below(150)));
            let step = STEPS[self.random.below(STEPS.len() as u64) as usize];
            let current = app.take().unwrap_or_else(|| self.begin());
            let (next, done) = self.step(current, step);
            app = next;
            if done {
                self.tally.done[step as usize] += 1;
            } else {
                // Only what was carried out counts.
                left.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Some(app) = app {
            for (id, place) in self.places(&app) {
                if place.is_none() {
                    self.accept(&app.ask("swap-in", &["0", "--process", &id]));
                }
            }
            self.end(app);
        }
        self.tally
    }

    /// A new run of the program, whose snapshots are another program's.
    fn begin(&mut self) -> OffloadApp {
        let _ = std::fs::remove_dir_all(self.session.path(&self.snapshots));
        self.has_snapshot = false;
        self.shape.start_in(&self.session)
    }

    /// Does something to the program. Gives it back, or the next incarnation; nothing if it has come to its end. And whether it
    /// was done: a program may have no process to be moved, or none any more.
    fn step(&mut self, app: OffloadApp, step: Step) -> (Option<OffloadApp>, bool) {
        let places = self.places(&app);
        let pick = self.random.below(places.len().max(1) as u64) as usize;
        let away = places.iter().find(|(_, place)| place.is_none());
        let outcome = match (step, away, places.get(pick)) {
            (Checkpoint, ..) => {
                let outcome = app.ask("checkpoint", &[&self.snapshots]);
                self.has_snapshot |= outcome.status.success();
                outcome
            }
            (Swap, Some((id, _)), _) => {
                let card = self.random.below(2).to_string();
                app.ask("swap-in", &[&card, "--process", id])
            }
            (Swap, None, Some((id, _))) => app.ask("swap-out", &[&self.swapped, "--process", id]),
            (Migrate, _, Some((id, Some(card)))) => {
                let card = (1 - card).to_string();
                app.ask("migrate", &[&card, "--process", id])
            }
            // There is nothing that could be moved.
            (Swap | Migrate, ..) => return (self.look_after(app), false),
            (Kill, ..) => {
                let host = app.host.parse().expect("a number");
                self.session.kill_host(&app.run, host);
                let finished = app.run.finish();
                if finished.status.success() {
                    // It had come to its end.
                    self.judge(&finished);
                    return (None, false);
                }
                assert_eq!(finished.killed_by(), Some(9), "{finished:?}");
                return (self.has_snapshot.then(|| self.restart()), true);
            }
            (Restart, ..) => {
                let outcome = app.ask("checkpoint", &[&self.snapshots, "--stop"]);
                if outcome.status.success() {
                    let finished = app.run.finish();
                    assert_eq!(finished.killed_by(), Some(9), "{finished:?}");
                    return (Some(self.restart()), true);
                }
                outcome
            }
        };
        self.accept(&outcome);
        (self.look_after(app), outcome.status.success())
    }

    /// A request must have been carried out, unless the program has come to its end, or nearly so.
    fn accept(&self, outcome: &Finished) {
        if outcome.status.success() {
            return;
        }
        let reasons = ["no process", "has ended", "ended meanwhile", "no cards"];
        // Between its last use of the cards and its end.
        let idle = ["no offload process", "is gone"];
        let reason = &outcome.stderr;
        assert_eq!(outcome.code(), Some(1), "{outcome:?}");
        assert!(
            reasons
                .iter()
                .chain(&idle)
                .any(|word| reason.contains(word)),
            "{}: {outcome:?}",
            self.shape.name
        );
    }

    /// Goes on with a program that may have come to its end.
    fn look_after(&mut self, mut app: OffloadApp) -> Option<OffloadApp> {
        if app.run.is_running() {
            return Some(app);
        }
        self.end(app);
        None
    }

    /// Where its offload processes are; nothing if it has ended.
    fn places(&self, app: &OffloadApp) -> Vec<(String, Option<u64>)> {
        let applications = self.session.applications();
        let mine = |found: &&serde_json::Value| found["pid"].as_i64() == app.host.parse().ok();
        let Some(status) = applications.iter().find(mine) else {
            return Vec::new();
        };
        let processes = status["processes"].as_array().expect("a list");
        let place = |process: &serde_json::Value| {
            let id = process["id"].as_str().expect("an id").to_owned();
            let away = process["state"] == "swapped-out";
            (id, process["card"].as_u64().filter(|_| !away))
        };
        processes.iter().map(place).collect()
    }

    fn restart(&mut self) -> OffloadApp {
        let pid_file = self.session.path(&format!("{}-pid", self.shape.name));
        let _ = std::fs::remove_file(&pid_file);
        let mut command = self
            .session
            .snapify(["restart", &self.snapshots, "--share-cards"]);
        command.arg("--pid-file").arg(&pid_file);
        if self.random.below(2) == 0 {
            command.args(["--card", "0=1", "--card", "1=0"]);
        }
        let mut run = self.session.start(&mut command);
        let host = await_pid(&mut run, &pid_file);
        OffloadApp {
            session: self.session.clone(),
            run,
            host,
        }
    }

    fn end(&mut self, app: OffloadApp) {
        let finished = app.run.finish();
        self.judge(&finished);
    }

    fn judge(&mut self, finished: &Finished) {
        assert!(
            finished.status.success(),
            "{}: {finished:?}",
            self.shape.name
        );
        assert_eq!(finished.digest(), self.expected, "{}", self.shape.name);
        self.tally.ends += 1;
    }
}

/// Waits until a restart has written its pid file.
fn await_pid(run: &mut Running, file: &Path) -> String {
    let read = || {
        std::fs::read_to_string(file)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let deadline = Instant::now() + Duration::from_secs(240);
    while read().is_empty() && run.is_running() {
        assert!(Instant::now() < deadline, "the restart does not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The program may have been so near its end that both have come to pass.
    let pid = read();
    assert!(!pid.is_empty(), "the restart has failed");
    pid
}

/// What lies in shared memory, and what is mounted, but for what OpenMP runtimes of killed programs leave there.
fn traces() -> BTreeSet<String> {
    let shared = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    let shared = shared.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let ours = |name: &String| name.contains("snapify");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts
        .lines()
        .map(str::to_owned)
        .filter(ours)
        .collect::<Vec<_>>();
    shared.filter(ours).chain(mounts).collect()
}

fn soak(operations: usize) {
    let before = traces();
    let session = Arc::new(Session::new());
    let left = AtomicUsize::new(operations);
    let mut random = Random::new();
    let tallies = std::thread::scope(|scope| {
        let subjects = [("md", "1"), ("search", "2"), ("sgemm", "1")].map(|(name, devices)| {
            let subject = Subject::new(name, devices, &session, random.branch());
            scope.spawn(|| subject.operate(&left))
        });
        subjects.map(|subject| subject.join().expect("it went well"))
    });
    let ends: usize = tallies.iter().map(|tally| tally.ends).sum();
    assert!(
        ends >= tallies.len(),
        "each has come to its end: {tallies:?}"
    );
    for (at, step) in STEPS.iter().enumerate() {
        let done: usize = tallies.iter().map(|tally| tally.done[at]).sum();
        eprintln!("{step:?}: {done}");
    }
    eprintln!(
        "{operations} operations; programs came to their ends {ends} times, with right results"
    );
    session.expect_no_process();
    poll_until("nothing is left in the runtime directory", || {
        session.left_in("apps").is_empty() && session.left_in("cards").is_empty()
    });
    for name in ["md-swapped", "search-swapped", "sgemm-swapped"] {
        assert!(!session.path(name).exists(), "{name} is left");
    }
    let new: Vec<_> = traces().difference(&before).cloned().collect();
    // Other tests may mount something meanwhile, but in namespaces of their own.
    assert!(
        new.iter().all(|trace| !trace.contains("snapify-card")),
        "{new:?}"
    );
}

#[test]
fn a_few_random_operations_on_three_applications() {
    soak(20);
}

#[test]
#[ignore = "long: run by `make soak`"]
fn soak_random_operations_on_three_applications() {
    soak(rounds(20) * 50);
}
