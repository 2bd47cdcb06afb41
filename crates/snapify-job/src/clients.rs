//! The command line's side: finding an application, and asking its supervisor; or doing without one.

use crate::checkpoint::{
    Application, Ending, Live, Manner, Sequence, clean_up_after_worker, start_worker,
};
use crate::error::JobError;
use crate::events::Observer;
use crate::processes::{ancestors, has_ended, own_process, wait_readable};
use crate::protocol::{ApplicationStatus, CheckpointReport, Reply, Request};
use crate::runtime_dir::{
    RuntimeDir, control_socket, may_be_supervised, remove_stale, supervisor_pid,
};
use crate::signals::{Arrived, Signals};
use snapify_fabric::{Channel, ChannelError};
use snapify_proc::{Declared, External, Obstacle, Outside, Pid, RemoteFd};
use snapify_store::WriteOptions;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A supervisor that takes longer to say what it has stands still, or its card does.
const PATIENCE: Duration = Duration::from_secs(10);

/// What `snapify checkpoint` does.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// The host process, or the supervisor of it.
    pub pid: i32,
    /// The snapshot directory.
    pub dir: PathBuf,
    /// Whether the application ends once the snapshot is committed.
    pub stop: bool,
    /// What becomes of connections to programs that are not part of the application.
    pub outside: Outside,
    /// Whether it goes on before its memory is saved.
    pub live: Live,
    /// The snapshot gets a number greater than this: that of the newest one where copies of the directory's are.
    pub after: u32,
    /// How it follows others.
    pub sequence: Sequence,
    /// How the memory of the host process is written.
    pub write: WriteOptions,
}

/// All running applications of this user.
///
/// # Errors
/// Where the runtime directory cannot be read.
pub fn applications() -> Result<Vec<ApplicationStatus>, JobError> {
    let all = RuntimeDir::open()?.applications()?;
    let found = ask_all(all, Some(PATIENCE))?.into_iter();
    Ok(found.map(|running| running.status).collect())
}

/// A running application.
pub(crate) struct Running {
    pub status: ApplicationStatus,
    /// Inode numbers of the sockets of its host libraries.
    sockets: Vec<u64>,
    pub folder: PathBuf,
}

/// The application that process `pid` is the first process, a host process or the supervisor of.
pub(crate) fn supervisor_of(pid: i32) -> Result<Option<Running>, JobError> {
    let mut folders = RuntimeDir::open()?.applications()?;
    // Others may stand still: they are not asked.
    let ancestors = ancestors(pid);
    folders.retain(|folder| {
        supervisor_pid(folder).is_none_or(|supervisor| ancestors.contains(&supervisor))
    });
    let mut found = ask_all(folders, None)?.into_iter();
    Ok(found.find(|Running { status, .. }| {
        status.pid == pid || status.supervisor == pid || status.hosts.contains(&pid)
    }))
}

/// The running application that process `pid` is the first process, a host process or the supervisor of, and the folder in which what was
/// recorded of its swaps and migrations is kept.
///
/// # Errors
/// Where there is none.
pub fn application_of(pid: i32) -> Result<(ApplicationStatus, PathBuf), JobError> {
    own_process(pid)?;
    let running = supervisor_of(pid)?.ok_or_else(|| no_supervisor(pid))?;
    Ok((running.status, running.folder))
}

fn no_supervisor(pid: i32) -> JobError {
    JobError::Refused(format!(
        "process {pid} has no cards: it was not started by snapify run or snapify restart"
    ))
}

/// Asks the supervisors of these applications, all at once, and waits for their answers; those that take longer than
/// `patience` are left out.
fn ask_all(folders: Vec<PathBuf>, patience: Option<Duration>) -> Result<Vec<Running>, JobError> {
    let mut asked = Vec::new();
    for folder in folders {
        match ask_status(&folder) {
            Ok(channel) => asked.push((channel, folder)),
            Err(ChannelError::Path { source, .. })
                if source.kind() == std::io::ErrorKind::ConnectionRefused
                    && !may_be_supervised(&folder) =>
            {
                // Its supervisor was killed.
                remove_stale(&folder);
            }
            // Just starting or ending.
            Err(_) => {}
        }
    }
    let deadline = patience.map(|patience| Instant::now() + patience);
    let mut found = Vec::new();
    while !asked.is_empty() {
        let fds: Vec<_> = asked.iter().map(|(channel, _)| channel.as_fd()).collect();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ready = wait_readable(&fds, left)?;
        if !ready.contains(&true) {
            break;
        }
        // From the back, so that removing one leaves the places of those before it right.
        for at in (0..asked.len()).rev().filter(|at| ready[*at]) {
            let (channel, folder) = asked.swap_remove(at);
            // Without an answer it is just ending.
            if let Ok((Reply::Status { status, sockets }, _)) = channel.recv() {
                found.push(Running {
                    status,
                    sockets,
                    folder,
                });
            }
        }
    }
    found.sort_by(|one, other| one.folder.cmp(&other.folder));
    Ok(found)
}

/// Asks a supervisor what it has; the answer is to be received.
fn ask_status(folder: &Path) -> Result<Channel, ChannelError> {
    let supervisor = Channel::connect(&control_socket(folder))?;
    supervisor.send(&Request::Status, &[])?;
    Ok(supervisor)
}

/// Says what stands in the way of a snapshot of process `pid`.
///
/// # Errors
/// Where there is no such process, or it is someone else's.
pub fn check(pid: i32) -> Result<Vec<Obstacle>, JobError> {
    own_process(pid)?;
    // The connections to cards and supervisor are the host library's own and stand in nobody's way.
    let running = supervisor_of(pid)?;
    let (pid, declared) = match &running {
        // What is saved is the application.
        Some(running) => (running.status.pid, running.declared()),
        None => (pid, Vec::new()),
    };
    snapify_proc::check_except(Pid(pid), &declared).map_err(|source| JobError::Process {
        member: "the process".into(),
        source,
    })
}

impl Running {
    /// The connections of its host libraries, by the descriptors that lead to them.
    fn declared(&self) -> Vec<Declared> {
        let fds_of = |pid: i32| {
            let entries = std::fs::read_dir(format!("/proc/{pid}/fd"));
            let entries = entries.into_iter().flatten().flatten();
            let found = entries.filter_map(|entry| {
                let link = std::fs::read_link(entry.path()).ok()?;
                let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
                let inode: u64 = inode.parse().ok()?;
                let fd = entry.file_name().to_str()?.parse().ok()?;
                self.sockets.contains(&inode).then_some(RemoteFd(fd))
            });
            found.collect()
        };
        let declared = self.status.hosts.iter().map(|&pid| Declared {
            pid: Pid(pid),
            externals: vec![External {
                key: "connections".into(),
                fds: fds_of(pid),
                mappings: Vec::new(),
            }],
            partners: self
                .status
                .processes
                .iter()
                .map(|process| Pid(process.pid))
                .collect(),
        });
        declared.collect()
    }
}

/// Takes a snapshot of an application.
///
/// # Errors
/// On any failure the application goes on, and nothing is left in the directory.
pub fn checkpoint(
    options: &CheckpointOptions,
    observer: &mut dyn Observer,
) -> Result<CheckpointReport, JobError> {
    checkpoint_with(options, &mut Signals::new()?, observer)
}

/// As [`checkpoint`], called off by `signals`.
pub(crate) fn checkpoint_with(
    options: &CheckpointOptions,
    signals: &mut Signals,
    observer: &mut dyn Observer,
) -> Result<CheckpointReport, JobError> {
    own_process(options.pid)?;
    let dir = std::path::absolute(&options.dir).map_err(|source| JobError::File {
        operation: "use",
        path: options.dir.clone(),
        source,
    })?;
    let request = Request::Checkpoint {
        dir: dir.clone(),
        stop: options.stop,
        outside: options.outside,
        live: options.live,
        after: options.after,
        sequence: options.sequence,
        write: options.write,
    };
    match supervisor_of(options.pid)? {
        Some(Running { folder, .. }) => {
            report_of(ask(&folder, &request, signals, observer, options.pid)?)
        }
        None => plain(options, &dir, signals, observer),
    }
}

/// Asks the supervisor of the application with host process (or supervisor) `pid` for something, and follows it to its end.
pub(crate) fn ask_supervisor(
    pid: i32,
    request: &Request,
    observer: &mut dyn Observer,
) -> Result<Reply, JobError> {
    own_process(pid)?;
    let mut signals = Signals::new()?;
    let Running { folder, .. } = supervisor_of(pid)?.ok_or_else(|| no_supervisor(pid))?;
    ask(&folder, request, &mut signals, observer, pid)
}

fn ask(
    folder: &Path,
    request: &Request,
    signals: &mut Signals,
    observer: &mut dyn Observer,
    pid: i32,
) -> Result<Reply, JobError> {
    let lost = |source| JobError::Connection {
        peer: "the application's supervisor".into(),
        source,
    };
    let mut ask = || {
        let channel = Channel::connect(&control_socket(folder)).map_err(lost)?;
        channel.send(request, &[]).map_err(lost)?;
        follow(&channel, signals, observer, pid)
    };
    match ask() {
        // The supervisor ends with the program, whoever still waits for it; and what stood in the way of a request is often
        // that the program ended.
        Err(JobError::Connection { .. } | JobError::Refused(_)) if has_ended(pid) => {
            Err(JobError::Died { pid })
        }
        reply => reply,
    }
}

fn report_of(reply: Reply) -> Result<CheckpointReport, JobError> {
    match reply {
        Reply::Done { report } => Ok(report),
        other => Err(JobError::Refused(format!(
            "the application's supervisor answered {other:?}"
        ))),
    }
}

/// A process without a supervisor: the worker is ours.
fn plain(
    options: &CheckpointOptions,
    dir: &Path,
    signals: &mut Signals,
    observer: &mut dyn Observer,
) -> Result<CheckpointReport, JobError> {
    let identity = crate::identity::of_process(options.pid)
        .ok_or(JobError::NoSuchProcess { pid: options.pid })?;
    let application = Application {
        host: options.pid,
        agents: Vec::new(),
        cards: Vec::new(),
        daemons: Vec::new(),
        program: identity.command.split(' ').map(str::to_owned).collect(),
        identity,
        folder: None,
        agent_socket: None,
        may_try_again: false,
    };
    let failed = |source| JobError::Connection {
        peer: "the worker".into(),
        source,
    };
    let (ours, theirs) = Channel::pair().map_err(failed)?;
    let manner = Manner {
        stop: options.stop,
        live: options.live,
        outside: options.outside,
        after: options.after,
        sequence: options.sequence,
        write: options.write,
    };
    let worker = start_worker(&application, dir, manner, theirs)?;
    let report = follow(&ours, signals, observer, options.pid).and_then(report_of);
    match (worker.reap(), report) {
        (Ending::Died, Err(JobError::Connection { .. })) => {
            clean_up_after_worker(options.pid);
            Err(JobError::Member {
                member: "the process that took the checkpoint".into(),
                why: "it died; no snapshot was made".into(),
            })
        }
        (_, report) => report,
    }
}

/// Follows what was asked for to its end. A signal calls it off, and its being undone is waited for.
fn follow(
    channel: &Channel,
    signals: &mut Signals,
    observer: &mut dyn Observer,
    pid: i32,
) -> Result<Reply, JobError> {
    loop {
        let ready = wait_readable(&[channel.as_fd(), signals.as_fd()], None)?;
        if ready.get(1) == Some(&true) && signals.take().iter().any(Arrived::calls_off) {
            // Whoever does the work sees the end of what we have to say, and still answers.
            let _ = rustix::net::shutdown(channel, rustix::net::Shutdown::Write);
        }
        if ready.first() != Some(&true) {
            continue;
        }
        match channel.recv().map_err(|source| JobError::Connection {
            peer: format!("what works on process {pid}"),
            source,
        })? {
            (Reply::Event { event }, _) => observer.event(event),
            (Reply::Failed { message }, _) => return Err(JobError::Refused(message)),
            (Reply::Status { .. }, _) => {}
            (done, _) => return Ok(done),
        }
    }
}
