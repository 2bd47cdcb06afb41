//! Trees of processes, end to end: a C program starts others; all are saved, go on unharmed; are killed; are
//! restored from what was saved; and find each other as they were. Twice over. As root and as an ordinary user.

#[allow(dead_code)]
#[path = "../kinds/stage.rs"]
mod stage;

use stage::{Stage, User};

/// Runs a program of `programs/` through all of it.
fn survives(program: &str) {
    for user in User::all() {
        let stage = Stage::of("trees", program, user);
        let original = stage.start();
        stage.save(original.pid(), "first", false);
        original.go_on_and_be_fine();

        let original = stage.start();
        stage.save(original.pid(), "second", true);
        original.expect_killed();
        let restored = stage.restore("second");
        stage.save(restored.pid(), "third", true);
        restored.expect_killed();
        stage.restore("third").go_on_and_be_fine();
    }
}

#[test]
fn relations() {
    survives("relations");
}

#[test]
fn wild() {
    survives("wild");
}

#[test]
fn sharing() {
    survives("sharing");
}

#[test]
fn lent() {
    survives("lent");
}

#[test]
fn pipelines() {
    survives("pipelines");
}

/// Removes the System V objects whose ids a program that was killed has left in a file.
fn remove_objects(stage: &Stage) {
    let ids = std::fs::read_to_string(stage.path("ids")).unwrap();
    let mut ids = ids.split_whitespace().map(|id| id.parse().unwrap());
    let (set, queue) = (ids.next().unwrap(), ids.next().unwrap());
    // SAFETY: no memory is passed; only that program knew the objects.
    unsafe {
        libc::semctl(set, 0, libc::IPC_RMID);
        libc::msgctl(queue, libc::IPC_RMID, std::ptr::null_mut());
    }
}

/// Memory that no other process has. A copy that the kernel makes of a page that is only read is clean.
fn private_kilobytes(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    let numbers = lines.map(|line| line.split_whitespace().nth(1).unwrap());
    numbers.map(|number| number.parse::<u64>().unwrap()).sum()
}

/// Memory of a process and all its descendants in bytes, that which several have counted once (proc(5), `Pss`).
fn proportional_bytes(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    let own = number.unwrap().parse::<u64>().unwrap() << 10;
    let children = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(children).unwrap();
    let children = children.split_whitespace().map(|id| id.parse().unwrap());
    own + children.map(proportional_bytes).sum::<u64>()
}

#[test]
fn memory() {
    let page_bytes = |stage: &Stage, image: &str| {
        let file = stage.path(image).join("pages.snap");
        std::fs::metadata(file).unwrap().len()
    };
    for user in User::all() {
        let stage = Stage::of("trees", "memory", user);
        let original = stage.start();
        let before = private_kilobytes(original.pid());
        stage.save(original.pid(), "first", false);
        // What processes share since fork they still share: reading must not make copies.
        let after = private_kilobytes(original.pid());
        assert!(after < before + 1024, "{before} kB became {after} kB");
        original.go_on_and_be_fine();

        let original = stage.start();
        stage.save(original.pid(), "second", true);
        original.expect_killed();
        remove_objects(&stage);
        // Four processes have 16 MiB, most of which is still the same: that is saved once, and is theirs together again.
        let bytes = page_bytes(&stage, "second");
        assert!(bytes < 24 << 20, "{bytes} bytes");
        let restored = stage.restore("second");
        let bytes = proportional_bytes(restored.pid());
        assert!(bytes < 28 << 20, "{bytes} bytes");
        stage.save(restored.pid(), "third", true);
        let bytes = page_bytes(&stage, "third");
        assert!(bytes < 24 << 20, "{bytes} bytes");
        restored.expect_killed();
        stage.restore("third").go_on_and_be_fine();
    }
}

#[test]
fn stopped() {
    survives("stopped");
}

#[test]
fn ended() {
    survives("ended");
}

#[test]
fn leader() {
    survives("leader");
}

#[test]
fn vfork() {
    survives("vfork");
}

#[test]
fn semaphores() {
    survives("semaphores");
}

#[test]
fn catcher() {
    survives("catcher");
}

/// The limit of the restart leaves no number above those of the program either.
#[test]
fn numbers() {
    survives("numbers");
    for user in User::all() {
        let stage = Stage::of("trees", "numbers", user);
        let original = stage.start();
        stage.save(original.pid(), "image", true);
        original.expect_killed();
        let mut limited = stage.command("bash");
        limited.args(["-c", "ulimit -n 4096 && exec \"$@\"", "bash"]);
        let restored = stage.try_restore_by(limited, "image").unwrap();
        restored.go_on_and_be_fine();
    }
}

#[test]
fn a_traced_process_is_refused_and_its_tracer_is_named() {
    let stage = Stage::of("trees", "catcher", User::Ourselves);
    let program = stage.start();
    let pid = program.pid();
    // A tracer is a thread, and with its end the process is not traced any more.
    std::thread::scope(|scope| {
        let tracer = scope.spawn(|| {
            snapify_sys::ptrace::seize(pid, 0).unwrap();
            let us = rustix::thread::gettid();
            let refusal = stage.try_save(pid, "image", false).unwrap_err();
            let wanted = format!("traced by process {us}");
            assert!(refusal.contains(&wanted), "{refusal}");
            assert!(stage.check(pid).contains(&wanted));
        });
        tracer.join().unwrap();
    });
    stage.save(pid, "image", false);
    program.go_on_and_be_fine();
}
