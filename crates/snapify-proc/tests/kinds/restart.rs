//! What has changed between snapshot and restart.

use crate::stage::{Stage, User};
use std::fs;
use std::process::Stdio;

/// A program that is saved and ended.
fn saved(program: &str, args: &[&str]) -> Stage {
    let stage = Stage::new(program, User::Ourselves);
    let running = stage.start_with(|command| {
        command.args(args);
    });
    stage.save(running.pid(), "image", true);
    running.expect_killed();
    stage
}

fn refusal(stage: &Stage) -> String {
    stage
        .try_restore("image")
        .err()
        .expect("this cannot be restored")
}

#[test]
fn a_file_that_is_gone_is_named() {
    let stage = saved("files", &[]);
    fs::remove_file(stage.path("plain")).unwrap();
    fs::remove_file(stage.path("locked")).unwrap();
    let refusal = refusal(&stage);
    assert!(
        refusal.contains(stage.path("plain").to_str().unwrap()),
        "{refusal}"
    );
    assert!(
        refusal.contains(stage.path("locked").to_str().unwrap()),
        "{refusal}"
    );
}

#[test]
fn a_file_that_is_shorter_is_named_and_a_longer_one_taken() {
    let stage = saved("files", &[]);
    fs::write(stage.path("plain"), "012345").unwrap();
    let text = refusal(&stage);
    assert!(text.contains("it had 10 bytes and has 6 now"), "{text}");
    fs::write(stage.path("plain"), "0123456789, and more").unwrap();
    stage.restore("image").go_on_and_be_fine();
}

#[test]
fn a_lock_that_another_has_taken_is_named() {
    let stage = saved("files", &[]);
    let other = fs::File::open(stage.path("locked")).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let text = refusal(&stage);
    assert!(text.contains("another process holds the lock"), "{text}");
    assert!(
        text.contains(stage.path("locked").to_str().unwrap()),
        "{text}"
    );
    drop(other);
    stage.restore("image").go_on_and_be_fine();
}

#[test]
fn a_working_directory_that_is_gone_is_named() {
    let stage = Stage::new("context", User::Ourselves);
    // What a program has made itself, some time after its start, would be made again.
    fs::create_dir(stage.path("inner")).unwrap();
    let running = stage.start();
    stage.save(running.pid(), "image", true);
    running.expect_killed();
    fs::remove_dir(stage.path("inner")).unwrap();
    let text = refusal(&stage);
    assert!(
        text.contains("working directory") && text.contains("/inner"),
        "{text}"
    );
}

#[test]
fn another_user_cannot_restart_it() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let stage = Stage::new("pipes", User::Ordinary);
    let running = stage.start();
    stage.save(running.pid(), "image", true);
    running.expect_killed();
    let text = stage
        .for_user(User::Ourselves)
        .try_restore("image")
        .err()
        .unwrap();
    assert!(text.contains("belongs to user 12345"), "{text}");
}

/// Where a hard limit cannot be had any more the program gets what there is, and the user is told.
#[test]
fn limits_that_cannot_be_had_are_lowered_with_a_warning() {
    for user in User::all() {
        let stage = Stage::new("stdio", user);
        let running = stage.start();
        stage.save(running.pid(), "image", true);
        running.expect_killed();
        let mut shell = stage.command("bash");
        let script = "ulimit -n 900; ulimit -u 5000; exec \"$@\"";
        shell.args(["-c", script, "-"]);
        let restored = stage.try_restore_by(shell, "image").unwrap();
        let limits = fs::read_to_string(format!("/proc/{}/limits", restored.pid())).unwrap();
        let line = |name| {
            let found = limits.lines().find(|line| line.starts_with(name));
            found
                .unwrap()
                .split_whitespace()
                .skip(3)
                .take(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        // Root may raise limits, if its privileges are complete.
        if line("Max open files")[1] == "900" {
            assert!(
                restored.said().contains("limit of open files"),
                "{}",
                restored.said()
            );
            assert_eq!(line("Max open files"), ["900", "900"]);
        }
        restored.go_on_and_be_fine();
    }
}

/// All numbers that there may be are the program's: there is none for what the restart itself has open.
#[test]
fn a_limit_of_descriptors_that_leaves_no_number_is_named() {
    for user in User::all() {
        let stage = Stage::new("stdio", user);
        let command =
            "for ((n = 16; n < 140; n++)); do eval \"exec $n</dev/null\"; done; exec ./stdio";
        let running = stage.start_through_shell(command, std::process::Stdio::inherit());
        stage.save(running.pid(), "image", true);
        running.expect_killed();
        let mut shell = stage.command("bash");
        shell.args(["-c", "ulimit -n 140; exec \"$@\"", "-"]);
        let refusal = stage.try_restore_by(shell, "image").err().unwrap();
        assert!(refusal.contains("ulimit -n"), "{refusal}");
        stage.restore("image").go_on_and_be_fine();
    }
}

/// A program in a user namespace of its own, where its user has another id.
#[test]
fn ids_in_a_user_namespace_come_back() {
    let user = User::all().pop().unwrap();
    let stage = Stage::new("context", user);
    stage.survives(|| {
        stage.start_through_shell(
            "exec unshare --user --map-root-user ./context",
            Stdio::inherit(),
        )
    });
}

#[test]
fn a_program_without_an_id_in_its_user_namespace_is_refused() {
    let user = User::all().pop().unwrap();
    let stage = Stage::new("context", user);
    let program = stage.start_through_shell("exec unshare --user ./context", Stdio::inherit());
    let wanted = "have no ids in the user namespace";
    assert!(stage.check(program.pid()).contains(wanted));
    let refusal = stage.try_save(program.pid(), "image", false).unwrap_err();
    assert!(refusal.contains(wanted), "{refusal}");
    program.go_on_and_be_fine();
}

/// Whoever may set supplementary groups has those of the program back.
#[test]
fn supplementary_groups_of_root_come_back() {
    const CAP_SYS_ADMIN: u64 = 21;
    let groups = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = |name| {
            let found = status.lines().find_map(|line| line.strip_prefix(name));
            found.unwrap().trim().to_owned()
        };
        (
            line("Groups:"),
            u64::from_str_radix(&line("CapEff:"), 16).unwrap(),
        )
    };
    let (_, capabilities) = groups("self");
    if !rustix::process::geteuid().is_root() || capabilities >> CAP_SYS_ADMIN & 1 == 0 {
        return;
    }
    let stage = Stage::new("context", User::Ourselves);
    let running =
        stage.start_through_shell("exec setpriv --groups 10,20,30 ./context", Stdio::inherit());
    stage.save(running.pid(), "image", true);
    running.expect_killed();
    let restored = stage.restore("image");
    assert_eq!(groups(&restored.pid().to_string()).0, "10 20 30");
    restored.go_on_and_be_fine();
}

/// In a container with a seccomp filter all is under it, the tool as well.
#[test]
fn filters_that_all_are_under_are_no_obstacle() {
    for user in User::all() {
        let stage = Stage::new("filtered", user);
        let running = stage.start();
        let refusal = stage.try_save(running.pid(), "refused", false);
        assert!(refusal.unwrap_err().contains("seccomp"));
        let filtered = || stage.command(stage.path("filtered"));
        let mut save = filtered();
        save.arg(stage.engine().get_program());
        save.args(["save", &running.pid().to_string()]);
        let saved = save
            .arg(stage.path("image"))
            .arg("--stop")
            .output()
            .unwrap();
        assert!(saved.status.success(), "{saved:?}");
        running.expect_killed();
        stage
            .try_restore_by(filtered(), "image")
            .unwrap()
            .go_on_and_be_fine();
    }
}

/// A program that waits for its input by epoll can be restarted with a file for input.
#[test]
fn input_that_cannot_be_waited_for_is_told() {
    let stage = Stage::new("waits", User::Ourselves);
    let running = stage.start();
    stage.save(running.pid(), "image", true);
    running.expect_killed();
    fs::write(stage.path("input"), "go on\n").unwrap();
    let mut shell = stage.command("bash");
    shell.args(["-c", "exec \"$@\" < input", "-"]);
    let mut restored = stage.try_restore_by(shell, "image").unwrap();
    assert!(
        restored.said().contains("standard stream 0"),
        "{}",
        restored.said()
    );
    restored.expect("fine");
    assert!(restored.end().success());
}
