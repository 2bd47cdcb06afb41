//! System V objects and message queues, which outlive the program that made them.

use crate::stage::{Stage, User};
use std::ffi::CString;
use std::sync::atomic::{AtomicI32, Ordering};

/// Keys that no other program here uses; what has them is removed in the end.
struct Keys(i32);

impl Keys {
    fn new() -> Self {
        static NEXT: AtomicI32 = AtomicI32::new(0);
        let own = std::process::id().cast_signed() & 0xffff;
        Self(0x5a00_0000 | own << 8 | NEXT.fetch_add(16, Ordering::Relaxed))
    }

    fn text(&self) -> String {
        self.0.to_string()
    }

    /// Removes what a program that was killed has left behind.
    fn clear(&self) {
        for key in self.0..self.0 + 16 {
            // SAFETY: ids of objects that only these tests know; nobody has them attached.
            unsafe {
                libc::shmctl(
                    libc::shmget(key, 0, 0),
                    libc::IPC_RMID,
                    std::ptr::null_mut(),
                );
                libc::semctl(libc::semget(key, 0, 0), 0, libc::IPC_RMID);
                libc::msgctl(libc::msgget(key, 0), libc::IPC_RMID, std::ptr::null_mut());
            }
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A program and what it is told, through all of it. `clear` removes what one that was killed has left behind.
fn survives(program: &str, arg: &str, clear: &dyn Fn()) {
    for user in User::all() {
        let stage = Stage::new(program, user);
        let start = || {
            clear();
            stage.start_with(|command| {
                command.arg(arg);
            })
        };
        // After it is killed the objects are still here, under their keys and names: the restart has its own.
        stage.survives(start);
    }
}

#[test]
fn message_queues_keep_names_and_messages() {
    let name = format!("snapify-queue-{}", std::process::id());
    let clear = || {
        let _ = snapify_sys::mqueue::unlink(&CString::new(name.as_str()).unwrap());
    };
    survives("mqueue", &format!("/{name}"), &clear);
    clear();
}

#[test]
fn system_v_objects_keep_ids_keys_and_contents() {
    let keys = Keys::new();
    survives("sysv", &keys.text(), &|| keys.clear());
}

/// Removes a segment in the end.
struct Segment(i32);

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: nobody has it attached.
        unsafe { libc::shmctl(self.0, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

/// It may be the program's, as it is the same user's and younger; but then the program could read it.
#[test]
fn what_somebody_else_has_left_behind_is_no_hindrance() {
    for user in User::all() {
        let stage = Stage::new("pipes", user);
        let program = stage.start();
        let made = stage
            .command("ipcmk")
            .args(["-M", "4096", "-p", "0"])
            .output()
            .unwrap();
        let text = String::from_utf8(made.stdout).unwrap();
        let id = text.split_whitespace().last().unwrap().parse().unwrap();
        let _segment = Segment(id);
        stage.save(program.pid(), "image", true);
        program.expect_killed();
        stage.restore("image").go_on_and_be_fine();
    }
}
