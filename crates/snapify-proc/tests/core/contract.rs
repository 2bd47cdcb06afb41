//! What the engine promises beyond the state of the process: externals, launches, and what is left behind when something dies in the
//! middle.

use super::stage::{Stage, User};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

#[test]
fn externals_are_supplied_anew() {
    for user in User::all() {
        let stage = Stage::of("core", "external", user);
        let original = stage.start();
        // See external.c for the numbers.
        let externals = ["store:50:0x200000000000:1048576", "control:51:0:0"];
        let mut save = stage.engine();
        save.arg("save")
            .arg(original.pid().to_string())
            .arg(stage.path("snap"))
            .arg("--stop")
            .args(externals);
        assert!(save.status().unwrap().success());
        original.expect_killed();
        let pages = fs::read(stage.path("snap/pages.snap")).unwrap();
        let secret = b"this is in the store";
        assert!(
            !pages.windows(secret.len()).any(|w| w == secret),
            "an external was saved"
        );

        let without = stage.try_restore("snap").err().unwrap();
        assert!(
            without.contains("store") && without.contains("control"),
            "{without}"
        );

        fs::write(
            stage.path("new"),
            [b"another one".as_slice(), &vec![0; 1 << 20]].concat(),
        )
        .unwrap();
        fs::write(stage.path("new-control"), "hello").unwrap();
        for file in ["new", "new-control"] {
            stage.let_use(fs::File::open(stage.path(file)).unwrap());
        }
        let restored = stage.restore_with("snap", &["store=new", "control=new-control"]);
        restored.go_on_and_be_fine();
        assert!(
            fs::read(stage.path("new"))
                .unwrap()
                .starts_with(b"Another one")
        );
    }
}

#[test]
fn programs_are_launched_in_namespaces_of_their_own() {
    for user in User::all() {
        let stage = Stage::of("core", "external", user);
        let launch = |args: &[&str]| stage.engine().arg("launch").args(args).output().unwrap();
        let output = launch(&["/bin/sh", "-c", "echo $$; cat /proc/1/comm; exit 7"]);
        assert_eq!(output.status.code(), Some(7));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "2\nsnapify-init\n");

        let output = launch(&["/nonexistent/program"]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            text.contains("execute /nonexistent/program: No such file"),
            "{text}"
        );

        // What it leaves behind dies with it.
        let begin = Instant::now();
        let output = launch(&["/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & kill -9 $$"]);
        assert_eq!(output.status.code(), Some(128 + 9));
        assert!(begin.elapsed() < Duration::from_secs(100));
    }
}

#[test]
fn a_launched_program_is_saved_and_restored() {
    for user in User::all() {
        let stage = Stage::of("core", "threads", user);
        let launched = stage.launch();
        let pid = launched.pid();
        stage.save(pid, "launched", true);
        launched.expect_killed();
        stage.restore("launched").go_on_and_be_fine();
    }
}

/// Starts to save a program and returns when its pages are being written, to a pipe that nobody reads.
fn stuck_in_save(stage: &Stage, pid: i32) -> Child {
    fs::create_dir(stage.path("stuck")).unwrap();
    stage.let_use(fs::File::open(stage.path("stuck")).unwrap());
    let pipe = stage.path("stuck/pages.snap");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        0o666.into(),
        0,
    )
    .unwrap();
    stage.let_use(
        fs::File::options()
            .read(true)
            .write(true)
            .open(&pipe)
            .unwrap(),
    );
    let mut save = stage.engine();
    let child = save
        .arg("save")
        .arg(pid.to_string())
        .arg(stage.path("stuck"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let reader = fs::File::options()
        .read(true)
        .write(true)
        .open(&pipe)
        .unwrap();
    let begin = Instant::now();
    while rustix::io::ioctl_fionread(&reader).unwrap() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    child
}

#[test]
fn a_killed_engine_leaves_the_program_unharmed() {
    for user in User::all() {
        let stage = Stage::of("core", "threads", user);
        let program = stage.start();
        let mut engine = stuck_in_save(&stage, program.pid());
        assert_eq!(super::state(program.pid()), 't');
        engine.kill().unwrap();
        assert_eq!(engine.wait().unwrap().signal(), Some(libc::SIGKILL));
        program.go_on_and_be_fine();
    }
}

/// Threads find their way out of remote calls by themselves.
#[test]
fn an_engine_that_is_killed_within_remote_calls_leaves_the_program_unharmed() {
    const TIMES: usize = 30;
    for user in User::all() {
        for name in ["busy", "threads"] {
            let stage = Stage::of("core", name, user);
            let program = stage.start();
            // Each remote call makes its thread wait.
            let waits = || {
                let status = fs::read_to_string(format!("/proc/{}/status", program.pid())).unwrap();
                let (_, count) = status.split_once("\nvoluntary_ctxt_switches:").unwrap();
                count.lines().next().unwrap().trim().parse::<u64>().unwrap()
            };
            for _ in 0..TIMES {
                let before = waits();
                let mut engine = stage.engine();
                let calls = engine.arg("calls").arg(program.pid().to_string());
                let mut engine = calls.arg("100000000").spawn().unwrap();
                // From some time on it does nothing else.
                let begin = Instant::now();
                while waits() < before + 1000 {
                    assert!(begin.elapsed() < Duration::from_secs(60));
                    std::thread::yield_now();
                }
                engine.kill().unwrap();
                engine.wait().unwrap();
            }
            program.go_on_and_be_fine();
        }
    }
}

#[test]
fn a_program_that_dies_meanwhile_is_an_error() {
    for user in User::all() {
        let stage = Stage::of("core", "busy", user);
        let program = stage.start();
        let engine = stuck_in_save(&stage, program.pid());
        super::signal(program.pid(), libc::SIGKILL);
        // Now its pages are asked for, and nobody is there any more.
        // Open for both, because the engine may have noticed already, and ended.
        let mut reader = fs::File::options()
            .read(true)
            .write(true)
            .open(stage.path("stuck/pages.snap"))
            .unwrap();
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        let output = engine.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{text}");
        // Its parent hears of its end only when the tracer is gone.
        program.expect_killed();
    }
}

#[test]
fn damage_is_refused_before_any_process_is_made() {
    let stage = Stage::of("core", "threads", User::Ourselves);
    let program = stage.start();
    stage.save(program.pid(), "snap", true);
    program.expect_killed();
    let json = fs::read_to_string(stage.path("snap/process.json")).unwrap();
    let refused = |from: &str, to: &str, expected: &str| {
        assert!(json.contains(from), "{from}");
        fs::write(stage.path("snap/process.json"), json.replacen(from, to, 1)).unwrap();
        let text = stage.try_restore("snap").err().unwrap();
        assert!(text.contains(expected), "{text}");
    };
    refused("\"version\":1", "\"version\":2", "use a newer one");
    refused("\"vdso_hash\":", "\"vdso_hash\":1,\"was\":", "vDSO");
    let mapping = json.find("\"start\":").unwrap();
    let number = json[mapping + 8..].split(',').next().unwrap();
    refused(
        &json[mapping..mapping + 8 + number.len()],
        "\"start\":3",
        "cannot be",
    );
    fs::write(stage.path("snap/process.json"), &json).unwrap();

    let mut pages = fs::read(stage.path("snap/pages.snap")).unwrap();
    let middle = pages.len() / 2;
    pages[middle] ^= 4;
    fs::write(stage.path("snap/pages.snap"), &pages).unwrap();
    let text = stage.try_restore("snap").err().unwrap();
    assert!(
        text.contains("pages.snap") && text.contains("checksum"),
        "{text}"
    );
}
