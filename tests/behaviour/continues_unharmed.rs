//! A checkpoint without --stop leaves no trace: same descriptors, mappings, signals and threads; and the program goes
//! on to the right result, however often it is checkpointed.

use snapify_tests::{Language, Session, compile, poll_until};
use std::process::Stdio;

/// What /proc tells about a process that must not change.
fn portrait(pid: i32) -> String {
    let mut told = String::new();
    let read =
        |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    told.push_str(&read("maps"));
    for line in read("status").lines() {
        let kept = [
            "Sig",
            "Shd",
            "Threads",
            "Cap",
            "NoNewPrivs",
            "TracerPid",
            "VmSize",
            "VmLck",
            "Cpus_allowed:",
            "State",
        ];
        // Signals that are queued count for all processes of a user together, those of other tests among them.
        let counted = line.starts_with("SigQ");
        if !counted && kept.iter().any(|name| line.starts_with(name)) {
            told.push_str(line);
            told.push('\n');
        }
    }
    let mut fds: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("read the descriptors")
        .flatten()
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap_or_default();
            let info = read(&format!("fdinfo/{name}"));
            format!(
                "{name} -> {:?}\n{info}",
                std::fs::read_link(entry.path()).ok()
            )
        })
        .collect();
    fds.sort();
    told.push_str(&fds.concat());
    let mut threads: Vec<_> = std::fs::read_dir(format!("/proc/{pid}/task"))
        .expect("read the threads")
        .flatten()
        .map(|entry| entry.file_name().into_string().unwrap_or_default())
        .collect();
    threads.sort();
    told.push_str(&threads.join(" "));
    told
}

#[test]
fn nothing_changes() {
    let session = Session::new();
    let mut command = session.command(compile("idle.c", Language::C));
    command.stdin(Stdio::piped());
    let mut running = session.start(&mut command);
    let stdin = running.take_stdin();
    running.wait_for("ready");
    // It says so before it falls asleep in a read.
    poll_until("it waits", || {
        portrait(running.pid()).contains("(sleeping)")
    });
    let before = portrait(running.pid());
    for _ in 0..5 {
        session.succeed(["checkpoint", &running.pid().to_string(), "snap"]);
        // Its first thread may still be on its way back to sleep.
        poll_until("it waits", || {
            portrait(running.pid()).contains("(sleeping)")
        });
        assert_eq!(portrait(running.pid()), before);
    }
    drop(stdin);
    let finished = running.finish();
    assert!(finished.status.success(), "{finished:?}");
}

#[test]
fn an_offload_program_goes_on_through_many_checkpoints() {
    let session = Session::new();
    let program = |session: &Session| session.offload(2, "search");
    let expected = session.finish(&mut program(&session));
    let mut run = session.start(&mut program(&session));
    let host = session.host_of(&mut run).expect("it runs").to_string();
    let mut taken = 0;
    while run.is_running() && taken < 10 {
        let done = session.run(["checkpoint", &host, "snap"]);
        if done.status.success() {
            taken += 1;
        } else {
            assert!(
                !run.is_running() || session.applications().is_empty(),
                "{done:?}"
            );
        }
    }
    let finished = run.finish();
    assert!(finished.status.success(), "{finished:?}");
    assert_eq!(finished.digest(), expected.digest());
    assert!(taken > 0, "at least one checkpoint fell into the run");
    session.expect_no_process();
}
