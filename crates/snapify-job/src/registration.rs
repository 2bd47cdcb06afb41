//! The registration of an OpenMP runtime.
//!
//! LLVM's libomp (`__kmp_register_library_startup`) notes itself in a POSIX shared-memory file that has the process's id in
//! its name, and aborts at exit if that is gone: which it is when one incarnation of a program has come to its end and
//! another is started from the same snapshot. The process neither has the file open nor mapped, so that no engine can
//! know of it; hence it is saved beside the process, and put back where it is missing.

use rustix::fs::{Mode, OFlags, open};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};

/// What the runtime registers is shorter than this.
const MOST_BYTES: u64 = 4096;

/// A registration, as it was at the checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Registration {
    name: String,
    content: Vec<u8>,
}

/// The registration of process `outer` (an id of ours), which has id `inner` for itself; if it has one.
pub(crate) fn save(outer: i32, inner: i32) -> Option<Registration> {
    let name = name(inner);
    let file = File::open(format!("/proc/{outer}/root/dev/shm/{name}")).ok()?;
    let mut content = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut content).ok()?;
    Some(Registration { name, content })
}

/// Puts a registration of process `inner` back if it is missing. One that is there belongs to an incarnation that runs or
/// was killed, and does as well.
pub(crate) fn put_back(registration: &Registration, inner: i32) {
    if registration.name != name(inner) {
        return;
    }
    let path = format!("/dev/shm/{}", registration.name);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    if let Ok(fd) = open(&path, flags, Mode::from_raw_mode(0o644)) {
        let written = File::from(fd).write_all(&registration.content);
        tracing::debug!("{path} was put back: {written:?}");
    }
}

/// The name that libomp 14 to 19 gives it.
fn name(pid: i32) -> String {
    format!(
        "__KMP_REGISTERED_LIB_{pid}_{}",
        rustix::process::getuid().as_raw()
    )
}
