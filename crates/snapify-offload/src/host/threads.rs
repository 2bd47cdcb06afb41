//! Threads of the host library inside somebody else's program.
#![allow(unsafe_code)]

/// Starts a thread that takes no signals: those belong to the program. Its stack has 256 KiB.
///
/// # Errors
/// If threads or memory are short.
pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // SAFETY: sets this thread's mask, which the new one inherits, and puts it back.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let started = std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(256 << 10)
            .spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        started.map(|_| ())
    }
}
