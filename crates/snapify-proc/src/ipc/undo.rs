//! What a process will take back from semaphores when it ends (`SEM_UNDO`, semop(2)).
//!
//! The kernel shows these adjustments nowhere. But it keeps them within bounds, and a semop(2) of several operations either
//! does all of them or none. So a probe consists of operations that change an adjustment by a known amount and the value not
//! at all, and of a last one that cannot be done: it fails with `ERANGE` if the adjustment would leave its
//! bounds, otherwise with `EAGAIN`, and has changed nothing.

use super::{MOST_VALUE, SetImage};
use crate::error::ProcError;
use crate::remote::Tracee;
use serde::{Deserialize, Serialize};

/// An adjustment of a semaphore at the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjustment {
    /// The process, as it sees itself.
    pub pid: i32,
    /// Number of the semaphore in its set.
    pub semaphore: u16,
    /// What is added to its value.
    pub by: i32,
}

impl Adjustment {
    /// Whether it is within bounds.
    pub(super) fn is_sound(&self) -> bool {
        (LOWEST..=HIGHEST).contains(&self.by)
    }
}

/// Highest adjustment (`SEMAEM`).
const HIGHEST: i32 = 32767;
/// Lowest adjustment.
const LOWEST: i32 = -HIGHEST - 1;
/// Semaphores that are looked at by one call: it takes 500 operations, if the system's settings (`kernel.sem`) are the
/// usual ones, and four are enough for each.
const BATCH: usize = 100;

/// `struct sembuf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operation {
    semaphore: u16,
    by: i16,
    flags: i16,
}

impl Operation {
    fn bytes(self) -> [u8; 6] {
        let [a, b] = self.semaphore.to_ne_bytes();
        let [c, d] = self.by.to_ne_bytes();
        let [e, f] = self.flags.to_ne_bytes();
        [a, b, c, d, e, f]
    }
}

/// Operations that add `by` to the adjustment of a semaphore and leave its value as it is. No value between is
/// out of bounds, where the kernel would object for that.
fn shift(semaphore: u16, value: u16, by: i32) -> Vec<Operation> {
    let undo = |by: i32| Operation {
        semaphore,
        by: by as i16,
        flags: libc::SEM_UNDO as i16,
    };
    let plain = |by: i32| Operation {
        flags: 0,
        ..undo(by)
    };
    let value = i32::from(value);
    let above = HIGHEST - value;
    let mut operations = Vec::new();
    let mut left = by.abs();
    while left > 0 {
        let step = left.min(above.max(value));
        let up_first = step <= above;
        // An operation of -1 with SEM_UNDO makes the adjustment 1 higher.
        let pair = match (by > 0, up_first) {
            (true, true) => [plain(step), undo(-step)],
            (true, false) => [undo(-step), plain(step)],
            (false, true) => [undo(step), plain(-step)],
            (false, false) => [plain(-step), undo(step)],
        };
        operations.extend(pair);
        left -= step;
    }
    operations
}

fn call(tracee: &mut Tracee<'_>, set: i32, operations: &[Operation]) -> Result<(), ProcError> {
    let at = tracee.scratch().addr;
    let bytes: Vec<u8> = operations.iter().flat_map(|o| o.bytes()).collect();
    tracee.write(at, &bytes)?;
    let args = [set as u64, at.0, operations.len() as u64, 0, 0, 0];
    tracee.syscall("semop", libc::SYS_semop, args).map(drop)
}

/// Whether all these adjustments would stay within bounds.
fn fits(
    tracee: &mut Tracee<'_>,
    set: i32,
    mut operations: Vec<Operation>,
) -> Result<bool, ProcError> {
    let Some(&Operation { semaphore, .. }) = operations.first() else {
        return Ok(true);
    };
    // No value is that high.
    operations.push(Operation {
        semaphore,
        by: i16::MIN,
        flags: libc::IPC_NOWAIT as i16,
    });
    match call(tracee, set, &operations) {
        Err(e) if e.errno() == Some(libc::EAGAIN) => Ok(true),
        Err(e) if e.errno() == Some(libc::ERANGE) => Ok(false),
        Err(e) => Err(e),
        Ok(()) => Err(ProcError::BadImage(format!(
            "semaphore {semaphore} of set {set} has an impossible value"
        ))),
    }
}

/// The adjustments that the tracee, whose own id is `pid`, has for a set with these values.
///
/// # Errors
/// Those of semop(2); `EACCES` if it may not change the set.
pub(super) fn find(
    tracee: &mut Tracee<'_>,
    pid: i32,
    set: i32,
    values: &[u16],
) -> Result<Vec<Adjustment>, ProcError> {
    let mut found = Vec::new();
    let numbered: Vec<(u16, u16)> = (0..).zip(values.iter().copied()).collect();
    for batch in numbered.chunks(BATCH) {
        let shifted = |by: i32| -> Vec<Operation> {
            batch
                .iter()
                .flat_map(|&(n, value)| shift(n, value, by))
                .collect()
        };
        // None above zero, and none below.
        if fits(tracee, set, shifted(HIGHEST))? && fits(tracee, set, shifted(LOWEST))? {
            continue;
        }
        for &(semaphore, value) in batch {
            // It is above `below`, and at most `most`.
            let (mut below, mut most) = (LOWEST - 1, HIGHEST);
            while most - below > 1 {
                let middle = below + (most - below) / 2;
                match fits(tracee, set, shift(semaphore, value, HIGHEST - middle))? {
                    true => most = middle,
                    false => below = middle,
                }
            }
            if most != 0 {
                let by = most;
                found.push(Adjustment { pid, semaphore, by });
            }
        }
    }
    Ok(found)
}

/// Gives a process that is being built its adjustments.
///
/// # Errors
/// Those of semop(2).
pub(super) fn restore(tracee: &mut Tracee<'_>, pid: i32, set: &SetImage) -> Result<(), ProcError> {
    for adjustment in set.adjustments.iter().filter(|a| a.pid == pid) {
        let value = set.values.get(usize::from(adjustment.semaphore));
        let value = value.copied().unwrap_or(0).min(MOST_VALUE);
        let operations = shift(adjustment.semaphore, value, adjustment.by);
        call(tracee, set.label.id, &operations)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_what_they_are_and_within_bounds() {
        for value in [0_u16, 1, 16383, 16384, 32766, 32767] {
            for by in [1, -1, 7, HIGHEST, LOWEST, 2 * HIGHEST + 1] {
                let operations = shift(3, value, by);
                assert!(operations.len() <= 8, "{operations:?}");
                let (mut now, mut adjustment) = (i32::from(value), 0);
                for operation in operations {
                    now += i32::from(operation.by);
                    assert!((0..=HIGHEST).contains(&now));
                    if operation.flags & libc::SEM_UNDO as i16 != 0 {
                        adjustment -= i32::from(operation.by);
                    }
                }
                assert_eq!((now, adjustment), (i32::from(value), by));
            }
        }
    }
}
