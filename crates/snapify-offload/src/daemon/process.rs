//! An offload process as the daemon has it: launching, its agent, its end.

use super::supervisors::{HostKey, ProcessKey};
use super::{Daemon, duplicate};
use crate::control::{CardToSupervisor, PausedProcess, ProcessState, VERSION};
use crate::engine::{Child, EngineError, External, LaunchSpec};
use crate::layout::{
    BOUNCE, BOUNCE_BYTES, COMMAND_RING, CONTROL_FD, MAX_PIPELINES, PROGRAM_FD, RING_BYTES,
    SERVER_STACK, STORE_BYTES, STORE_FD,
};
use crate::wire::{CardReply, CardToHost, CardToSink, ProgramSpec, SinkToCard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::Resource;
use snapify_fabric::{Channel, ChannelError, SharedFile};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// Room for what the C library, libomp and the program itself need, beyond the card's memory.
const OWN_DATA: u64 = 64 << 20;

/// What a host process wants to be started.
pub struct Launch {
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// What it executes, if not the runtime's own program.
    pub program: Option<ProgramSpec>,
    /// Standard output, standard error, the executable.
    pub fds: Vec<OwnedFd>,
}

/// Who waits for an answer that comes later.
#[derive(Clone, Copy, Debug)]
pub enum Pending {
    /// Its host process, with the request of this number.
    Host(u64),
    /// Its supervisor, which has asked for it to be restored.
    Supervisor,
}

/// An offload process.
pub struct OffloadProcess {
    pub child: Box<dyn Child>,
    /// To its agent. Nothing once the agent has closed it: the process is ending.
    pub control: Option<Channel>,
    pub store: SharedFile,
    /// Connection of its host process; nothing for a restored process that was not adopted yet.
    pub host: Option<HostKey>,
    pub state: ProcessState,
    /// The request that its agent, its end, or the end of its filling will answer.
    pub pending: Option<Pending>,
    /// What its agent declared its own, when it was last paused.
    pub externals: Vec<External>,
    /// Who saves it now.
    pub capture: Option<super::capture::Capture>,
    /// Who fills its local store, after it was rebuilt.
    pub filling: Option<super::fill::Filling>,
    /// When the engine was done with a process that was rebuilt, as `CLOCK_MONOTONIC` shows it.
    pub rebuilt: u64,
    /// How it ended while it was being saved: told when its saver has said why.
    pub ended: Option<ExitStatus>,
    /// What it said when it could not begin.
    pub complaint: Option<String>,
}

impl OffloadProcess {
    /// Bytes of card memory that its local store takes.
    pub fn store_bytes(&self) -> u64 {
        self.store.allocated().unwrap_or(0)
    }
}

impl Daemon {
    /// Makes a local store with room for what the process itself needs of it.
    pub(super) fn new_store(&self) -> Result<SharedFile, String> {
        let store =
            SharedFile::create_in(&self.scratch, STORE_BYTES).map_err(|error| error.to_string())?;
        for (offset, bytes) in [(COMMAND_RING, RING_BYTES), (BOUNCE, BOUNCE_BYTES)] {
            store
                .reserve(offset, bytes)
                .map_err(|error| error.to_string())?;
        }
        Ok(store)
    }

    /// Starts an offload process for a host process. The answer follows when the process is ready.
    pub(super) fn launch(
        &mut self,
        host: HostKey,
        request: u64,
        id: ProcessKey,
        launch: Launch,
    ) -> Result<(), String> {
        if self.processes.contains_key(&id) {
            return Err(format!("there is an offload process {id} already"));
        }
        let Launch { env, program, fds } = launch;
        let mut fds = fds.into_iter();
        let executable = match program {
            Some(_) => fds.next_back(),
            None => None,
        };
        let (Some(stdout), Some(stderr), None) = (fds.next(), fds.next(), fds.next()) else {
            return Err("a launch needs standard output and error".into());
        };
        let store = self.new_store()?;
        let (ours, theirs) = Channel::pair().map_err(|error| error.to_string())?;
        let null = std::fs::File::open("/dev/null")
            .map_err(|error| format!("cannot open /dev/null: {error}"))?;
        let mut fds = vec![
            (null.into(), 0),
            (stdout, 1),
            (stderr, 2),
            (theirs.into(), CONTROL_FD),
            (duplicate(&store)?, STORE_FD),
        ];
        let (file, args) = match program {
            Some(program) => {
                let given = executable.ok_or("a launch of a program needs its file")?;
                let copy = copy_program(&program.name, given, self.memory)?;
                fds.push((copy, PROGRAM_FD));
                let args = std::iter::once(program.name).chain(program.args);
                (
                    format!("/proc/self/fd/{PROGRAM_FD}").into(),
                    args.map(OsString::from).collect(),
                )
            }
            None => {
                let name = self.offload_process.file_name().unwrap_or_default();
                let args = vec![
                    name.to_owned(),
                    format!("card{}", self.index).into(),
                    id.to_string().into(),
                ];
                (self.offload_process.clone(), args)
            }
        };
        let spec = LaunchSpec {
            program: file,
            args,
            env: self.environment(env),
            fds,
            data_limit: Some(self.data_limit()),
        };
        let mut child = self.engine.launch(spec).map_err(words)?;
        if let Err(error) = child.start() {
            child.kill();
            return Err(words(error));
        }
        let process = OffloadProcess {
            child,
            control: Some(ours),
            store,
            host: Some(host),
            state: ProcessState::Starting,
            pending: Some(Pending::Host(request)),
            externals: Vec::new(),
            capture: None,
            filling: None,
            rebuilt: 0,
            ended: None,
            complaint: None,
        };
        self.processes.insert(id, process);
        Ok(())
    }

    /// The environment of an offload process: the host process's, but for what concerns only the host.
    fn environment(&self, env: Vec<(String, String)>) -> Vec<(OsString, OsString)> {
        const NOT_FOR_CARDS: [&str; 6] = [
            "LD_PRELOAD",
            "LD_AUDIT",
            "OMP_TARGET_OFFLOAD",
            "OMP_DEFAULT_DEVICE",
            "TMPDIR",
            crate::control::CONTROL_ENV,
        ];
        let mut search = self
            .libraries
            .iter()
            .map(|path| path.clone().into_os_string())
            .collect::<Vec<_>>();
        let mut kept: Vec<(OsString, OsString)> = Vec::new();
        for (name, value) in env {
            if name == "LD_LIBRARY_PATH" {
                search.push(value.into());
            } else if !NOT_FOR_CARDS.contains(&&*name) {
                kept.push((name.into(), value.into()));
            }
        }
        kept.push(("TMPDIR".into(), self.scratch.clone().into()));
        if !search.is_empty() {
            kept.push(("LD_LIBRARY_PATH".into(), search.join(":".as_ref())));
        }
        kept
    }

    /// Limits of private writable memory: as much as the card has, and what the runtime itself takes. Stacks of
    /// server threads count with their whole length; the process raises the soft limit as it starts them.
    fn data_limit(&self) -> (u64, u64) {
        let soft = self.memory.saturating_add(OWN_DATA);
        let hard = soft.saturating_add((MAX_PIPELINES as u64 + 1) * SERVER_STACK as u64);
        let ours = rustix::process::getrlimit(Resource::Data)
            .maximum
            .unwrap_or(u64::MAX);
        (soft.min(ours), hard.min(ours))
    }

    /// Sends a process's agent a message that has no answer.
    pub(super) fn tell_sink(&self, id: ProcessKey, message: CardToSink) -> Result<(), String> {
        let process = self.processes.get(&id).ok_or_else(|| unknown(id))?;
        let control = process.control.as_ref();
        let control = control.ok_or_else(|| format!("offload process {id} is ending"))?;
        control
            .send_now(&message, &[])
            .map_err(|error| format!("offload process {id}: {error}"))
    }

    /// Sends a process's agent a message; the answer comes later.
    pub(super) fn ask(
        &mut self,
        id: ProcessKey,
        request: u64,
        message: CardToSink,
        fds: &[OwnedFd],
    ) -> Result<(), String> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let process = self.processes.get_mut(&id).ok_or_else(|| unknown(id))?;
        if process.pending.is_some() {
            return Err(format!(
                "offload process {id} has not answered the last request yet"
            ));
        }
        let control = process
            .control
            .as_ref()
            .ok_or_else(|| format!("offload process {id} is ending"))?;
        control
            .send_now(&message, &fds)
            .map_err(|error| format!("offload process {id}: {error}"))?;
        process.pending = Some(Pending::Host(request));
        Ok(())
    }

    /// Takes a message of a process's agent.
    pub(super) fn hear(&mut self, id: ProcessKey) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let Some(control) = &process.control else {
            return;
        };
        let message = match control.recv::<SinkToCard>() {
            Ok((message, _)) => message,
            Err(ChannelError::Closed) => {
                process.control = None;
                return;
            }
            Err(error) => {
                process.complaint = Some(error.to_string());
                process.control = None;
                process.child.kill();
                return;
            }
        };
        let (reply, fds) = match message {
            SinkToCard::Ready { version } if version == VERSION => {
                process.state = ProcessState::Running;
                let pid = process.child.pid();
                match duplicate(&process.store) {
                    Ok(store) => (Ok(CardReply::Launched { pid }), vec![store]),
                    Err(why) => (Err(why), Vec::new()),
                }
            }
            SinkToCard::Ready { version } => {
                process.child.kill();
                process.complaint = Some(format!(
                    "the program speaks version {version} of the protocol, its card {VERSION}"
                ));
                return;
            }
            SinkToCard::Failed(why) => {
                process.complaint = Some(why);
                return;
            }
            SinkToCard::Paused { externals } => {
                process.state = ProcessState::Paused;
                process.externals = externals;
                let process = self.describe(id);
                (
                    process
                        .map(|process| CardReply::Paused { process })
                        .ok_or_else(|| unknown(id)),
                    Vec::new(),
                )
            }
            SinkToCard::Resumed => {
                process.state = ProcessState::Running;
                self.absent.remove(&id);
                (Ok(CardReply::Resumed), Vec::new())
            }
            SinkToCard::Signal(event) => {
                if let Some(host) = process.host {
                    let id = id.id;
                    self.tell(host, &CardToHost::Signal { id, event }, &[]);
                }
                return;
            }
        };
        self.answer(id, reply, &fds);
    }

    /// A process as other parties are told of it.
    pub(super) fn describe(&self, id: ProcessKey) -> Option<PausedProcess> {
        self.processes.get(&id).map(|process| PausedProcess {
            id: id.id,
            card: self.index,
            pid: process.child.pid(),
            store_bytes: process.store_bytes(),
            in_flight: Vec::new(),
            steps: Vec::new(),
            swapped_out: None,
        })
    }

    /// Answers the request that waits for a process.
    pub(super) fn answer(
        &mut self,
        id: ProcessKey,
        result: Result<CardReply, String>,
        fds: &[OwnedFd],
    ) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        match (process.pending.take(), process.host) {
            (Some(Pending::Host(request)), Some(host)) => {
                self.tell(host, &CardToHost::Reply { request, result }, fds);
            }
            (Some(Pending::Supervisor), _) => {
                let told = result.and_then(|reply| {
                    let process = self.describe(id).ok_or_else(|| unknown(id))?;
                    match reply {
                        CardReply::Restored { steps, .. } => Ok(PausedProcess { steps, ..process }),
                        _ => Ok(process),
                    }
                });
                let answer = match told {
                    Ok(process) => CardToSupervisor::Restored { process },
                    Err(message) => CardToSupervisor::Failed { message },
                };
                self.tell_supervisor(id.supervisor, &answer, fds);
            }
            _ => {}
        }
    }

    /// A process may have ended.
    pub(super) fn check_end(&mut self, id: ProcessKey) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let status = match process.child.try_wait() {
            Ok(Some(status)) => status,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!("offload process {id}: {error}");
                ExitStatus::from_raw(libc::SIGKILL)
            }
        };
        // What it said before comes first: that it is ready, or why it ends.
        let speaks = |process: &OffloadProcess| process.control.as_ref().is_some_and(readable);
        while self.processes.get(&id).is_some_and(speaks) {
            self.hear(id);
        }
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        process.ended = Some(status);
        if let Some(filling) = process.filling.take() {
            filling.abort();
            let _ = filling.finish();
        }
        if process.capture.is_none() {
            self.bury(id, status);
        }
    }

    /// Forgets a process that has ended, and tells who must know.
    pub(super) fn bury(&mut self, id: ProcessKey, status: ExitStatus) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let how = match (&process.complaint, status.signal()) {
            (Some(why), _) => why.clone(),
            (None, Some(signal)) => format!("it was killed by signal {signal}"),
            (None, None) => format!("it exited with status {}", status.code().unwrap_or(-1)),
        };
        let (state, host, waits) = (process.state, process.host, process.pending.is_some());
        match state {
            ProcessState::Ending => self.answer(id, Ok(CardReply::Destroyed), &[]),
            ProcessState::Starting => {
                self.answer(
                    id,
                    Err(format!("the offload process did not start: {how}")),
                    &[],
                );
            }
            _ => {
                if let Some(host) = host {
                    let died = CardToHost::Died {
                        id: id.id,
                        signal: status.signal(),
                        status: status.code(),
                    };
                    self.tell(host, &died, &[]);
                }
                if waits {
                    self.answer(id, Err(format!("the offload process ended: {how}")), &[]);
                }
            }
        }
        self.processes.remove(&id);
    }

    /// Ends a process. The rest follows when it is gone.
    pub(super) fn end(&mut self, id: ProcessKey) {
        if let Some(process) = self.processes.get_mut(&id) {
            if process.state == ProcessState::Restored {
                self.forget_unstarted(id, Ok(CardReply::Destroyed));
                return;
            }
            process.state = ProcessState::Ending;
            // Before its saver, without which it would run on.
            process.child.kill();
            if let Some(capture) = &process.capture {
                capture.abort();
            }
        }
    }
}

/// The executable in a file of this card that nobody can write to: the kernel executes no other (`ETXTBSY`), and
/// the host process's own may be open anywhere.
fn copy_program(name: &str, from: OwnedFd, most: u64) -> Result<OwnedFd, String> {
    let failed = |error: io::Error| format!("cannot copy the program {name}: {error}");
    let from = File::from(from);
    let bytes = from.metadata().map_err(failed)?.len();
    if bytes > most {
        return Err(format!(
            "the program {name} has {bytes} bytes and the card {most}"
        ));
    }
    let executable = MemfdFlags::CLOEXEC | MemfdFlags::from_bits_retain(libc::MFD_EXEC);
    let label = name.replace('\0', "");
    // What the kernel allows for such a file's name.
    let label: String = label.chars().take(60).collect();
    let made = match rustix::fs::memfd_create(&*label, executable) {
        // Before Linux 6.3.
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(&*label, MemfdFlags::CLOEXEC),
        other => other,
    };
    let mut copy = File::from(made.map_err(|errno| failed(errno.into()))?);
    io::copy(&mut from.take(bytes), &mut copy).map_err(failed)?;
    let read_only = File::open(format!("/proc/self/fd/{}", copy.as_raw_fd())).map_err(failed)?;
    Ok(read_only.into())
}

/// Whether there is a message, or the end of the connection, to be received without waiting.
fn readable(channel: &Channel) -> bool {
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut fds, Some(&now)), Ok(1..))
}

pub(super) fn unknown(id: ProcessKey) -> String {
    format!("there is no offload process {id} on this card")
}

/// An engine's error with its causes.
pub(super) fn words(error: EngineError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let source_text = source.to_string();
        // Many errors name their cause themselves.
        if !text.contains(&source_text) {
            text = format!("{text}: {source_text}");
        }
        cause = source.source();
    }
    text
}
