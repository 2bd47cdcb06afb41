//! The time of processors.

use std::time::Duration;

/// The time that this thread has had a processor. Threads share the processors, so that the time on the wall says little of what
/// one of them takes.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}
