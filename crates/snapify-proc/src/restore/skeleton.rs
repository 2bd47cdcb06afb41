//! Making all processes of a tree, stopped and empty, each with its id, parent, session and group.

use super::blank;
use super::heirs::Heirs;
use super::lineage::{Lineage, Node, Step, plan};
use crate::error::{Obstacle, ProcError};
use crate::ids::{Pid, RemoteAddr, Tid};
use crate::image::{Shares, TreeImage};
use crate::ptrace::Running;
use crate::remote::{Pin, SCRATCH_BYTES, Scratch, Tracee};
use crate::stops;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, pidfd_open};
use snapify_sys::clone::CloneArgs;
use snapify_sys::process;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

/// The processes of an image, made but empty, unless others begin with their memory.
pub(super) struct Skeleton {
    /// In the order of the image.
    pub(super) tracees: Vec<Tracee<'static>>,
    /// The first process.
    pub(super) pidfd: OwnedFd,
}

/// Whether there is a way to make the processes of an image. Creates nothing.
pub(crate) fn preflight(image: &TreeImage) -> Option<Obstacle> {
    let has_terminal = false;
    let (pid, why) = plan(&nodes(image, has_terminal)).err()?;
    let why = format!("its place in the tree cannot be restored: {why}");
    Some(Obstacle::new(format!("process {pid}"), why))
}

/// Makes all processes, and those that have ended by then. `terminals` are descriptors that all have inherited of what is to
/// be the controlling terminal of a session. Of `heirs`, those are built and filled whose memory others begin with.
///
/// # Errors
/// If an id is taken, or the kernel does not allow to choose it.
pub(super) fn make(
    image: &TreeImage,
    terminals: &HashMap<i32, i32>,
    heirs: &mut Heirs<'_>,
) -> Result<Skeleton, ProcError> {
    let has_terminal = std::fs::File::open("/dev/tty").is_ok();
    let refused =
        |(pid, why)| ProcError::BadImage(format!("process {pid} cannot be restored: {why}"));
    let lineage = plan(&nodes(image, has_terminal)).map_err(refused)?;
    let maps = blank::our_maps()?;
    // Children have a copy of it at the same place, which is theirs to be written to.
    let scratch = vec![0_u8; SCRATCH_BYTES as usize + 4096];
    let instruction = crate::memory::syscall_instruction(Pid(std::process::id() as i32), &maps)?;
    heirs.plan(&lineage, maps);
    let mut maker = Maker {
        lineage: &lineage,
        terminals,
        scratch: Scratch {
            addr: RemoteAddr((scratch.as_ptr() as u64).next_multiple_of(4096)),
            len: SCRATCH_BYTES,
        },
        instruction,
        pin: None,
        made: HashMap::new(),
        parents: HashMap::new(),
    };
    for &step in &lineage.steps {
        maker.carry_out(step)?;
        if let Step::Make { node, .. } = step
            && heirs.is_early(node)
        {
            maker.raise(node, heirs)?;
        }
    }
    for (ended, node) in image.ended.iter().zip(image.processes.len()..) {
        maker.end(node, ended.status)?;
    }
    for terminal in &image.files.terminals {
        if let Some(&fd) = terminals.get(&terminal.session) {
            maker.set_foreground(terminal.session, fd, terminal.foreground)?;
        }
    }
    let mut tracees = maker.finish(image.processes.len())?;
    stop(&mut tracees, image)?;
    let pidfd = pidfd_of(image.root().pid())?;
    drop(scratch);
    Ok(Skeleton { tracees, pidfd })
}

/// The processes of an image as the plan wants them. Where the restart has a terminal, what belonged to the session of
/// another one that is not of the tree stays in the restart's session: the keyboard's signals would not reach it otherwise.
/// Its groups come back, so that it can go on with its own control of jobs.
fn nodes(image: &TreeImage, has_terminal: bool) -> Vec<Node> {
    let terminals = &image.files.terminals;
    let served: Vec<i32> = image
        .processes
        .iter()
        .filter(|process| has_terminal && process.context.had_terminal)
        .map(|process| process.kin.session)
        .filter(|&session| session == 0 || terminals.iter().all(|t| t.session != session))
        .collect();
    let mut nodes: Vec<Node> = image
        .processes
        .iter()
        .map(|process| Node {
            kin: process.kin,
            shares: process.shares,
        })
        .chain(image.ended.iter().map(|ended| Node {
            kin: ended.kin,
            shares: Shares::default(),
        }))
        .collect();
    for kin in nodes.iter_mut().map(|node| &mut node.kin) {
        if served.contains(&kin.session) {
            kin.session = 0;
        }
    }
    nodes
}

struct Maker<'a> {
    lineage: &'a Lineage,
    /// Descriptors of the controlling terminals of sessions.
    terminals: &'a HashMap<i32, i32>,
    scratch: Scratch,
    instruction: RemoteAddr,
    pin: Option<Rc<Pin>>,
    made: HashMap<usize, Tracee<'static>>,
    /// Who is the parent of a process; the init if nobody.
    parents: HashMap<usize, usize>,
}

impl Maker<'_> {
    fn carry_out(&mut self, step: Step) -> Result<(), ProcError> {
        match step {
            Step::Make {
                node,
                by: None,
                sibling: _,
            } => self.fork(node),
            Step::Make {
                node,
                by: Some(by),
                sibling,
            } => self.make_by(node, by, sibling),
            Step::LeadSession(node) => {
                let terminal = self.terminals.get(&self.lineage.nodes[node].kin.pid);
                let leader = self.tracee(node)?;
                leader.syscall("setsid", libc::SYS_setsid, [0; 6])?;
                // Before it has children: they have the terminal from it.
                if let Some(&fd) = terminal {
                    let args = [fd as u64, libc::TIOCSCTTY, 0, 0, 0, 0];
                    leader.syscall("ioctl TIOCSCTTY", libc::SYS_ioctl, args)?;
                }
                Ok(())
            }
            Step::Unshare { node, flags } => {
                let args = [flags as u64, 0, 0, 0, 0, 0];
                self.tracee(node)?
                    .syscall("unshare", libc::SYS_unshare, args)?;
                Ok(())
            }
            Step::JoinGroup(node, group) => {
                let args = [0, group as u64, 0, 0, 0, 0];
                self.tracee(node)?
                    .syscall("setpgid", libc::SYS_setpgid, args)?;
                Ok(())
            }
            Step::End { node, heir } => self.end_helper(node, heir),
        }
    }

    fn tracee(&mut self, node: usize) -> Result<&mut Tracee<'static>, ProcError> {
        let pid = self.lineage.nodes[node].kin.pid;
        self.made
            .get_mut(&node)
            .ok_or_else(|| ProcError::BadImage(format!("process {pid} is not there yet")))
    }

    /// Makes a child of this init.
    fn fork(&mut self, node: usize) -> Result<(), ProcError> {
        let pid = self.lineage.nodes[node].kin.pid;
        let mut tracee = blank::spawn(pid, self.instruction, self.pin.clone())?;
        self.pin = self.pin.take().or_else(|| tracee.shared_pin());
        tracee.set_scratch(self.scratch);
        self.made.insert(node, tracee);
        Ok(())
    }

    /// Has one process make another.
    fn make_by(&mut self, node: usize, by: usize, sibling: bool) -> Result<(), ProcError> {
        let Node { kin, shares, .. } = self.lineage.nodes[node];
        let flag = |on: bool, bit: i32| if on { bit as u64 } else { 0 };
        let pin = self.pin.clone();
        let maker = self.tracee(by)?;
        let (scratch, instruction) = (maker.scratch(), maker.instruction());
        let wanted = scratch.addr.offset(256);
        let args = CloneArgs {
            flags: flag(sibling, libc::CLONE_PARENT)
                | flag(shares.memory.is_some(), libc::CLONE_VM)
                | flag(shares.files.is_some(), libc::CLONE_FILES)
                | flag(shares.directory.is_some(), libc::CLONE_FS)
                | flag(shares.handlers.is_some(), libc::CLONE_SIGHAND),
            exit_signal: if sibling { 0 } else { kin.exit_signal as u64 },
            set_tid: wanted.0,
            set_tid_size: 1,
            ..CloneArgs::default()
        };
        maker.put(scratch.addr, &args)?;
        maker.put(wanted, &kin.pid)?;
        let call = [scratch.addr.0, size_of::<CloneArgs>() as u64, 0, 0, 0, 0];
        maker
            .syscall("clone3", libc::SYS_clone3, call)
            .map_err(|e| blank::taken(e, kin.pid))?;
        let base = maker.base(maker.leader())?;
        let running = Running::attached(Tid(kin.pid));
        let stopped = match running.wait_stopped(Duration::from_secs(10)) {
            Ok(Some((stopped, _))) => stopped,
            Ok(None) => {
                return Err(ProcError::Died {
                    pid: Pid(kin.pid),
                    during: "its creation",
                });
            }
            Err((_, e)) => return Err(e),
        };
        let mut tracee = Tracee::of_built(stopped, base, instruction, pin);
        tracee.set_scratch(scratch);
        self.made.insert(node, tracee);
        let parent = if sibling {
            self.parents.get(&by).copied()
        } else {
            Some(by)
        };
        if let Some(parent) = parent {
            self.parents.insert(node, parent);
        }
        Ok(())
    }

    /// Gives a process its memory, with which those begin that it makes.
    fn raise(&mut self, node: usize, heirs: &mut Heirs<'_>) -> Result<(), ProcError> {
        heirs.build(node, self.tracee(node)?)?;
        // The threads that fill it may run anywhere.
        self.made.values_mut().for_each(Tracee::unpin);
        self.pin = None;
        let result = heirs.fill_early(node);
        self.pin = self.tracee(node)?.choose_pin();
        for tracee in self.made.values_mut() {
            tracee.pin(self.pin.clone());
        }
        Ok(result?)
    }

    /// Ends a process with a wait status.
    fn end(&mut self, node: usize, status: i32) -> Result<(), ProcError> {
        let pid = self.lineage.nodes[node].kin.pid;
        let Some(mut tracee) = self.made.remove(&node) else {
            return Err(ProcError::BadImage(format!("process {pid} is not there")));
        };
        let signal = status & 0x7f;
        if signal == 0 {
            let args = [(status >> 8 & 0xff) as u64, 0, 0, 0, 0, 0];
            return match tracee.syscall("exit_group", libc::SYS_exit_group, args) {
                Err(ProcError::Died { .. }) => Ok(()),
                Err(e) => Err(e),
                Ok(_) => Err(ProcError::BadImage(format!("process {pid} does not end"))),
            };
        }
        // It ends without a core file, whatever the limits here are.
        let none = tracee.scratch().addr;
        tracee.put(none, &[0_u64; 2])?;
        let args = [0, u64::from(libc::RLIMIT_CORE), none.0, 0, 0, 0];
        tracee.syscall("prlimit64", libc::SYS_prlimit64, args)?;
        let pidfd = pidfd_of(pid)?;
        for thread in tracee.release() {
            thread.set_signal_mask(0)?;
            let send = |signal| {
                let what = format!("end process {pid} by signal {signal}");
                process::kill(pid, signal).map_err(ProcError::system(what))
            };
            if signal == libc::SIGKILL {
                // Nobody can let go of a thread that has been killed, and its parent would not learn of its end; a stopped one
                // executes nothing once it is let go.
                send(libc::SIGSTOP)?;
                thread.detach().map_err(|(_, e)| e)?;
                send(signal)?;
            } else {
                send(signal)?;
                thread.detach().map_err(|(_, e)| e)?;
            }
        }
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        poll(&mut fds, None).map_err(ProcError::system(format!(
            "wait for the end of process {pid}"
        )))?;
        Ok(())
    }

    /// Puts a group in the foreground of its session's terminal.
    fn set_foreground(&mut self, session: i32, fd: i32, group: i32) -> Result<(), ProcError> {
        let mut nodes = self.lineage.nodes.iter();
        let leader = nodes.position(|node| node.kin.pid == session);
        // A group whose last member has ended stays in the foreground; here the leader's has to do.
        let (Some(leader), true) = (leader, group != 0) else {
            return Ok(());
        };
        let leader = self.tracee(leader)?;
        let at = leader.scratch().addr;
        leader.put(at, &group)?;
        // As signals are blocked, it can do so from the background too.
        let args = [fd as u64, libc::TIOCSPGRP, at.0, 0, 0, 0];
        leader.syscall("ioctl TIOCSPGRP", libc::SYS_ioctl, args)?;
        Ok(())
    }

    /// Ends a helper, and has its children, if there are any, pass to this ancestor of it, or to the init if none.
    fn end_helper(&mut self, node: usize, heir: Option<usize>) -> Result<(), ProcError> {
        let pid = self.lineage.nodes[node].kin.pid;
        let parents = self.parents.iter();
        let children: Vec<usize> = parents
            .filter(|&(_, &parent)| parent == node)
            .map(|(&child, _)| child)
            .collect();
        let reaper = heir.filter(|_| !children.is_empty());
        // No other process is a subreaper yet.
        self.be_subreaper(reaper, true)?;
        self.end(node, 0)?;
        self.reap(node, pid)?;
        self.be_subreaper(reaper, false)?;
        for child in children {
            match heir {
                Some(heir) => self.parents.insert(child, heir),
                None => self.parents.remove(&child),
            };
        }
        Ok(())
    }

    fn be_subreaper(&mut self, node: Option<usize>, on: bool) -> Result<(), ProcError> {
        let Some(node) = node else { return Ok(()) };
        let option = libc::PR_SET_CHILD_SUBREAPER as u64;
        let args = [option, u64::from(on), 0, 0, 0, 0];
        let tracee = self.tracee(node)?;
        tracee.syscall("prctl PR_SET_CHILD_SUBREAPER", libc::SYS_prctl, args)?;
        Ok(())
    }

    /// Has the parent of an ended helper take note of its end.
    fn reap(&mut self, node: usize, pid: i32) -> Result<(), ProcError> {
        match self.parents.get(&node).copied() {
            Some(parent) => {
                let args = [pid as u64, 0, libc::__WALL as u64, 0, 0, 0];
                self.tracee(parent)?
                    .syscall("wait4", libc::SYS_wait4, args)?;
                Ok(())
            }
            // This init's own: as its tracer too, it has taken note with the end.
            None => Ok(()),
        }
    }

    /// The tracees of the first `count` nodes, which go on; what happened on the way leaves no signal behind.
    fn finish(mut self, count: usize) -> Result<Vec<Tracee<'static>>, ProcError> {
        let mut tracees = Vec::with_capacity(count);
        for node in 0..count {
            let Some(mut tracee) = self.made.remove(&node) else {
                let pid = self.lineage.nodes[node].kin.pid;
                return Err(ProcError::BadImage(format!("process {pid} was not made")));
            };
            ignore_child_signal(&mut tracee)?;
            tracees.push(tracee);
        }
        Ok(tracees)
    }
}

/// Stops the children that job control had stopped, and continues those that it had continued. Their parents ignore that they are told.
fn stop(tracees: &mut [Tracee<'static>], image: &TreeImage) -> Result<(), ProcError> {
    for (index, process) in image.processes.iter().enumerate() {
        if !process.stops_silently() {
            continue;
        }
        // Parents come before their children.
        let (before, after) = tracees.split_at_mut(index);
        let mut parents = before.iter_mut();
        let parent = parents.find(|parent| parent.pid().0 == process.kin.parent);
        if let (Some(parent), Some(child)) = (parent, after.first_mut()) {
            stops::restore(child, parent, process)?;
        }
    }
    Ok(())
}

/// Discards a pending SIGCHLD: that is what the kernel does with pending signals when they are ignored (sigaction(2)). The
/// dispositions of the image come later.
fn ignore_child_signal(tracee: &mut Tracee<'_>) -> Result<(), ProcError> {
    const IGNORE: u64 = libc::SIG_IGN as u64;
    let at = tracee.scratch().addr;
    tracee.put(at, &[IGNORE, 0, 0, 0])?;
    let args = [libc::SIGCHLD as u64, at.0, 0, 8, 0, 0];
    tracee.syscall("rt_sigaction", libc::SYS_rt_sigaction, args)?;
    Ok(())
}

fn pidfd_of(pid: i32) -> Result<OwnedFd, ProcError> {
    rustix::process::Pid::from_raw(pid)
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
        .map_err(ProcError::system(format!(
            "open a descriptor of process {pid}"
        )))
}
