//! What is not supported is refused by name, before and at capture, and the program goes on
//! unharmed.

use crate::stage::{Stage, User};

/// What a program sets up, and what the refusal says.
const KINDS: &[(&str, &str)] = &[
    ("udplite", "an IPv4 datagram socket of protocol 136"),
    ("netlink", "a netlink socket with messages"),
    ("filter", "a filter for messages"),
    ("handed", "on its way through a socket"),
    ("unread", "on a connection that was not accepted yet"),
    ("watched-and-gone", "that was removed or not found"),
    ("pidfd", "which is not saved with it"),
    ("userfaultfd", "a userfaultfd"),
    ("io_uring", "an io_uring instance"),
    ("namespace", "another net namespace than the process's own"),
    ("notify", "F_NOTIFY"),
    ("async", "its signals on input (O_ASYNC) go to process"),
    ("queue", "a process waits to be notified"),
    ("other-process", "it is about another process"),
    ("seccomp", "restricted by seccomp"),
    ("strict", "restricted by seccomp"),
    (
        "thread-credentials",
        "privileges are not those of the first thread",
    ),
    (
        "thread-directory",
        "a working directory and umask of its own",
    ),
    (
        "thread-clock",
        "POSIX timer 0: it counts the CPU time of the thread that made it",
    ),
    ("aio", "asynchronous I/O"),
    ("secret", "it is secret memory"),
    ("secret-mapping", "it is secret memory"),
];

/// Only remote calls show these.
const NOT_FORETOLD: &[&str] = &["unread", "handed", "queue"];

#[test]
fn everything_unsupported_is_refused_by_name() {
    let mut wrong = Vec::new();
    for user in User::all() {
        let stage = Stage::new("refused", user);
        for &(kind, wanted) in KINDS {
            let Some(program) = stage.start_if_possible(&[kind]) else {
                eprintln!("{kind}: not to be had here by {user:?}");
                continue;
            };
            let foretold = stage.check(program.pid());
            let refusal = stage
                .try_save(program.pid(), "image", false)
                .err()
                .unwrap_or_default();
            let is_foretold = foretold.contains(wanted) || NOT_FORETOLD.contains(&kind);
            if !is_foretold || !refusal.contains(wanted) {
                wrong.push(format!(
                    "{kind} ({user:?}): check says {foretold:?}, save {refusal:?}"
                ));
            }
            program.go_on_and_be_fine();
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// All that stands in the way is told at once.
#[test]
fn several_obstacles_come_in_one_message() {
    let stage = Stage::new("refused", User::Ourselves);
    let program = stage.start_with(|command| {
        command.arg("userfaultfd").arg("io_uring");
    });
    let refusal = stage.try_save(program.pid(), "image", false).unwrap_err();
    assert!(
        refusal.contains("userfaultfd") && refusal.contains("io_uring"),
        "{refusal}"
    );
    program.go_on_and_be_fine();
}

/// As root, too: whose program it is decides.
#[test]
fn somebody_elses_program_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let theirs = Stage::new("pipes", User::Ordinary);
    let program = theirs.start();
    let ours = Stage::new("pipes", User::Ourselves);
    assert!(ours.check(program.pid()).contains("belongs to user 12345"));
    let refusal = ours.try_save(program.pid(), "image", false).unwrap_err();
    assert!(refusal.contains("belongs to another user"), "{refusal}");
    program.go_on_and_be_fine();

    let program = ours.start();
    assert!(theirs.check(program.pid()).contains("belongs to user 0"));
    theirs.try_save(program.pid(), "image", false).unwrap_err();
    program.go_on_and_be_fine();
}
