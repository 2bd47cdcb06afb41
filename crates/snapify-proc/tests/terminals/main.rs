//! Terminals, end to end: a C program has pseudo-terminals; it is saved, goes on unharmed; is killed; is restored from
//! what was saved; and finds them as they were. Twice over. As root and as an ordinary user.

#[allow(dead_code)]
#[path = "../kinds/stage.rs"]
mod stage;

use stage::{Stage, User};

/// Runs a program of `programs/` through all of it.
fn survives(program: &str) {
    for user in User::all() {
        let stage = Stage::of("terminals", program, user);
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
fn sides() {
    survives("sides");
}

#[test]
fn sessions() {
    survives("sessions");
}

/// A terminal that somebody outside of the tree has open too cannot be saved, and he is named.
#[test]
fn a_terminal_that_others_have_open_is_refused() {
    use rustix::fs::{Mode, OFlags};
    let stage = Stage::of("terminals", "held", User::Ourselves);
    let mut original = stage.start();
    let name = original.line();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let side = rustix::fs::open(name.as_str(), flags, Mode::empty()).unwrap();
    let refusal = stage.try_save(original.pid(), "image", false).unwrap_err();
    assert!(refusal.contains(&format!("terminal {name}")), "{refusal}");
    assert!(
        refusal.contains(&format!("process {} ", std::process::id())),
        "{refusal}"
    );
    assert!(rustix::termios::isatty(&side));
    drop(side);
    stage.save(original.pid(), "alone", false);
    original.go_on_and_be_fine();
}
