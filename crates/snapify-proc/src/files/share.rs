//! Which descriptors share an open file description.

use super::survey::{Seen, View};
use crate::error::ProcError;
use snapify_sys::kcmp::{Kind, kcmp};
use std::cmp::Ordering;
use std::collections::HashMap;

/// Divides descriptors into those that share a description, each group and the groups in the order given. Only descriptors
/// that look alike are compared by the kernel (kcmp(2)), and sorted by its answers, so that thousands of
/// descriptors take no thousands squared questions.
pub(super) fn group(view: &View<'_>, all: Vec<Seen>) -> Result<Vec<Vec<Seen>>, ProcError> {
    let mut alike: HashMap<_, Vec<usize>> = HashMap::new();
    for (index, seen) in all.iter().enumerate() {
        let key = (seen.object_id(), seen.flags(), seen.info.pos);
        alike.entry(key).or_default().push(index);
    }
    let mut representative: Vec<usize> = (0..all.len()).collect();
    for mut members in alike.into_values().filter(|members| members.len() > 1) {
        let pid = |index: usize| view.owner(&all[index]).proc.pid().0;
        let number = |index: usize| u64::from(all[index].fd.0.cast_unsigned());
        let mut failed = None;
        let mut compare = |a: usize, b: usize| {
            kcmp(pid(a), pid(b), Kind::File, number(a), number(b)).unwrap_or_else(|error| {
                failed = Some(error);
                Ordering::Equal
            })
        };
        // A stable sort keeps equal ones in ascending order, so that the first of them comes first.
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
            Some(error) if all[members[0]].link.as_bytes().starts_with(b"anon_inode:") => {
                return Err(ProcError::system(format!(
                    "comparing descriptors of process {}",
                    pid(members[0])
                ))(error));
            }
            _ => {}
        }
    }
    let mut groups: Vec<Vec<Seen>> = Vec::new();
    let mut place: HashMap<usize, usize> = HashMap::new();
    for (index, seen) in all.into_iter().enumerate() {
        let group = *place.entry(representative[index]).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(group) => group.push(seen),
            None => groups.push(vec![seen]),
        }
    }
    Ok(groups)
}
