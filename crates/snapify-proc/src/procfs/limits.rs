//! `/proc/PID/limits` (proc_pid_limits(5)): all resource limits in one read, without asking the
//! process.

use super::text::{self, Malformed};

/// Number of resources that Linux limits.
pub const RESOURCES: usize = 16;

/// Soft and hard limit; `u64::MAX` is no limit (`RLIM64_INFINITY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit in force.
    pub soft: u64,
    /// How far the process may raise it.
    pub hard: u64,
}

/// The names that the kernel prints, at the index of their `RLIMIT_*` number.
const NAMES: [&[u8]; RESOURCES] = [
    b"Max cpu time",
    b"Max file size",
    b"Max data size",
    b"Max stack size",
    b"Max core file size",
    b"Max resident set",
    b"Max processes",
    b"Max open files",
    b"Max locked memory",
    b"Max address space",
    b"Max file locks",
    b"Max pending signals",
    b"Max msgqueue size",
    b"Max nice priority",
    b"Max realtime priority",
    b"Max realtime timeout",
];

/// The kernel's name of resource number `resource`, without "Max".
#[must_use]
pub fn resource_name(resource: usize) -> &'static str {
    let name = NAMES
        .get(resource)
        .copied()
        .unwrap_or(b"Max unknown resource");
    std::str::from_utf8(&name[4..]).unwrap_or_default()
}

/// Reads a limits file: index n holds `RLIMIT_*` number n.
///
/// # Errors
/// If a resource is missing or has no numbers.
pub fn parse(text: &[u8]) -> Result<[Limit; RESOURCES], Malformed> {
    let mut limits = [Limit { soft: 0, hard: 0 }; RESOURCES];
    for (name, limit) in NAMES.iter().zip(&mut limits) {
        let malformed = || Malformed::new("resource limit", name);
        let line = text::lines(text)
            .find(|line| line.starts_with(name))
            .ok_or_else(malformed)?;
        let mut values = text::words(&line[name.len()..]).map(|word| match word {
            b"unlimited" => Some(u64::MAX),
            number => text::unsigned(number, 10),
        });
        let mut next = || values.next().flatten().ok_or_else(malformed);
        *limit = Limit {
            soft: next()?,
            hard: next()?,
        };
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_limits_are_what_getrlimit_says() {
        let limits = parse(&std::fs::read("/proc/self/limits").unwrap()).unwrap();
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        assert_eq!(
            limits[libc::RLIMIT_NOFILE as usize].soft,
            files.current.unwrap_or(u64::MAX)
        );
        let stack = rustix::process::getrlimit(rustix::process::Resource::Stack);
        assert_eq!(
            limits[libc::RLIMIT_STACK as usize].hard,
            stack.maximum.unwrap_or(u64::MAX)
        );
    }

    #[test]
    fn missing_resources_are_named() {
        let error = parse(b"Max cpu time  unlimited unlimited seconds\n").unwrap_err();
        assert!(error.to_string().contains("Max file size"));
        assert_eq!(resource_name(7), "open files");
        assert_eq!(resource_name(99), "unknown resource");
    }
}
