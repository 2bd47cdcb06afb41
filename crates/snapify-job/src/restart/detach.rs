//! A restart whose supervisor goes on in the background.

use crate::error::JobError;
use nix::unistd::{ForkResult, fork, setsid};
use std::fs::File;
use std::io::{Read, Write};
use std::process::ExitStatus;

/// Runs `work` in a process of its own session, and waits until it calls what it is given, or has failed.
#[allow(unsafe_code)]
pub(super) fn in_background(
    work: impl FnOnce(&mut dyn FnMut()) -> Result<ExitStatus, JobError>,
) -> Result<(), JobError> {
    let failed = |source: std::io::Error| JobError::System {
        operation: "go to the background".into(),
        source,
    };
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| failed(errno.into()))?;
    // SAFETY: the command line has one thread, so that the child may do whatever the parent may.
    match unsafe { fork() }.map_err(|errno| failed(errno.into()))? {
        ForkResult::Parent { .. } => {
            drop(write);
            let mut said = String::new();
            File::from(read).read_to_string(&mut said).map_err(failed)?;
            match said.strip_prefix("runs") {
                Some(_) => Ok(()),
                None if said.is_empty() => Err(JobError::Refused("the restart died".into())),
                None => Err(JobError::Refused(said)),
            }
        }
        ForkResult::Child => {
            drop(read);
            let _ = setsid();
            let mut write = Some(File::from(write));
            let done = work(&mut || {
                if let Some(mut write) = write.take() {
                    let _ = write.write_all(b"runs");
                }
            });
            let status = match done {
                Ok(_) => 0,
                Err(error) => {
                    match write.take() {
                        Some(mut write) => drop(write.write_all(error.to_string().as_bytes())),
                        None => eprintln!("snapify: {error}"),
                    }
                    1
                }
            };
            std::process::exit(status)
        }
    }
}
