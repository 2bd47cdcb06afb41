//! Segment descriptors of a process: its local descriptor table (modify_ldt(2)), which programs for other systems use, and some
//! language runtimes.
//!
//! The kernel gives the descriptors as the processor has them, and takes them as `struct user_desc`; how one becomes the other is
//! in the kernel's `fill_ldt`.

use crate::error::ProcError;
use crate::remote::Tracee;

const READ: u64 = 0;
/// Writes one entry, with all of its bits.
const WRITE: u64 = 0x11;
/// `LDT_ENTRIES`
const MOST: usize = 8192;
const ENTRY_BYTES: usize = 8;

/// The descriptors of a process, up to the last one that there is; none if it has no table.
///
/// # Errors
/// Those of the remote call.
pub(crate) fn capture(tracee: &mut Tracee<'_>) -> Result<Vec<u64>, ProcError> {
    let at = tracee.scratch().addr;
    let room = (tracee.scratch().len as usize).min(MOST * ENTRY_BYTES);
    let args = [READ, at.0, room as u64, 0, 0, 0];
    let bytes = match tracee.syscall("modify_ldt", libc::SYS_modify_ldt, args) {
        // The call returns 32 bits, errors too.
        Ok(result) => usize::try_from(result as u32 as i32).unwrap_or(0).min(room),
        // A kernel without local descriptor tables.
        Err(ProcError::RemoteSyscall { source, .. })
            if source.raw_os_error() == Some(libc::ENOSYS) =>
        {
            0
        }
        Err(error) => return Err(error),
    };
    let mut table = vec![0; bytes];
    tracee.read(at, &mut table)?;
    let mut entries: Vec<u64> = table
        .chunks_exact(ENTRY_BYTES)
        .map(|entry| u64::from_le_bytes(entry.try_into().unwrap_or_default()))
        .collect();
    let used = entries.iter().rposition(|&entry| entry != 0);
    entries.truncate(used.map_or(0, |last| last + 1));
    Ok(entries)
}

/// Gives a process these descriptors.
///
/// # Errors
/// [`ProcError::BadImage`] for more of them than there can be; those of the remote call.
pub(crate) fn restore(tracee: &mut Tracee<'_>, entries: &[u64]) -> Result<(), ProcError> {
    if entries.len() > MOST {
        return Err(ProcError::BadImage(format!(
            "it has {} segment descriptors",
            entries.len()
        )));
    }
    let at = tracee.scratch().addr;
    for (number, &entry) in (0..).zip(entries).filter(|(_, entry)| **entry != 0) {
        let description = describe(number, entry);
        tracee.put(at, &description)?;
        let args = [WRITE, at.0, size_of_val(&description) as u64, 0, 0, 0];
        let result = tracee.syscall("modify_ldt", libc::SYS_modify_ldt, args)?;
        if (result as u32 as i32) < 0 {
            return Err(ProcError::BadImage(format!(
                "segment descriptor {number} ({entry:#x}) is none that the kernel takes"
            )));
        }
    }
    Ok(())
}

/// `struct user_desc` of a descriptor: number, base, limit, and flags.
fn describe(number: u32, entry: u64) -> [u32; 4] {
    let bits = |from: u32, count: u32| (entry >> from & ((1 << count) - 1)) as u32;
    let base = bits(16, 24) | bits(56, 8) << 24;
    let limit = bits(0, 16) | bits(48, 4) << 16;
    let may_write_or_read = bits(41, 1);
    let flags = [
        bits(54, 1),                  // seg_32bit
        bits(42, 2) << 1,             // contents
        (1 - may_write_or_read) << 3, // read_exec_only
        bits(55, 1) << 4,             // limit_in_pages
        (1 - bits(47, 1)) << 5,       // seg_not_present
        bits(52, 1) << 6,             // useable
    ];
    [number, base, limit, flags.iter().sum()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_told_as_they_were_asked_for() {
        // A 32-bit data segment of one page at 0x20000000 that user code may use.
        assert_eq!(
            describe(3, 0x2050_f300_0000_0fff),
            [3, 0x2000_0000, 0xfff, 0b100_0001]
        );
        // Code that may not be read, in pages, not present.
        assert_eq!(
            describe(0, 0x12cf_7934_5678_ffff),
            [0, 0x1234_5678, 0xf_ffff, 0b011_1101]
        );
    }
}
