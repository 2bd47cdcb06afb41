//! What stands in the way of a snapshot, as `/proc` shows it. Nothing is stopped for this.
//!
//! What a process as a whole does (its children, namespaces, owner) is looked at here; descriptors,
//! timers and mappings are judged by their own modules, with the same code that saves them.

use crate::capture::{CaptureContext, Gathered};
use crate::context;
use crate::error::{Obstacle, ProcError};
use crate::external::{Declared, External, MappedFiles, Outside, declared_by};
use crate::files::survey::{Subject, Survey};
use crate::freeze::leader_has_ended;
use crate::ids::{Pid, Tid};
use crate::procfs::ProcDir;
use crate::procfs::status::Status;
use crate::seccomp;
use crate::timers;
use crate::tree::{self, Member};
use crate::user_ns;
use snapify_sys::kcmp::{Kind, kcmp};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};

/// Lists all that is known from `/proc` to stand in the way of saving process `pid` and all its descendants, without
/// stopping them. Processes that run may change meanwhile: a capture looks again.
///
/// # Errors
/// If there is no such process.
pub fn check(pid: Pid) -> Result<Vec<Obstacle>, ProcError> {
    check_except(pid, &[])
}

/// As [`check`], for processes whose agents have declared these objects as their own.
///
/// # Errors
/// If there is no such process.
pub fn check_except(pid: Pid, declared: &[Declared]) -> Result<Vec<Obstacle>, ProcError> {
    /// How often it is looked again when a descendant has ended meanwhile.
    const TRIES: usize = 50;
    let proc = ProcDir::open(pid)?;
    let mut result = look(&proc, declared);
    for _ in 1..TRIES {
        match result {
            Err(_) if !has_ended(&proc) => result = look(&proc, declared),
            _ => break,
        }
    }
    result
}

fn look(proc: &ProcDir, declared: &[Declared]) -> Result<Vec<Obstacle>, ProcError> {
    let pid = proc.pid();
    if let Some(why) = hopeless(pid, &proc.status()?) {
        return Ok(vec![Obstacle::new(format!("process {pid}"), why)]);
    }
    let mut members = HashMap::new();
    let mut living = Vec::new();
    for member in tree::find(pid)? {
        // Processes end at any time.
        let Ok(proc) = standing_for(member.pid()) else {
            continue;
        };
        let Ok(status) = proc.status() else { continue };
        members.insert(member.pid(), status.inner_tgid());
        members.insert(proc.pid(), status.inner_tgid());
        if let Member::Living(_) = member {
            living.push((proc, status));
        }
    }
    let gathered = Gathered::new(members.clone(), &BTreeMap::new());
    let mut mapped = MappedFiles::default();
    for (proc, status) in &living {
        let own = (declared_by(declared, proc.pid()), &mut mapped);
        let result = check_one(proc, status, own, &gathered, |pid| {
            members.contains_key(&pid)
        });
        match result {
            Err(error) if proc.pid() == pid || !has_ended(proc) => return Err(error),
            _ => {}
        }
    }
    let subjects: Vec<Subject<'_>> = living
        .iter()
        .map(|(proc, status)| Subject {
            proc,
            inner_pid: status.inner_tgid(),
        })
        .collect();
    let (_, mut obstacles) = gathered.finish();
    if obstacles.iter().all(|obstacle| obstacle.why != CLOSED) {
        obstacles.extend(
            Survey::new(&subjects, None, members, declared, Outside::Refuse)?.into_obstacles(),
        );
    }
    Ok(obstacles)
}

/// The directory of a process, or of one of its threads if the first has ended: of that the kernel shows next to nothing.
fn standing_for(pid: Pid) -> Result<ProcDir, ProcError> {
    let proc = ProcDir::open(pid)?;
    if !leader_has_ended(pid) {
        return Ok(proc);
    }
    let lives = |tid: &Tid| {
        proc.thread_status(*tid)
            .is_ok_and(|status| !status.is_dead())
    };
    match proc.threads()?.into_iter().find(lives) {
        Some(tid) => ProcDir::open(Pid(tid.0)),
        None => Ok(proc),
    }
}

const CLOSED: &str = "it may not be looked at: it has privileges that you lack, or has forbidden it (PR_SET_DUMPABLE)";

fn has_ended(proc: &ProcDir) -> bool {
    proc.status().map_or(true, |status| status.is_dead())
}

/// What stands in the way of saving one of the processes, but for its descriptors; it has declared its `own`, and parents come
/// before their children.
fn check_one(
    proc: &ProcDir,
    status: &Status,
    (own, mapped): (&[External], &mut MappedFiles),
    gathered: &Gathered,
    is_member: impl Fn(Pid) -> bool,
) -> Result<(), ProcError> {
    let pid = proc.pid();
    let whole = |why: &str| Obstacle::new(format!("process {pid}"), why);
    if let Some(why) = hopeless(pid, status) {
        gathered.refuse(whole(&why));
        return Ok(());
    }
    let outer = proc.threads()?;
    let mut threads = Vec::with_capacity(outer.len());
    for &tid in &outer {
        // Threads end at any time.
        if let Ok(status) = proc.thread_status(tid)
            && !status.is_dead()
        {
            threads.push((tid, status.inner_tid()));
        }
    }
    let mut maps = match proc.smaps() {
        Ok(maps) => maps,
        Err(error) if error.errno() == Some(libc::EACCES) => {
            gathered.refuse(whole(CLOSED));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    crate::memory::names::find(&mut maps);
    mapped.note(own, &maps);
    let externals = mapped.of(own, &maps);
    let ctx = CaptureContext {
        pid,
        proc,
        status,
        maps: &maps,
        threads: &threads,
        externals: &externals,
        gathered,
    };
    let mut obstacles = frozen(&ctx, is_member)?;
    if is_32_bit(proc) {
        obstacles.push(whole("it is a 32-bit program, which is not supported"));
    }
    obstacles.extend(context::lost_directory(
        &proc.link("cwd")?,
        &proc.stat_of("cwd")?,
    ));
    obstacles.extend(crate::memory::obstacles(&ctx));
    for timer in proc.timers()? {
        obstacles.extend(timers::is_supported(timer.id, timer.clock, threads.len()).err());
    }
    obstacles
        .into_iter()
        .for_each(|obstacle| ctx.refuse(obstacle));
    Ok(())
}

/// Why there is no use in looking any further.
fn hopeless(pid: Pid, status: &Status) -> Option<String> {
    let ours = rustix::process::geteuid().as_raw();
    let ids = &status.uid;
    if status.tgid != pid && !leader_has_ended(status.tgid) {
        Some(format!(
            "it is a thread of process {}, not a process",
            status.tgid
        ))
    } else if pid.0.cast_unsigned() == std::process::id() {
        Some("it is this program itself".into())
    } else if status.kernel_thread {
        Some("it is a thread of the kernel".into())
    } else if status.is_dead() && status.threads <= 1 {
        Some("it has ended".into())
    } else if status.tracer != 0 {
        Some(format!("it is being traced by process {}", status.tracer))
    } else if ids.single() != Some(ours) && ids.real != ours {
        Some(format!(
            "it belongs to user {}, and this is user {ours}",
            ids.real
        ))
    } else {
        None
    }
}

/// Lists what stands in the way of saving a process as a whole, beyond what the capture of each
/// kind of object refuses itself. Used on a frozen process as well.
///
/// # Errors
/// If it is killed meanwhile.
pub(crate) fn frozen(
    ctx: &CaptureContext<'_>,
    is_member: impl Fn(Pid) -> bool,
) -> Result<Vec<Obstacle>, ProcError> {
    let whole = format!("process {}", ctx.pid);
    let mut obstacles = Vec::new();
    let mut refuse = |why: &str| obstacles.push(Obstacle::new(&whole, why));
    let status = ctx.status;
    if status.uid.single() != Some(rustix::process::geteuid().as_raw()) {
        refuse(
            "not all of its user ids are yours: it belongs to another user or changes between two",
        );
    }
    if status.gid.single().is_none() {
        refuse("its real, effective and saved group ids are not the same, which is not supported");
    }
    match user_ns::inner_owner(ctx.proc, status)? {
        Some(owner) => {
            if is_member(status.parent) && owner_of(status.parent).is_some_and(|of| of != owner) {
                refuse("it lives in another user namespace than its parent, with other ids");
            }
        }
        None => refuse("its user and group have no ids in the user namespace that it lives in"),
    }
    if status.inner_tgid().0 == 1 {
        refuse("it is the first process of its PID namespace, whose number cannot be had again");
    }
    if let Some(why) = seccomp::obstacle(status) {
        refuse(why);
    }
    if status.shadow_stack {
        refuse("it has user-mode shadow stacks (CET), which are not supported");
    }
    if is_elsewhere(ctx, "root", "/")? {
        refuse("its root directory is another (chroot), which is not supported");
    }
    for (name, what) in [("net", "network"), ("uts", "host name")] {
        let path = format!("ns/{name}");
        if is_elsewhere(ctx, &path, &format!("/proc/self/{path}"))? {
            refuse(&format!(
                "it lives in another {what} namespace than this program, as in a container"
            ));
        }
    }
    // A restored process is in a time namespace of its own; only the numbers of its clocks are saved.
    if ctx.proc.link("ns/time").ok() != ctx.proc.link("ns/time_for_children").ok() {
        refuse("it has made another time namespace for its children, which is not supported");
    }
    if !is_member(status.parent) && shares_memory_with(ctx.pid, status.parent) {
        refuse(
            "it shares its memory with its parent (vfork or CLONE_VM), which is not to be saved with it",
        );
    }
    obstacles.extend(threads(ctx)?);
    Ok(obstacles)
}

/// What the owner of a process is called in its user namespace, if that can be told.
fn owner_of(pid: Pid) -> Option<(u32, u32)> {
    let proc = ProcDir::open(pid).ok()?;
    let status = proc.status().ok().filter(|status| !status.is_dead())?;
    user_ns::inner_owner(&proc, &status).ok()?
}

/// Whether a link of the process leads to another object than a path of ours. What does not exist
/// in this kernel is nowhere else.
fn is_elsewhere(ctx: &CaptureContext<'_>, link: &str, path: &str) -> Result<bool, ProcError> {
    let theirs = match ctx.proc.stat_of(link) {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(false),
        other => other?,
    };
    let ours = rustix::fs::stat(path).map_err(ProcError::file("look at", path))?;
    Ok((theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino))
}

fn shares_memory_with(pid: Pid, other: Pid) -> bool {
    other.0 > 0 && kcmp(pid.0, other.0, Kind::Vm, 0, 0).is_ok_and(Ordering::is_eq)
}

/// What threads do not share with the first one although an image supposes that they do.
fn threads(ctx: &CaptureContext<'_>) -> Result<Vec<Obstacle>, ProcError> {
    let mut obstacles = Vec::new();
    let leader = ctx.pid.leader();
    for &(tid, _) in ctx.threads.iter().filter(|(tid, _)| *tid != leader) {
        let mut refuse = |why: &str| {
            obstacles.push(Obstacle::new(
                format!("thread {tid}"),
                format!("{why}, which is not supported"),
            ))
        };
        let status = match ctx.proc.thread_status(tid) {
            Ok(status) => status,
            // While the process runs, threads may end. Of a frozen one they may only if it is
            // killed, and that shows elsewhere.
            Err(ProcError::Proc { source, .. }) if is_gone(&source) => continue,
            Err(error) => return Err(error),
        };
        let credentials = |s: &Status| (s.uid, s.gid, s.caps, s.no_new_privs);
        if credentials(&status) != credentials(ctx.status) {
            refuse("its user ids or privileges are not those of the first thread");
        }
        let filters = |s: &Status| (s.seccomp, s.seccomp_filters);
        if filters(&status) != filters(ctx.status) {
            refuse(
                "its system calls are restricted by seccomp, and others than those of the first thread",
            );
        }
        if has_own(leader, tid, Kind::Files) {
            refuse("it has descriptors of its own (CLONE_FILES)");
        }
        if has_own(leader, tid, Kind::Fs) {
            refuse("it has a working directory and umask of its own (CLONE_FS)");
        }
    }
    Ok(obstacles)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Whether a thread has another object than the leader. Where the kernel does not tell, threads are
/// as threads usually are.
fn has_own(leader: Tid, thread: Tid, kind: Kind) -> bool {
    kcmp(leader.0, thread.0, kind, 0, 0).is_ok_and(Ordering::is_ne)
}

/// Whether the executable is of the 32-bit kind (byte `EI_CLASS` of elf(5)).
fn is_32_bit(proc: &ProcDir) -> bool {
    let mut start = [0; 5];
    let read = proc
        .open_file("exe")
        .is_ok_and(|mut file| file.read_exact(&mut start).is_ok());
    read && start == [0x7f, b'E', b'L', b'F', 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A process that waits for its standard input, ended when this is dropped.
    struct Program(Child);

    impl Program {
        fn start(program: &str, args: &[&str]) -> Self {
            // What whoever runs the tests has left open for us is none of the program's business.
            snapify_sys::process::close_all_on_exec(3).unwrap();
            let mut command = Command::new(program);
            command
                .args(args)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            Self(command.spawn().unwrap())
        }

        fn pid(&self) -> Pid {
            Pid(self.0.id().cast_signed())
        }
    }

    impl Drop for Program {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn until(mut ready: impl FnMut() -> bool) {
        let begin = std::time::Instant::now();
        while !ready() {
            assert!(begin.elapsed().as_secs() < 60);
            std::thread::yield_now();
        }
    }

    fn exec_done(pid: Pid, name: &[u8]) -> bool {
        ProcDir::open(pid).unwrap().stat().unwrap().comm == name
    }

    #[test]
    fn nothing_stands_in_the_way_of_a_plain_program() {
        let program = Program::start("cat", &[]);
        until(|| exec_done(program.pid(), b"cat"));
        assert_eq!(check(program.pid()).unwrap(), []);
    }

    #[test]
    fn children_are_looked_at_too() {
        let script = "exec 7<>/dev/full; (exec 8<>/dev/kmsg; sleep 1000); true";
        let program = Program::start("sh", &["-c", script]);
        let descendants = || tree::find(program.pid()).unwrap();
        until(|| {
            descendants()
                .last()
                .is_some_and(|last| exec_done(last.pid(), b"sleep"))
        });
        let obstacles = check(program.pid()).unwrap();
        assert!(
            obstacles.iter().any(|o| o.object.contains("/dev/kmsg")),
            "{obstacles:?}"
        );
        for member in descendants().iter().skip(1) {
            snapify_sys::process::kill(member.pid().0, libc::SIGKILL).unwrap();
        }
    }

    #[test]
    fn the_hopeless_are_told_so() {
        let us = Pid(std::process::id().cast_signed());
        assert!(check(us).unwrap()[0].why.contains("this program itself"));
        assert!(check(Pid(i32::MAX)).is_err());
        let mut program = Program::start("true", &[]);
        let pid = program.pid();
        until(|| ProcDir::open(pid).unwrap().status().unwrap().is_dead());
        assert!(check(pid).unwrap()[0].why.contains("has ended"));
        program.0.wait().unwrap();
        assert!(check(pid).is_err());
    }
}
