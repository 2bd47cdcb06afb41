//! A card daemon with the plainest engine there is: it can launch processes, and not save or restore them.
//!
//! For this crate's tests: `plain_card INDEX MEMORY SERVICE_FD OFFLOAD_PROCESS [sandbox]`
#![allow(unsafe_code)]

use snapify_offload::daemon::{CardConfig, run, serve};
use snapify_offload::engine::{
    CaptureOrder, Child, Engine, EngineError, LaunchSpec, PageFileSummary, RestoreOrder,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

struct PlainEngine;

impl Engine for PlainEngine {
    fn launch(&self, spec: LaunchSpec) -> Result<Box<dyn Child>, EngineError> {
        let mut command = Command::new(&spec.program);
        command.args(&spec.args[1..]).env_clear().envs(spec.env);
        let fds: Vec<_> = spec
            .fds
            .iter()
            .map(|(fd, to)| (fd.as_raw_fd(), *to))
            .collect();
        // SAFETY: between fork and exec only calls that are safe there.
        unsafe {
            command.pre_exec(move || {
                // First out of each other's way, then to their places.
                let mut moved = [(0, 0); 8];
                for (place, (fd, to)) in moved.iter_mut().zip(&fds) {
                    *place = (libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 100), *to);
                }
                for (fd, to) in &moved[..fds.len()] {
                    libc::dup2(*fd, *to);
                }
                Ok(())
            });
        }
        let child = command.spawn()?;
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        Ok(Box::new(PlainChild { child, pidfd }))
    }

    fn capture(&self, _: CaptureOrder<'_>) -> Result<PageFileSummary, EngineError> {
        Err("this engine saves nothing".into())
    }

    fn restore(&self, _: RestoreOrder<'_>) -> Result<Box<dyn Child>, EngineError> {
        Err("this engine restores nothing".into())
    }
}

struct PlainChild {
    child: std::process::Child,
    pidfd: OwnedFd,
}

impl Child for PlainChild {
    fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    fn status_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn start(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>, EngineError> {
        Ok(self.child.try_wait()?)
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |index: usize| args[index].parse::<u64>().expect("a number");
    let config = CardConfig {
        index: number(1) as u32,
        memory: number(2),
        // SAFETY: passed on the command line for this purpose.
        service: unsafe { OwnedFd::from_raw_fd(number(3) as i32) },
        listener: None,
        offload_process: args[4].clone().into(),
        libraries: None,
        scratch: if args.len() > 5 { "/tmp" } else { "/dev/shm" }.into(),
    };
    let engine = Box::new(PlainEngine);
    if args.len() > 5 {
        run(config, engine).expect("card");
    } else {
        serve(config, engine, Vec::new()).expect("card");
    }
}
