//! A running offload application of a test.

use crate::{Finished, Running, Session, User, example};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// One of the examples, running on cards.
pub struct OffloadApp {
    /// Where it runs.
    pub session: Arc<Session>,
    /// Its `snapify run` or `snapify restart`.
    pub run: Running,
    /// The host process's id.
    pub host: String,
}

/// How an example is run: its name, how many cards there are, how many it uses, and their memory.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Which example.
    pub name: &'static str,
    /// Its arguments for the size.
    pub size: &'static [&'static str],
    /// How many cards there are.
    pub cards: &'static str,
    /// How many of them it uses.
    pub devices: &'static str,
    /// Memory of each card.
    pub memory: &'static str,
    /// Whether the cards are those that the applications of a session share.
    pub shared: bool,
}

impl Shape {
    /// A run of some seconds on two cards.
    #[must_use]
    pub fn of(name: &'static str, devices: &'static str) -> Self {
        let size: &[&str] = match name {
            "md" => &["--steps", "160"],
            "mc" => &["--particles", "25165824"],
            "sgemm" => &["--rows", "1536", "--columns", "2048", "--inner", "2048"],
            "search" => &["--vectors", "131072"],
            _ => &["--points", "786432"],
        };
        Self {
            name,
            size,
            cards: "2",
            devices,
            memory: "1G",
            shared: false,
        }
    }

    fn command(&self, session: &Session) -> std::process::Command {
        let run = ["run", "--cards", self.cards, "--card-memory", self.memory];
        let mut command = session.snapify(run);
        if self.shared {
            command.arg("--share-cards");
        }
        command
            .arg("--")
            .arg(example(self.name))
            .args(self.size)
            .args(["--devices", self.devices]);
        command
    }

    /// The digest of an undisturbed run; each is made once.
    #[must_use]
    pub fn digest(&self) -> String {
        type Slot = Arc<OnceLock<String>>;
        static DONE: OnceLock<Mutex<HashMap<(&str, &str), Slot>>> = OnceLock::new();
        let slot = {
            let done = DONE.get_or_init(Mutex::default).lock();
            let mut done = done.expect("nobody panics in here");
            done.entry((self.name, self.devices)).or_default().clone()
        };
        slot.get_or_init(|| self.run_to_the_end()).clone()
    }

    fn run_to_the_end(&self) -> String {
        let session = Session::new();
        let finished = session.finish(&mut self.command(&session));
        assert!(finished.status.success(), "{finished:?}");
        finished.digest().to_owned()
    }

    /// Starts it, and waits until it works on its cards.
    #[must_use]
    pub fn start(&self, user: User) -> OffloadApp {
        self.start_in(&Arc::new(Session::of(user)))
    }

    /// The same, beside others of a session.
    #[must_use]
    pub fn start_in(&self, session: &Arc<Session>) -> OffloadApp {
        let mut run = session.start(&mut self.command(session));
        let word = match self.name {
            "md" => "step ",
            "kmeans" => "iteration ",
            "sgemm" => "round ",
            _ => "batch ",
        };
        run.wait_for(word);
        let host = session.host_of(&mut run).expect("it runs").to_string();
        let session = session.clone();
        OffloadApp { session, run, host }
    }
}

impl OffloadApp {
    /// Runs `snapify OPERATION HOST ARGS...`.
    #[must_use]
    pub fn ask(&self, operation: &str, args: &[&str]) -> Finished {
        let mut words = vec![operation, &self.host];
        words.extend(args);
        self.session.run(words)
    }

    /// The same, which must succeed, with `--json`; gives what it prints.
    pub fn done(&self, operation: &str, args: &[&str]) -> Value {
        let mut args = args.to_vec();
        args.push("--json");
        let finished = self.ask(operation, &args);
        assert!(finished.status.success(), "{operation}: {finished:?}");
        serde_json::from_str(&finished.stdout).expect("one JSON object")
    }

    /// The same, which must be refused with these words.
    pub fn refused(&self, operation: &str, args: &[&str], words: &[&str]) {
        let finished = self.ask(operation, args);
        assert_eq!(finished.code(), Some(1), "{operation}: {finished:?}");
        assert!(finished.stdout.is_empty(), "{finished:?}");
        for word in words {
            assert!(
                finished.stderr.contains(word),
                "no '{word}' in {finished:?}"
            );
        }
    }

    /// Its entry in `ps`.
    #[must_use]
    pub fn status(&self) -> Value {
        let applications = self.session.applications();
        let mine = |application: &&Value| application["pid"].as_i64() == self.host.parse().ok();
        applications.iter().find(mine).expect("it runs").clone()
    }

    /// Ids of its offload processes, with the card that each is on; none for one that is swapped out.
    #[must_use]
    pub fn places(&self) -> Vec<(String, Option<u64>)> {
        let status = self.status();
        let processes = status["processes"].as_array().expect("a list");
        let place = |process: &Value| {
            let id = process["id"].as_str().expect("an id").to_owned();
            let away = process["state"] == "swapped-out";
            (id, process["card"].as_u64().filter(|_| !away))
        };
        processes.iter().map(place).collect()
    }

    /// Waits for its end, which must be a success; gives the digest. It was the last one of its session.
    #[must_use]
    pub fn digest(self) -> String {
        let session = self.session.clone();
        let digest = self.digest_beside_others();
        session.expect_no_process();
        digest
    }

    /// The same, where others of its session go on.
    #[must_use]
    pub fn digest_beside_others(self) -> String {
        let finished = self.run.finish();
        assert!(finished.status.success(), "{finished:?}");
        finished.digest().to_owned()
    }
}
