//! Who else holds a pipe. The kernel does not tell how many processes have an end open, so the
//! descriptors of all processes that we may look at are looked through; a pipe goes to others by
//! inheritance, mostly to processes of the same user.

use crate::error::ProcError;
use crate::ids::Pid;
use crate::procfs::{ProcDir, text};
use std::collections::HashMap;

/// For each of these pipes (inode numbers) that another process holds too: that process, for
/// people.
pub(super) fn of_pipes(pipes: &[u64], except: Pid) -> Result<HashMap<u64, String>, ProcError> {
    let mut found = HashMap::new();
    let directory = std::fs::read_dir("/proc").map_err(ProcError::proc("/proc"))?;
    let pids = directory
        .flatten()
        .filter_map(|entry| text::id(entry.file_name().as_encoded_bytes()));
    for pid in pids.map(Pid).filter(|pid| *pid != except) {
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
                .strip_prefix(b"pipe:[")
                .and_then(|rest| rest.strip_suffix(b"]"));
            let Some(inode) = inode.and_then(|number| text::unsigned(number, 10)) else {
                continue;
            };
            if pipes.contains(&inode) {
                found.entry(inode).or_insert_with(|| describe(&proc));
            }
        }
    }
    Ok(found)
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
        assert_eq!(of_pipes(&[inode], us).unwrap(), HashMap::new());
        let mut child = Command::new("cat")
            .stdin(Stdio::from(reader))
            .spawn()
            .unwrap();
        let holder = of_pipes(&[inode], us).unwrap().remove(&inode).unwrap();
        assert!(holder.contains(&child.id().to_string()), "{holder}");
        drop(writer);
        child.wait().unwrap();
    }
}
