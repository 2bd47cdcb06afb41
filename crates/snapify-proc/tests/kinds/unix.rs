//! UNIX sockets.

use crate::stage::{Running, Stage, User};
use crate::survives;
use std::fs;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::Stdio;

#[test]
fn pairs() {
    survives("unix_pairs");
}

#[test]
fn names() {
    survives("unix_names");
}

#[test]
fn descriptors_and_credentials_on_their_way() {
    survives("unix_rights");
}

#[test]
fn what_is_sent_before_it_is_accepted() {
    survives("unix_waiting");
}

#[test]
fn between_processes() {
    survives("unix_tree");
}

fn start(stage: &Stage, address: &str, how: &str) -> Running {
    let address = stage.path(address);
    stage.start_with(|command| {
        command.arg(&address).arg(how);
    })
}

#[test]
fn a_connection_to_another_program_is_refused_by_its_name() {
    let stage = Stage::new("unix_outside", User::Ourselves);
    let server = UnixListener::bind(stage.path("server")).unwrap();
    let program = start(&stage, "server", "connect");
    let us = format!("belongs to process {}", std::process::id());
    let refused = || {
        let refusal = stage.try_save(program.pid(), "image", false).unwrap_err();
        assert!(
            refusal.contains("the other end of this UNIX socket"),
            "{refusal}"
        );
        assert!(refusal.contains(&us), "{refusal}");
        assert!(stage.check(program.pid()).contains(&us));
    };
    refused();
    let _accepted = server.accept().unwrap();
    refused();
    program.go_on_and_be_fine();
}

/// Both ends are the program's, but the other one talks to it through one of them.
#[test]
fn a_socket_that_another_program_has_too_is_refused() {
    let stage = Stage::new("unix_pairs", User::Ourselves);
    // Python leaves the ends open for the program, under other numbers than its own.
    let script = "import os, socket, subprocess, sys\n\
        a, b = socket.socketpair()\n\
        os.dup2(a.fileno(), 70); os.dup2(b.fileno(), 71)\n\
        child = subprocess.Popen(['./unix_pairs'], pass_fds=(70, 71))\n\
        os.close(70); os.close(71)\n\
        sys.exit(child.wait())";
    fs::write(stage.path("parent.py"), script).unwrap();
    let program = stage.start_through_shell("exec python3 parent.py", Stdio::inherit());
    let pid = stage.pid_of_program(program.pid());
    let refusal = stage.try_save(pid, "image", false).unwrap_err();
    assert!(refusal.contains("has this UNIX socket too"), "{refusal}");
    assert!(
        refusal.contains("descriptor 70") && refusal.contains("descriptor 71"),
        "{refusal}"
    );
    program.go_on_and_be_fine();
}

/// As syslog.
#[test]
fn a_service_for_datagrams_is_found_again() {
    for user in User::all() {
        let stage = Stage::new("unix_outside", user);
        let serve = || {
            let _ = fs::remove_file(stage.path("log"));
            let server = UnixDatagram::bind(stage.path("log")).unwrap();
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            fs::set_permissions(stage.path("log"), open).unwrap();
            server
        };
        let hear = |server: &UnixDatagram| {
            let mut buffer = [0; 20];
            let length = server.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        let before = serve();
        let program = start(&stage, "log", "log");
        assert_eq!(hear(&before), "before");
        stage.save(program.pid(), "image", true);
        program.expect_killed();
        let after = serve();
        stage.restore("image").go_on_and_be_fine();
        assert_eq!(hear(&after), "after");
    }
}

#[test]
fn an_address_that_another_has_taken_is_named() {
    let stage = Stage::new("unix_outside", User::Ourselves);
    let program = start(&stage, "taken", "bind");
    stage.save(program.pid(), "image", true);
    program.expect_killed();
    let refusal = || stage.try_restore("image").err().unwrap_or_default();
    fs::remove_file(stage.path("taken")).unwrap();
    let other = UnixListener::bind(stage.path("taken")).unwrap();
    let text = refusal();
    let us = format!("process {}", std::process::id());
    assert!(
        text.contains(&us) && text.contains("has this address"),
        "{text}"
    );
    drop(other);
    // A socket that nobody has any more is replaced, another file is not.
    stage.restore("image").go_on_and_be_fine();
    fs::remove_file(stage.path("taken")).unwrap();
    fs::write(stage.path("taken"), "precious").unwrap();
    let text = refusal();
    assert!(text.contains("this file is no socket any more"), "{text}");
    fs::remove_file(stage.path("taken")).unwrap();
    stage.restore("image").go_on_and_be_fine();
}

#[test]
fn netlink() {
    survives("netlink");
}
