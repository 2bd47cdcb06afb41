//! Processes that are not the test's own children: signals to them, and what they are doing.

use crate::{Session, poll_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::process::Stdio;

/// Sends a signal to a process.
pub fn signal(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("an id");
    kill_process(pid, signal).expect("send a signal");
}

/// A process and its children, which have none.
#[must_use]
pub fn family(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).expect("its children");
    let mut all = vec![pid];
    all.extend(children.split_whitespace().flat_map(str::parse::<i32>));
    all
}

/// Stops a process and its children, and waits until they stand still.
pub fn stop_family(pid: i32) {
    let family = family(pid);
    for &pid in &family {
        signal(pid, Signal::STOP);
    }
    family.into_iter().for_each(await_stopped);
}

/// Lets a process and its children go on.
pub fn continue_family(pid: i32) {
    for pid in family(pid) {
        signal(pid, Signal::CONT);
    }
}

/// Kills a process and its children.
pub fn kill_family(pid: i32) {
    for pid in family(pid).into_iter().rev() {
        signal(pid, Signal::KILL);
    }
}

/// Waits until a process that was stopped stands still.
pub fn await_stopped(pid: i32) {
    poll_until("it has stopped", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("State:\tT (stopped)")
    });
}

impl Session {
    /// Takes a snapshot, and gives what is told of it.
    pub fn checkpoint(&self, pid: i32, args: &[&str]) -> serde_json::Value {
        let pid = pid.to_string();
        let args = [&["checkpoint", &pid, "--json"], args].concat();
        serde_json::from_str(&self.succeed(args)).expect("a report")
    }

    /// Restarts a point of a chain of a program that was stopped with its children, which they are then, too; returns the
    /// program's id.
    pub fn restart_stopped(&self, dir: &str, point: u64) -> i32 {
        let name = format!("pid-{dir}-{point}");
        let point = point.to_string();
        let mut command = self.snapify(["restart", dir, "--at", &point, "--detach"]);
        // The program has its standard streams, which would last as long as it does.
        let errors = File::create(self.path("errors")).expect("make a file");
        command
            .args(["--pid-file", &name])
            .stdout(Stdio::null())
            .stderr(errors);
        let status = command.status().expect("start it");
        let errors = std::fs::read_to_string(self.path("errors")).expect("read the file");
        assert!(status.success(), "{errors}");
        let pid = std::fs::read_to_string(self.path(&name)).expect("its id");
        let pid = pid.trim().parse().expect("a number");
        family(pid).into_iter().for_each(await_stopped);
        pid
    }

    /// Numbers of the points in a directory.
    #[must_use]
    pub fn points(&self, dir: &str) -> Vec<u64> {
        let told = self.succeed(["inspect", dir, "--json"]);
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let points = told["points"].as_array().expect("a list");
        let numbers = points.iter().filter_map(|point| point["number"].as_u64());
        numbers.collect()
    }

    /// The processes of the session that keep account of its programs' memory.
    #[must_use]
    pub fn keepers(&self) -> Vec<i32> {
        let is_keeper = |pid: &i32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name == "snapify-keeper\n"
        };
        self.processes().into_iter().filter(is_keeper).collect()
    }
}
