//! Ending as another process did.

use rustix::process::{Signal, getpid, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

/// Exits with the same code; if `status` is a death by a signal, dies by the same one.
pub fn like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal().and_then(Signal::from_named_raw) {
        // Without a core dump of ours: the program has left its own.
        let none = rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        let _ = kill_process(getpid(), signal);
    }
    // A signal that does not end us, as the shell would tell it.
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))
}
