//! TCP and UDP sockets with an outside: peers that are not saved, and addresses that others have
//! taken by the time of the restart.

use crate::stage::{Running, Stage, User};
use std::io::Write;
use std::net::{TcpListener, TcpStream};

/// The program `peers`, connected to us.
fn with_outside_peer(user: User) -> (Stage, Running, TcpStream) {
    let stage = Stage::new("peers", user);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepting = std::thread::spawn(move || {
        let (mut ours, _) = listener.accept().unwrap();
        ours.write_all(b"from outside").unwrap();
        ours
    });
    let program = stage.start_with(|command| {
        command.arg(port.to_string());
    });
    let ours = accepting.join().unwrap();
    (stage, program, ours)
}

#[test]
fn connections_to_others_are_refused_by_address_and_name() {
    for user in User::all() {
        let (stage, program, ours) = with_outside_peer(user);
        let refusal = stage
            .try_save(program.pid(), "image", false)
            .err()
            .unwrap_or_default();
        let from = ours.peer_addr().unwrap().to_string();
        let to = ours.local_addr().unwrap().to_string();
        for text in [&refusal, &stage.check(program.pid())] {
            assert!(
                text.contains(&from) && text.contains(&to) && text.contains("--tcp=close"),
                "{text}"
            );
        }
        if user == User::Ourselves {
            assert!(
                refusal.contains(&format!("process {}", std::process::id())),
                "{refusal}"
            );
        }
        let mut program = program;
        program.go_on();
        program.expect("connected");
        program.expect("fine");
        assert!(program.end().success());
    }
}

/// They read what had come, and then the end; and cannot write.
#[test]
fn connections_to_others_come_back_as_closed_if_asked_for() {
    for user in User::all() {
        let (stage, program, _ours) = with_outside_peer(user);
        let mut engine = stage.engine();
        engine
            .env("ENGINE_CLOSE_TCP", "1")
            .args(["save", &program.pid().to_string()])
            .arg(stage.path("image"))
            .arg("--stop");
        let output = engine.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        program.expect_killed();
        let mut program = stage.restore("image");
        program.go_on();
        program.expect("closed");
        program.expect("fine");
        assert!(program.end().success());
    }
}

/// A listener and a connection that was made with it come back at once, although the kernel
/// remembers the connection for a minute.
#[test]
fn addresses_can_be_had_again_at_once() {
    for user in User::all() {
        let stage = Stage::new("listen", user);
        let mut program = stage.start();
        for round in ["first", "second", "third"] {
            stage.save(program.pid(), round, false);
            drop(program);
            program = stage.restore(round);
        }
        program.go_on_and_be_fine();
    }
}

#[test]
fn an_address_that_is_taken_is_told() {
    for user in User::all() {
        let stage = Stage::new("address", user);
        let mut program = stage.start();
        let port: u16 = program.line().parse().unwrap();
        stage.save(program.pid(), "image", true);
        program.expect_killed();
        let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let refusal = stage.try_restore("image").err().unwrap();
        assert!(
            refusal.contains(&taken.local_addr().unwrap().to_string()),
            "{refusal}"
        );
        if user == User::Ourselves {
            assert!(
                refusal.contains(&format!("process {}", std::process::id())),
                "{refusal}"
            );
        }
        drop(taken);
        stage.restore("image").go_on_and_be_fine();
    }
}
