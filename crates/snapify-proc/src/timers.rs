//! Interval timers (setitimer(2)) and POSIX timers (timer_create(2)).
//!
//! Both are saved with the time that was left and continue with it: the time between snapshot and
//! restart does not count. From outside it cannot be told whether a POSIX timer was set to an
//! absolute time.

use crate::capture::CaptureContext;
use crate::error::{Obstacle, ProcError};
use crate::ids::Tid;
use crate::procfs::timers::Notify as SeenNotify;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use serde::{Deserialize, Serialize};

/// All timers of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimersImage {
    /// Interval timers that are armed.
    pub interval: Vec<IntervalTimer>,
    /// POSIX timers, by id.
    pub posix: Vec<PosixTimer>,
}

/// An armed interval timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntervalTimer {
    /// `ITIMER_REAL` (0), `ITIMER_VIRTUAL` (1) or `ITIMER_PROF` (2).
    pub which: u32,
    /// Microseconds until it expires.
    pub value_us: u64,
    /// Microseconds between expiries, 0 for a single one.
    pub interval_us: u64,
}

/// A POSIX timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PosixTimer {
    /// The kernel's id, which programs keep.
    pub id: i32,
    /// Clock id; a negative one holds a process or thread id.
    pub clock: i32,
    /// How it tells of its expiry.
    pub notify: Notify,
    /// Signal number.
    pub signal: i32,
    /// `sigev_value`
    pub value: u64,
    /// Nanoseconds until it expires, 0 if it is not armed.
    pub left_ns: u64,
    /// Nanoseconds between expiries, 0 for a single one.
    pub interval_ns: u64,
}

/// How a POSIX timer tells of its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Notify {
    /// Not at all.
    None,
    /// By a signal for the process.
    Signal,
    /// By a signal for the thread with this id.
    Thread(i32),
}

const MICROSECONDS: u64 = 1_000_000;
const NANOSECONDS: u64 = 1_000_000_000;

/// `PR_TIMER_CREATE_RESTORE_IDS` (Linux 6.15): timer_create takes the id to give from where it
/// returns it.
const RESTORE_IDS: u64 = 77;

/// Creating and deleting timers up to a wanted id, where the kernel cannot be told the id, ends
/// here.
const MOST_IDS: i32 = 1 << 20;

/// Saves all timers of a frozen process.
///
/// # Errors
/// Those of the remote calls and of reading `/proc/PID/timers`. Timers that cannot be saved are
/// noted in `ctx`.
pub fn capture(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
) -> Result<TimersImage, ProcError> {
    let out = tracee.scratch().addr;
    let mut image = TimersImage::default();
    for which in 0..3 {
        tracee.syscall(
            "getitimer",
            libc::SYS_getitimer,
            [u64::from(which), out.0, 0, 0, 0, 0],
        )?;
        let [interval_s, interval_us, value_s, value_us] = tracee.get::<[u64; 4]>(out)?;
        let timer = IntervalTimer {
            which,
            value_us: value_s * MICROSECONDS + value_us,
            interval_us: interval_s * MICROSECONDS + interval_us,
        };
        image.interval.extend(timer.still_running());
    }
    for timer in ctx.proc.timers()? {
        if let Err(obstacle) = is_supported(timer.id, timer.clock, ctx.threads.len()) {
            ctx.refuse(obstacle);
            continue;
        }
        let args = [timer.id as u64, out.0, 0, 0, 0, 0];
        tracee.syscall("timer_gettime", libc::SYS_timer_gettime, args)?;
        let [interval_s, interval_ns, left_s, left_ns] = tracee.get::<[u64; 4]>(out)?;
        image.posix.push(PosixTimer {
            id: timer.id,
            clock: timer.clock,
            notify: match timer.notify {
                SeenNotify::None => Notify::None,
                SeenNotify::Signal | SeenNotify::Thread => Notify::Signal,
                // A timer for a thread that has ended never notifies any more, but it can still be
                // read and deleted.
                SeenNotify::ThreadId(tid) => ctx
                    .inner_tid(Tid(tid))
                    .map_or(Notify::None, |tid| Notify::Thread(tid.0)),
            },
            signal: timer.signal,
            value: timer.value,
            left_ns: left_s * NANOSECONDS + left_ns,
            interval_ns: interval_s * NANOSECONDS + interval_ns,
        });
    }
    Ok(image)
}

/// Whether a POSIX timer can come back.
///
/// # Errors
/// The obstacle if not.
pub(crate) fn is_supported(id: i32, clock: i32, threads: usize) -> Result<(), Obstacle> {
    /// The calling thread's CPU time, as glibc passes it: a thread clock of thread 0.
    const OWN_THREAD_CPU: i32 = -2;
    let of_its_creator = clock == libc::CLOCK_THREAD_CPUTIME_ID || clock == OWN_THREAD_CPU;
    if of_its_creator && threads > 1 {
        let why = "it counts the CPU time of the thread that made it, and nothing tells which thread that was";
        return Err(Obstacle::new(format!("POSIX timer {id}"), why));
    }
    Ok(())
}

impl IntervalTimer {
    /// This timer, if it is armed.
    ///
    /// A periodic ITIMER_REAL whose signal is pending reads as 0 microseconds left: the kernel
    /// starts its next period when the signal is taken. A restored one is started at once.
    fn still_running(self) -> Option<Self> {
        match (self.value_us, self.interval_us) {
            (0, 0) => None,
            (0, interval_us) => Some(Self {
                value_us: interval_us,
                ..self
            }),
            _ => Some(self),
        }
    }
}

/// Makes and starts all timers in a process under construction. All threads must exist, with all
/// signals masked.
///
/// # Errors
/// Those of the remote calls; an id that is taken or cannot be given.
pub fn restore(
    tracee: &mut Tracee<'_>,
    image: &TimersImage,
    _ctx: &mut RestoreContext<'_>,
) -> Result<(), ProcError> {
    let at = tracee.scratch().addr;
    if !image.posix.is_empty() {
        let wanted_ids = [RESTORE_IDS, 1, 0, 0, 0, 0];
        let given_ids = tracee.syscall("prctl", libc::SYS_prctl, wanted_ids).is_ok();
        let mut made = Ok(());
        for timer in &image.posix {
            made = if given_ids {
                create(tracee, timer).map(drop)
            } else {
                create_up_to(tracee, timer)
            };
            if made.is_err() {
                break;
            }
        }
        if given_ids {
            tracee.syscall("prctl", libc::SYS_prctl, [RESTORE_IDS, 0, 0, 0, 0, 0])?;
        }
        made?;
    }
    for timer in &image.posix {
        let split = |ns: u64| [ns / NANOSECONDS, ns % NANOSECONDS];
        let ([a, b], [c, d]) = (split(timer.interval_ns), split(timer.left_ns));
        tracee.put(at, &[a, b, c, d])?;
        tracee.syscall(
            "timer_settime",
            libc::SYS_timer_settime,
            [timer.id as u64, 0, at.0, 0, 0, 0],
        )?;
    }
    for timer in &image.interval {
        let split = |us: u64| [us / MICROSECONDS, us % MICROSECONDS];
        let ([a, b], [c, d]) = (split(timer.interval_us), split(timer.value_us));
        tracee.put(at, &[a, b, c, d])?;
        tracee.syscall(
            "setitimer",
            libc::SYS_setitimer,
            [u64::from(timer.which), at.0, 0, 0, 0, 0],
        )?;
    }
    Ok(())
}

/// Creates a timer, asking for its id where the kernel listens, and returns the id that it got.
fn create(tracee: &mut Tracee<'_>, timer: &PosixTimer) -> Result<i32, ProcError> {
    let (notify, thread) = match timer.notify {
        Notify::None => (libc::SIGEV_NONE, 0),
        Notify::Signal => (libc::SIGEV_SIGNAL, 0),
        Notify::Thread(tid) => (libc::SIGEV_THREAD_ID, tid),
    };
    // struct sigevent: value, signal number, kind, thread id, padding; then the timer id.
    let mut event = [0_u64; 9];
    event[0] = timer.value;
    event[1] = pair(timer.signal, notify);
    event[2] = pair(thread, 0);
    event[8] = pair(timer.id, 0);
    let at = tracee.scratch().addr;
    let id_at = at.offset(64);
    tracee.put(at, &event)?;
    tracee.syscall(
        "timer_create",
        libc::SYS_timer_create,
        [timer.clock as u64, at.0, id_at.0, 0, 0, 0],
    )?;
    tracee.get::<i32>(id_at)
}

/// Two 32-bit members of a structure, the first at the lower address.
fn pair(first: i32, second: i32) -> u64 {
    u64::from(first.cast_unsigned()) | u64::from(second.cast_unsigned()) << 32
}

/// Kernels before 6.15 give ascending ids: makes and deletes timers until the wanted id comes.
fn create_up_to(tracee: &mut Tracee<'_>, timer: &PosixTimer) -> Result<(), ProcError> {
    loop {
        let id = create(tracee, timer)?;
        if id == timer.id {
            return Ok(());
        }
        tracee.syscall(
            "timer_delete",
            libc::SYS_timer_delete,
            [id as u64, 0, 0, 0, 0, 0],
        )?;
        if id > timer.id || timer.id > MOST_IDS {
            return Err(ProcError::BadImage(format!(
                "this kernel cannot give a timer the id {}",
                timer.id
            )));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_periodic_timer_goes_on() {
        let timer = |value_us, interval_us| {
            IntervalTimer {
                which: 0,
                value_us,
                interval_us,
            }
            .still_running()
        };
        assert_eq!(timer(0, 0), None);
        assert_eq!(timer(0, 7).unwrap().value_us, 7);
        assert_eq!(timer(3, 7).unwrap().value_us, 3);
    }

    #[test]
    fn cpu_clocks_of_unnamed_threads_need_a_single_thread() {
        assert!(is_supported(0, libc::CLOCK_THREAD_CPUTIME_ID, 1).is_ok());
        assert!(is_supported(0, -2, 2).is_err());
        assert!(is_supported(0, libc::CLOCK_MONOTONIC, 2).is_ok());
    }
}
