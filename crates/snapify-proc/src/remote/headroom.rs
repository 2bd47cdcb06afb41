//! Room for the scratch memory in a process that has used up what its limits grant.

use crate::ids::Pid;
use crate::procfs::ProcDir;
use rustix::process::{Resource, Rlimit, prlimit};

/// The limits that a mapping of private memory can come up against, with their numbers: of all addresses, of memory of its
/// own, and, after mlockall(2) with `MCL_FUTURE`, of locked memory.
const LIMITS: [(Resource, u32); 3] = [
    (Resource::As, libc::RLIMIT_AS),
    (Resource::Data, libc::RLIMIT_DATA),
    (Resource::Memlock, libc::RLIMIT_MEMLOCK),
];

/// Soft limits of a stopped process that are as high as its hard limits for as long as this exists.
#[derive(Debug)]
pub(super) struct Headroom {
    pid: rustix::process::Pid,
    before: Vec<(Resource, Rlimit)>,
}

impl Headroom {
    /// Raises what can be raised; `None` if there is nothing.
    pub(super) fn make(pid: Pid) -> Option<Self> {
        let limits = ProcDir::open(pid).and_then(|proc| proc.limits()).ok()?;
        let pid = rustix::process::Pid::from_raw(pid.0)?;
        let mut before = Vec::new();
        for (resource, number) in LIMITS {
            let limit = limits[number as usize];
            let limited = |to: u64| Rlimit {
                current: (to != u64::MAX).then_some(to),
                maximum: (limit.hard != u64::MAX).then_some(limit.hard),
            };
            if limit.soft < limit.hard && prlimit(Some(pid), resource, limited(limit.hard)).is_ok()
            {
                before.push((resource, limited(limit.soft)));
            }
        }
        (!before.is_empty()).then_some(Self { pid, before })
    }
}

impl Drop for Headroom {
    fn drop(&mut self) {
        for (resource, limit) in self.before.drain(..) {
            // It may have been killed.
            let _ = prlimit(Some(self.pid), resource, limit);
        }
    }
}
