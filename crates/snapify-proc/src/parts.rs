//! Work on large stretches of memory, by several threads: what the kernel does for each page of a process, one thread after the
//! other can ask for, and while a program stands still processors are idle.

use crate::remote::unpinned;
use snapify_sys::process;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A thread is worth its start for so many bytes.
const WORTHWHILE: u64 = 128 << 20;

/// More would wait for each other in the kernel.
const MOST_THREADS: u64 = 8;

/// Parts are a multiple of this, which no page table and no transparent huge page reaches across.
const ALIGNMENT: u64 = 2 << 20;

/// The shortest part, but for the last.
const SHORTEST: u64 = 64 << 20;

/// Most parts that a stretch is cut into.
const MOST_PARTS: u64 = 256;

/// Cuts `start..end` into parts.
pub(crate) fn cut(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let bytes = (end.saturating_sub(start) / MOST_PARTS).max(SHORTEST);
    let bytes = bytes.next_multiple_of(ALIGNMENT);
    let mut at = start;
    std::iter::from_fn(move || {
        let from = at;
        // Past the last whole part there may be no such address.
        let next = (from / ALIGNMENT * ALIGNMENT).saturating_add(bytes);
        at = next.min(end);
        (from < end).then_some((from, at))
    })
}

/// Has `work` done with each of `jobs`, which have to do with so many bytes of memory together. The results are in the order of the
/// jobs.
///
/// # Errors
/// The first error of any; the other jobs may not have been done then.
pub(crate) fn each<J: Sync, T: Send>(
    jobs: &[J],
    bytes: u64,
    work: impl Fn(&J) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    let affinity = unpinned();
    let processors = match &affinity {
        Some(mask) => mask.iter().map(|word| u64::from(word.count_ones())).sum(),
        None => std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
    };
    let most = processors.min(MOST_THREADS).min(jobs.len() as u64);
    let threads = (bytes / WORTHWHILE).min(most);
    if threads < 2 {
        return jobs.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let some = || -> io::Result<Vec<(usize, T)>> {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(number) else {
                return Ok(done);
            };
            match work(job) {
                Ok(result) => done.push((number, result)),
                Err(error) => {
                    next.store(jobs.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let mut done = std::thread::scope(|scope| {
        let help = || {
            // Remote calls need this thread on one processor; the others may be elsewhere.
            if let Some(mask) = &affinity {
                let _ = process::set_affinity(0, mask);
            }
            some()
        };
        let started: Vec<_> = (1..threads).map(|_| scope.spawn(help)).collect();
        let mut done = some();
        for thread in started {
            let theirs = match thread.join() {
                Ok(theirs) => theirs,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            done = done.and_then(|mut ours| {
                ours.extend(theirs?);
                Ok(ours)
            });
        }
        done
    })?;
    done.sort_unstable_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_once() {
        let gib = 1 << 30;
        for (start, end) in [
            (0, 0),
            (0x1000, 0x2000),
            (ALIGNMENT - 4096, ALIGNMENT + 4096),
            (gib + 0x3000, 4 * gib + 0x1000),
            (0x1000, (1 << 47) - 4096),
        ] {
            let parts: Vec<_> = cut(start, end).collect();
            assert!(parts.len() as u64 <= MOST_PARTS + 1, "{}", parts.len());
            let mut at = start;
            for (from, to) in parts {
                assert!(from == at && from < to && to <= end);
                assert!(to == end || to % ALIGNMENT == 0);
                at = to;
            }
            assert_eq!(at, end);
        }
    }

    #[test]
    fn results_are_in_order_and_errors_end_it() {
        let jobs: Vec<u64> = (0..100).collect();
        for bytes in [0, 1 << 40] {
            let doubled = each(&jobs, bytes, |job| Ok(job * 2)).unwrap();
            assert!(doubled.iter().copied().eq((0..100).map(|n| n * 2)));
            let failing = |job: &u64| match job {
                37 => Err(io::Error::from_raw_os_error(libc::EIO)),
                _ => Ok(()),
            };
            let error = each(&jobs, bytes, failing).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EIO));
        }
    }
}
