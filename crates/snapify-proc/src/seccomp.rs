//! Restrictions of system calls (seccomp(2)).
//!
//! Filters cannot be taken off, and be read only by who has CAP_SYS_ADMIN in the first user namespace. So they cannot be put on again. But those of a
//! container are on everything in it: on the program, on whoever saves it, and on whoever restarts it there.

use crate::ids::Pid;
use crate::procfs::ProcDir;
use crate::procfs::status::Status;
use std::sync::OnceLock;

/// Why a thread cannot be saved for its filters. It can if it has as many as this process has, which are then taken for the same.
pub(crate) fn obstacle(status: &Status) -> Option<&'static str> {
    const FILTERED: u32 = 2;
    match status.seccomp {
        0 => None,
        FILTERED if status.seccomp_filters > 0 && status.seccomp_filters == own_filters() => None,
        _ => Some("its system calls are restricted by seccomp, which is not supported"),
    }
}

/// The number of filters that this process is under, and what it makes inherits.
pub(crate) fn own_filters() -> u32 {
    static FILTERS: OnceLock<u32> = OnceLock::new();
    *FILTERS.get_or_init(|| {
        let own = Pid(std::process::id().cast_signed());
        let status = ProcDir::open(own).and_then(|proc| proc.status());
        status.map_or(0, |status| status.seccomp_filters)
    })
}
