//! Kinds of kernel objects, end to end: a C program sets something up, is saved, goes on unharmed;
//! is killed; is restored from what was saved; and finds everything as it was. Twice over, because
//! what is restored can be saved again. As root and as an ordinary user.

mod busy;
mod clocks;
mod ipc;
mod memory;
mod refused;
mod restart;
mod scratch;
mod sockets;
// Other tests of the engine use it too.
#[allow(dead_code)]
mod stage;
mod streams;
mod unix;

use stage::{Stage, User};

/// Runs a program of `programs/` through all of it.
fn survives(program: &str) {
    for user in User::all() {
        let stage = Stage::new(program, user);
        stage.survives(|| stage.start());
    }
}

#[test]
fn files() {
    survives("files");
}

#[test]
fn pipes() {
    survives("pipes");
}

#[test]
fn transfers() {
    survives("transfers");
}

#[test]
fn messages() {
    survives("messages");
}

#[test]
fn policy() {
    for user in User::all() {
        let stage = Stage::new("policy", user);
        if stage.start_if_possible(&[]).is_some() {
            stage.survives(|| stage.start());
        }
    }
}

#[test]
fn events() {
    survives("events");
}

#[test]
fn signals() {
    survives("signals");
}

#[test]
fn all_signals_ignored() {
    survives("all_ignored");
}

#[test]
fn all_signals_pending() {
    survives("all_pending");
}

#[test]
fn timers() {
    survives("timers");
}

#[test]
fn context() {
    survives("context");
}

#[test]
fn attributes() {
    survives("attributes");
}

#[test]
fn masks() {
    survives("masks");
}

#[test]
fn futexes() {
    survives("futexes");
}

#[test]
fn tcp() {
    survives("tcp");
}

#[test]
fn tcp_between_processes() {
    survives("tcp_tree");
}

#[test]
fn listen() {
    survives("listen");
}

#[test]
fn udp() {
    survives("udp");
}

#[test]
fn fifos() {
    survives("fifos");
}

#[test]
fn watches() {
    survives("watches");
}

#[test]
fn pidfds() {
    survives("pidfds");
}

#[test]
fn input() {
    survives("input");
}

#[test]
fn modes() {
    survives("modes");
}

#[test]
fn tight() {
    survives("tight");
}

#[test]
fn gone() {
    survives("gone");
}

#[test]
fn leases() {
    survives("leases");
}

#[test]
fn oddfiles() {
    survives("oddfiles");
}

#[test]
fn locks() {
    survives("locks");
}
