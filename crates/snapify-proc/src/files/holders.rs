//! Who else holds a pipe or a socket. The kernel does not tell how many processes have an end open, so the
//! descriptors of all processes that we may look at are looked through; a pipe goes to others by
//! inheritance, mostly to processes of the same user.

use super::survey::{Seen, View};
use crate::error::ProcError;
use crate::ids::Pid;
use crate::procfs::{ProcDir, text};
use snapify_sys::kcmp::{Kind, kcmp};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

/// For each of these pipes (inode numbers) that another process holds too: that process, for
/// people.
pub(super) fn of_pipes(
    pipes: &HashSet<u64>,
    except: impl Fn(Pid) -> bool,
) -> Result<HashMap<u64, String>, ProcError> {
    of_objects(b"pipe:[", pipes, except)
}

/// As [`of_pipes`], for sockets.
pub(super) fn of_sockets(
    sockets: &HashSet<u64>,
    except: impl Fn(Pid) -> bool,
) -> Result<HashMap<u64, String>, ProcError> {
    of_objects(b"socket:[", sockets, except)
}

fn of_objects(
    prefix: &[u8],
    wanted: &HashSet<u64>,
    except: impl Fn(Pid) -> bool,
) -> Result<HashMap<u64, String>, ProcError> {
    if wanted.is_empty() {
        return Ok(HashMap::new());
    }
    let mut found = HashMap::new();
    for pid in others(except)? {
        // Processes end meanwhile, and those of other users are closed to us.
        let Ok(proc) = ProcDir::open(pid) else {
            continue;
        };
        let Ok(fds) = proc.fds() else { continue };
        for fd in fds {
            let Ok(link) = proc.link(&format!("fd/{fd}")) else {
                continue;
            };
            let inode = link
                .as_bytes()
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_suffix(b"]"));
            let Some(inode) = inode.and_then(|number| text::unsigned(number, 10)) else {
                continue;
            };
            if wanted.contains(&inode) {
                found.entry(inode).or_insert_with(|| describe(&proc));
            }
        }
    }
    Ok(found)
}

/// A process that has a descriptor of the socket with this inode number, for people; and whether it has been killed and is about
/// to close it.
pub(super) fn of_socket(inode: u64) -> Option<(String, bool)> {
    let wanted = format!("socket:[{inode}]");
    let has_it = |proc: &ProcDir| {
        proc.fds().is_ok_and(|fds| {
            fds.iter().any(|fd| {
                proc.link(&format!("fd/{fd}"))
                    .is_ok_and(|link| link.as_bytes() == wanted.as_bytes())
            })
        })
    };
    let directory = std::fs::read_dir("/proc").ok()?;
    let pids = directory
        .flatten()
        .filter_map(|entry| text::id(entry.file_name().as_encoded_bytes()));
    pids.filter_map(|pid| ProcDir::open(Pid(pid)).ok())
        .find(has_it)
        .map(|proc| (describe(&proc), is_ending(&proc)))
}

/// Whether a process will end before it does anything else.
fn is_ending(proc: &ProcDir) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let exiting = proc.stat().map_or(true, |stat| stat.exiting);
    exiting
        || proc.status().map_or(true, |status| {
            (status.pending | status.shared_pending) & KILL != 0
        })
}

/// For each of these pseudo-terminals (the device number of the file system of its instance, if that is known, and its number)
/// that another process has open too: its index, and that process, for people.
pub(super) fn of_terminals(
    terminals: &[(Option<u64>, u32)],
    except: impl Fn(Pid) -> bool,
) -> Result<HashMap<usize, String>, ProcError> {
    let mut found = HashMap::new();
    for pid in others(except)? {
        let Ok(proc) = ProcDir::open(pid) else {
            continue;
        };
        let Ok(fds) = proc.fds() else { continue };
        for fd in fds {
            let name = format!("fd/{fd}");
            let Ok(link) = proc.link(&name) else {
                continue;
            };
            let number = link.as_bytes().strip_prefix(b"/dev/pts/");
            let Some(number) = number.and_then(|number| text::unsigned(number, 10)) else {
                continue;
            };
            let instance = || proc.stat_of(&name).ok().map(|stat| stat.st_dev);
            let is_it = |&(wanted, own): &(Option<u64>, u32)| {
                u64::from(own) == number && (wanted.is_none() || wanted == instance())
            };
            if let Some(index) = terminals.iter().position(is_it) {
                found.entry(index).or_insert_with(|| describe(&proc));
            }
        }
    }
    Ok(found)
}

/// Whether another process has the same description under the same number: it was inherited, and
/// nobody has taken it into use by giving it a number of its own.
pub(super) fn has_inherited(seen: &Seen, view: &View<'_>) -> bool {
    let pid = view.owner(seen).proc.pid();
    let link = format!("fd/{}", seen.fd);
    let number = u64::from(seen.fd.0.cast_unsigned());
    let has_it = |other: Pid| {
        let same_link = ProcDir::open(other)
            .and_then(|proc| proc.link(&link))
            .is_ok_and(|target| target == seen.link);
        same_link && kcmp(pid.0, other.0, Kind::File, number, number).is_ok_and(Ordering::is_eq)
    };
    others(|other| view.is_known(other)).is_ok_and(|mut others| others.any(has_it))
}

/// Whether another process has a pipe with a name open.
pub(super) fn of_named_pipe(seen: &Seen, view: &View<'_>) -> bool {
    let has_it = |other: Pid| {
        let Ok(proc) = ProcDir::open(other) else {
            return false;
        };
        let fds = proc.fds().unwrap_or_default();
        fds.iter().map(|fd| format!("fd/{fd}")).any(|name| {
            proc.link(&name).is_ok_and(|link| link == seen.link)
                && proc
                    .stat_of(&name)
                    .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == seen.object_id())
        })
    };
    others(|other| view.is_known(other)).is_ok_and(|mut others| others.any(has_it))
}

/// All processes but those that are saved.
fn others(except: impl Fn(Pid) -> bool) -> Result<impl Iterator<Item = Pid>, ProcError> {
    let directory = std::fs::read_dir("/proc").map_err(ProcError::proc("/proc"))?;
    let pids = directory
        .flatten()
        .filter_map(|entry| text::id(entry.file_name().as_encoded_bytes()));
    Ok(pids.map(Pid).filter(move |pid| !except(*pid)))
}

fn describe(proc: &ProcDir) -> String {
    let name = proc
        .stat()
        .map(|stat| String::from_utf8_lossy(&stat.comm).into_owned());
    format!("process {} ({})", proc.pid(), name.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_with_our_pipe_is_found() {
        let (reader, writer) = std::io::pipe().unwrap();
        let inode = rustix::fs::fstat(reader.as_fd()).unwrap().st_ino;
        let us = Pid(std::process::id().cast_signed());
        assert_eq!(
            of_pipes(&HashSet::from([inode]), |pid| pid == us).unwrap(),
            HashMap::new()
        );
        let mut child = Command::new("cat")
            .stdin(Stdio::from(reader))
            .spawn()
            .unwrap();
        let holder = of_pipes(&HashSet::from([inode]), |pid| pid == us)
            .unwrap()
            .remove(&inode)
            .unwrap();
        assert!(holder.contains(&child.id().to_string()), "{holder}");
        drop(writer);
        child.wait().unwrap();
    }
}
