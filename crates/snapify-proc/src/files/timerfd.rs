//! Timers that are read (timerfd_create(2)). They go on with the time that was left.

use super::survey::{Found, Recognized, Seen, View};
use super::{Object, has_flag};
use crate::error::ProcError;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};

/// A timer that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerFd {
    /// Clock id.
    pub clock: i32,
    /// Expiries that have not been read.
    pub ticks: u64,
    /// Flags it was set with (`TFD_TIMER_*`).
    pub set_flags: u32,
    /// Seconds and nanoseconds until it expires; zero if it is not armed.
    pub left: (u64, u64),
    /// Seconds and nanoseconds between expiries; zero for a single one.
    pub interval: (u64, u64),
}

const NANOSECONDS: i64 = 1_000_000_000;

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    let is_timer = seen.link.as_bytes() == b"anon_inode:[timerfd]";
    let mut timer = seen.info.timerfd.filter(|_| is_timer)?;
    // The kernel counts the periods since the first expiry that was not read, and goes on with the next one, when somebody
    // reads the timer or asks how much is left. Until then it shows one expiry and nothing left.
    if timer.ticks > 0 && timer.left == (0, 0) && timer.interval != (0, 0) {
        let owner = view.owner(seen);
        let asked = owner
            .duplicate(seen.fd)
            .is_ok_and(|fd| rustix::time::timerfd_gettime(&fd).is_ok());
        let now = owner
            .proc
            .fdinfo(seen.fd)
            .ok()
            .and_then(|info| info.timerfd);
        timer = now.filter(|_| asked).unwrap_or(timer);
    }
    let waits_for_reader = timer.ticks > 0 && timer.left == (0, 0);
    Some(Ok(Found::Whole(Object::TimerFd(TimerFd {
        clock: timer.clock,
        ticks: timer.ticks,
        set_flags: timer.flags,
        left: if waits_for_reader {
            timer.interval
        } else {
            timer.left
        },
        interval: timer.interval,
    }))))
}

impl TimerFd {
    /// Makes a timer and sets it.
    ///
    /// # Errors
    /// Those of timerfd_create(2) and timerfd_settime(2); [`ProcError::BadImage`] for what cannot
    /// be.
    pub(crate) fn make(&self, flags: u32) -> Result<OwnedFd, ProcError> {
        let bad = || ProcError::BadImage(format!("it has a timer that cannot be: {self:?}"));
        let clock = match self.clock {
            libc::CLOCK_REALTIME => TimerfdClockId::Realtime,
            libc::CLOCK_MONOTONIC => TimerfdClockId::Monotonic,
            libc::CLOCK_BOOTTIME => TimerfdClockId::Boottime,
            libc::CLOCK_REALTIME_ALARM => TimerfdClockId::RealtimeAlarm,
            libc::CLOCK_BOOTTIME_ALARM => TimerfdClockId::BoottimeAlarm,
            _ => return Err(bad()),
        };
        let mut how = TimerfdFlags::CLOEXEC;
        how.set(TimerfdFlags::NONBLOCK, has_flag(flags, libc::O_NONBLOCK));
        let fd = rustix::time::timerfd_create(clock, how)
            .map_err(ProcError::system("making a timerfd"))?;
        let set_flags = TimerfdTimerFlags::from_bits_retain(self.set_flags);
        let mut value = timespec(self.left).ok_or_else(bad)?;
        // A timer that was set to an absolute time keeps that property, which a change of the clock
        // shows.
        if set_flags.contains(TimerfdTimerFlags::ABSTIME) && self.left != (0, 0) {
            value = later(self.now(), value).ok_or_else(bad)?;
        }
        let interval = timespec(self.interval).ok_or_else(bad)?;
        let setting = Itimerspec {
            it_interval: interval,
            it_value: value,
        };
        rustix::time::timerfd_settime(&fd, set_flags, &setting)
            .map_err(ProcError::system("setting a timerfd"))?;
        if self.ticks > 0 {
            snapify_sys::fd::set_timer_ticks(fd.as_fd(), self.ticks)
                .map_err(ProcError::system("setting the expiries of a timerfd"))?;
        }
        Ok(fd)
    }

    /// What its clock shows.
    fn now(&self) -> Timespec {
        use rustix::time::{ClockId, clock_gettime};
        clock_gettime(match self.clock {
            libc::CLOCK_MONOTONIC => ClockId::Monotonic,
            libc::CLOCK_BOOTTIME | libc::CLOCK_BOOTTIME_ALARM => ClockId::Boottime,
            _ => ClockId::Realtime,
        })
    }
}

fn timespec((seconds, nanoseconds): (u64, u64)) -> Option<Timespec> {
    let time = Timespec {
        tv_sec: seconds.try_into().ok()?,
        tv_nsec: nanoseconds.try_into().ok()?,
    };
    (time.tv_nsec < NANOSECONDS).then_some(time)
}

fn later(time: Timespec, by: Timespec) -> Option<Timespec> {
    let nanoseconds = time.tv_nsec + by.tv_nsec;
    let seconds = time
        .tv_sec
        .checked_add(by.tv_sec)?
        .checked_add(nanoseconds / NANOSECONDS)?;
    Some(Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds % NANOSECONDS,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_expiries_come_back() {
        let timer = TimerFd {
            clock: libc::CLOCK_MONOTONIC,
            ticks: 3,
            set_flags: 1,
            left: (50, 0),
            interval: (7, 5),
        };
        let fd = timer.make(libc::O_NONBLOCK.cast_unsigned()).unwrap();
        let mut buffer = [0; 8];
        rustix::io::read(&fd, &mut buffer).unwrap();
        assert_eq!(u64::from_ne_bytes(buffer), 3);
        assert_eq!(
            rustix::io::read(&fd, &mut buffer),
            Err(rustix::io::Errno::AGAIN)
        );
        let now = rustix::time::timerfd_gettime(&fd).unwrap();
        assert!(
            (49..=50).contains(&now.it_value.tv_sec)
                && now.it_interval == timespec((7, 5)).unwrap()
        );
    }

    #[test]
    fn times_and_clocks_that_cannot_be_are_refused() {
        let timer = TimerFd {
            clock: libc::CLOCK_MONOTONIC,
            ticks: 0,
            set_flags: 0,
            left: (1, 0),
            interval: (0, 0),
        };
        assert!(TimerFd { clock: 99, ..timer }.make(0).is_err());
        assert!(
            TimerFd {
                left: (u64::MAX, 0),
                ..timer
            }
            .make(0)
            .is_err()
        );
        assert!(
            TimerFd {
                left: (0, 2_000_000_000),
                ..timer
            }
            .make(0)
            .is_err()
        );
        assert!(
            TimerFd {
                left: (i64::MAX as u64, 0),
                set_flags: 1,
                ..timer
            }
            .make(0)
            .is_err()
        );
    }
}
