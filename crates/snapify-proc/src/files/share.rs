//! Which descriptors share an open file description.

use super::survey::{Found, Seen};
use crate::error::ProcError;
use crate::ids::Pid;
use snapify_sys::kcmp::{Kind, kcmp};
use std::cmp::Ordering;
use std::collections::HashMap;

/// Gives each descriptor the index of its group: descriptors of one group share a description,
/// which the first of them represents. Only descriptors that look alike are compared by the kernel
/// (kcmp(2)), and sorted by its answers, so that thousands of descriptors take no thousands squared
/// questions.
pub(super) fn group(pid: Pid, all: &[(Seen, Found)]) -> Result<Vec<usize>, ProcError> {
    let mut alike: HashMap<_, Vec<usize>> = HashMap::new();
    for (index, (seen, _)) in all.iter().enumerate() {
        let key = (seen.object_id(), seen.flags(), seen.info.pos);
        alike.entry(key).or_default().push(index);
    }
    let mut representative: Vec<usize> = (0..all.len()).collect();
    for mut members in alike.into_values().filter(|members| members.len() > 1) {
        let number = |index: usize| u64::from(all[index].0.fd.0.cast_unsigned());
        let mut failed = None;
        let mut compare = |a: usize, b: usize| {
            kcmp(pid.0, pid.0, Kind::File, number(a), number(b)).unwrap_or_else(|error| {
                failed = Some(error);
                Ordering::Equal
            })
        };
        // A stable sort keeps equal ones in ascending order, so that the first of them has the
        // lowest number.
        members.sort_by(|&a, &b| compare(a, b));
        for at in 1..members.len() {
            let (before, this) = (members[at - 1], members[at]);
            if compare(before, this) == Ordering::Equal {
                representative[this] = representative[before];
            }
        }
        match failed {
            // Containers forbid the call now and then. Descriptors of one file with the same flags
            // and offset are nearly always duplicates; eventfds and epolls, which all share one
            // inode, are not.
            Some(error)
                if all[members[0]]
                    .0
                    .link
                    .as_bytes()
                    .starts_with(b"anon_inode:") =>
            {
                return Err(ProcError::system(format!(
                    "comparing descriptors of process {pid}"
                ))(error));
            }
            _ => {}
        }
    }
    Ok(representative)
}
