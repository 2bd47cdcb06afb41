//! User namespaces (user_namespaces(7)): what a process's owner is called in its own.

use crate::error::ProcError;
use crate::procfs::ProcDir;
use crate::procfs::status::Status;

/// User and group id of a process as it sees them itself; `None` for one that has no such ids in its namespace. Those of
/// `status` are what we see.
///
/// # Errors
/// Those of reading `/proc`.
pub(crate) fn inner_owner(
    proc: &ProcDir,
    status: &Status,
) -> Result<Option<(u32, u32)>, ProcError> {
    let (uid, gid) = (status.uid.real, status.gid.real);
    let ours = rustix::fs::stat("/proc/self/ns/user");
    match (proc.stat_of("ns/user"), ours) {
        // Maps are shown as they concern us, but for our own namespace, of which they show how it lies in the next one.
        (Ok(theirs), Ok(ours)) if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino) => {}
        // A kernel without them.
        _ => return Ok(Some((uid, gid))),
    }
    let inner = |file, id| Ok::<_, ProcError>(within(&proc.read(file)?, id));
    Ok(inner("uid_map", uid)?.zip(inner("gid_map", gid)?))
}

/// What the outer `id` is called inside by a map: lines of the first inner id, the first outer one, and how many follow each
/// other.
fn within(map: &[u8], id: u32) -> Option<u32> {
    let text = std::str::from_utf8(map).ok()?;
    text.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let (inner, outer, count) = (next()?, next()?, next()?);
        let nth = id.checked_sub(outer).filter(|nth| *nth < count)?;
        inner.checked_add(nth)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_looked_up_in_maps() {
        let map = b"         0       1000          1\n         1     100000      65536\n";
        assert_eq!(within(map, 1000), Some(0));
        assert_eq!(within(map, 100_009), Some(10));
        assert_eq!(within(map, 165_536), None);
        assert_eq!(within(map, 0), None);
        assert_eq!(within(b"0 0 4294967295\n", 48211), Some(48211));
        assert_eq!(within(b"", 0), None);
        assert_eq!(within(b"4294967295 0 4294967295\n", 5), None);
        assert_eq!(within(b"1 2\nx y z\n\xff", 2), None);
    }

    #[test]
    fn our_own_ids_are_our_own() {
        let us = ProcDir::open(crate::ids::Pid(std::process::id().cast_signed())).unwrap();
        let status = us.status().unwrap();
        assert_eq!(
            inner_owner(&us, &status).unwrap(),
            Some((status.uid.real, status.gid.real))
        );
    }
}
