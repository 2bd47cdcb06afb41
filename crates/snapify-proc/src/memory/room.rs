//! How much more memory may be used: by the whole system, and by the control groups that a process is in.

use crate::procfs::ProcDir;
use crate::procfs::text;
use std::fs;
use std::path::Path;

/// Where version 2 of control groups is mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Bytes that a process may still use before the kernel must reclaim memory from programs; `None` if nothing is known of limits.
pub(crate) fn available(proc: &ProcDir) -> Option<u64> {
    let system = fs::read("/proc/meminfo")
        .ok()
        .and_then(|text| of_system(&text));
    let groups = proc.read("cgroup").ok().and_then(|text| {
        let group = text::lines(&text).find_map(|line| line.strip_prefix(b"0::/"))?;
        of_groups(Path::new(CGROUPS), std::str::from_utf8(group).ok()?)
    });
    system.into_iter().chain(groups).min()
}

fn of_system(meminfo: &[u8]) -> Option<u64> {
    let value = text::lines(meminfo).find_map(|line| line.strip_prefix(b"MemAvailable:"))?;
    let kilobytes = text::unsigned(text::words(value).next()?, 10)?;
    Some(kilobytes.saturating_mul(1024))
}

/// The least that a group and those around it have left.
fn of_groups(mount: &Path, group: &str) -> Option<u64> {
    let group = mount.join(group);
    let groups = group
        .ancestors()
        .take_while(|group| group.starts_with(mount));
    groups.filter_map(left).min()
}

fn left(group: &Path) -> Option<u64> {
    let number = |name| {
        let text = fs::read(group.join(name)).ok()?;
        text::unsigned(text.trim_ascii(), 10)
    };
    // "max" is no number, and no limit.
    let limit = number("memory.max")?;
    // What is cached could be given back, but nobody says how much of it; the limit is for what programs use.
    Some(limit.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_group_counts() {
        let mount = tempfile::tempdir().unwrap();
        let inner = mount.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let write = |group: &Path, max: &str, current: &str| {
            fs::write(group.join("memory.max"), max).unwrap();
            fs::write(group.join("memory.current"), current).unwrap();
        };
        assert_eq!(of_groups(mount.path(), "a/b"), None);
        write(&inner, "max\n", "5\n");
        assert_eq!(of_groups(mount.path(), "a/b"), None);
        write(&mount.path().join("a"), "1000\n", "300\n");
        assert_eq!(of_groups(mount.path(), "a/b"), Some(700));
        write(&inner, "100\n", "200\n");
        assert_eq!(of_groups(mount.path(), "a/b"), Some(0));
    }

    #[test]
    fn the_system_tells() {
        assert_eq!(
            of_system(b"MemFree: 1 kB\nMemAvailable:   2 kB\n"),
            Some(2048)
        );
        assert_eq!(of_system(b"MemFree: 1 kB\n"), None);
    }
}
