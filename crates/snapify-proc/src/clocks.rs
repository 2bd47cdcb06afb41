//! The clocks that count from the start of the machine, CLOCK_MONOTONIC and CLOCK_BOOTTIME.
//!
//! Programs compare what these clocks show now with what they showed before, and wait for absolute times of them. So that
//! neither the time between snapshot and restart nor another machine's age disturbs them, restored processes get a time
//! namespace in which both clocks go on from where they were (time_namespaces(7)). The kernel fixes its offsets when the
//! first process enters it; what the restart takes from then on is time that passes for the program.

use crate::error::ProcError;
use crate::procfs::text;
use crate::remote::Tracee;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io;

/// What the clocks showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClocksImage {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub monotonic_ns: i64,
    /// CLOCK_BOOTTIME in nanoseconds.
    pub boottime_ns: i64,
}

const NANOSECONDS: i64 = 1_000_000_000;

/// The kernel refuses clocks beyond half of what 64 bits of nanoseconds hold.
const LATEST: i64 = i64::MAX / 2;

const OFFSETS: &str = "/proc/self/timens_offsets";

/// Reads the clocks as a frozen process sees them: it may be in a time namespace of its own.
///
/// # Errors
/// Those of the remote calls.
pub fn capture(tracee: &mut Tracee<'_>) -> Result<ClocksImage, ProcError> {
    let mut read = |clock: i32| -> Result<i64, ProcError> {
        let at = tracee.scratch().addr;
        let args = [clock as u64, at.0, 0, 0, 0, 0];
        tracee.syscall("clock_gettime", libc::SYS_clock_gettime, args)?;
        let [seconds, nanoseconds] = tracee.get::<[i64; 2]>(at)?;
        Ok(seconds * NANOSECONDS + nanoseconds)
    };
    Ok(ClocksImage {
        monotonic_ns: read(libc::CLOCK_MONOTONIC)?,
        boottime_ns: read(libc::CLOCK_BOOTTIME)?,
    })
}

impl ClocksImage {
    /// Sees to it that children forked by this process from now on find the clocks where they were. This process stays in
    /// the time namespace that it is in.
    ///
    /// # Errors
    /// [`ProcError::BadImage`] for clocks that cannot be; otherwise the kernel's refusal: the clocks are then those of the
    /// machine.
    pub(crate) fn set_for_children(&self) -> Result<(), ProcError> {
        for clock in [self.monotonic_ns, self.boottime_ns] {
            if !(0..=LATEST).contains(&clock) {
                return Err(ProcError::BadImage(format!(
                    "its clock shows {clock} nanoseconds"
                )));
            }
        }
        // Offsets count from the first time namespace, whichever this process is in.
        let text = std::fs::read(OFFSETS).map_err(ProcError::file("read", OFFSETS))?;
        let own = parse(&text).map_err(|e| ProcError::file("read", OFFSETS)(io::Error::from(e)))?;
        snapify_sys::clone::new_time_namespace()
            .map_err(ProcError::system("make a time namespace"))?;
        let offset =
            |own: i64, saved: i64, clock| own.saturating_add(saved).saturating_sub(now(clock));
        let wanted = [
            (
                "monotonic",
                offset(own[0], self.monotonic_ns, ClockId::Monotonic),
            ),
            (
                "boottime",
                offset(own[1], self.boottime_ns, ClockId::Boottime),
            ),
        ];
        let line = |(name, offset): (&str, i64)| {
            let seconds = offset.div_euclid(NANOSECONDS);
            format!("{name} {seconds} {}\n", offset.rem_euclid(NANOSECONDS))
        };
        std::fs::write(OFFSETS, wanted.map(line).concat())
            .map_err(ProcError::file("write", OFFSETS))
    }
}

fn now(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * NANOSECONDS + time.tv_nsec
}

/// The offsets of CLOCK_MONOTONIC and CLOCK_BOOTTIME in nanoseconds: lines such as `monotonic  86400  0`.
fn parse(text: &[u8]) -> Result<[i64; 2], text::Malformed> {
    let find = |name: &[u8]| {
        let line = text::lines(text).find(|line| line.starts_with(name))?;
        let mut numbers = text::words(line).skip(1).map(text::signed);
        let (seconds, nanoseconds) = (numbers.next()??, numbers.next()??);
        seconds.checked_mul(NANOSECONDS)?.checked_add(nanoseconds)
    };
    match (find(b"monotonic"), find(b"boottime")) {
        (Some(monotonic), Some(boottime)) => Ok([monotonic, boottime]),
        _ => Err(text::Malformed::new("clock offsets", text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read() {
        let text = b"monotonic           5         7\nboottime           -1 500000000\n";
        assert_eq!(parse(text).unwrap(), [5_000_000_007, -500_000_000]);
        for bad in [
            &b""[..],
            b"monotonic 1\nboottime 1 1\n",
            b"monotonic 9223372036854775807 0\nboottime 0 0\n",
        ] {
            assert!(parse(bad).is_err());
        }
    }

    #[test]
    fn clocks_that_cannot_be_are_refused_before_anything_is_made() {
        for bad in [-1, i64::MAX] {
            let image = ClocksImage {
                monotonic_ns: 0,
                boottime_ns: bad,
            };
            assert!(matches!(
                image.set_for_children(),
                Err(ProcError::BadImage(_))
            ));
        }
    }
}
