//! The host processes of an application: the program itself, or processes that it has started. All are paused before anything is
//! saved, and go on when all of it is.

use super::pause::Pause;
use super::{Application, HostAgent};
use crate::error::JobError;
use crate::link::Link;
use crate::processes::{descendant, own_process};
use crate::snapshot::host_key;
use crate::timing;
use snapify_offload::control::PausedProcess;
use snapify_offload::engine::External;
use snapify_proc::{Declared, Frozen, Pid};
use snapify_report::{Actor, Moment, Recorder};
use std::os::fd::OwnedFd;

/// A paused host process.
pub(super) struct PausedHost<'a> {
    pub pid: i32,
    /// A handle of the process.
    pub handle: OwnedFd,
    pub pause: Pause<'a>,
    pub processes: Vec<PausedProcess>,
    externals: Vec<External>,
}

/// All of an application. Dropping it lets them go on.
#[derive(Default)]
pub(super) struct PausedHosts<'a> {
    hosts: Vec<PausedHost<'a>>,
}

impl<'a> PausedHosts<'a> {
    /// Has all host libraries drain their channels, all at the same time, and waits until they have.
    pub(super) fn begin(
        agents: &[HostAgent<'a>],
        link: &Link,
        recorder: &Recorder,
    ) -> Result<Self, JobError> {
        let begin = Moment::now();
        let mut asked = Vec::with_capacity(agents.len());
        for &agent in agents {
            let handle = own_process(agent.pid)?;
            asked.push((agent.pid, handle, Moment::now(), Pause::ask(agent)?));
        }
        let mut hosts = Vec::with_capacity(agents.len());
        for (pid, handle, moment, pause) in asked {
            let paused = pause.paused(link, &handle)?;
            timing::note_pause(recorder, &paused.processes, moment);
            hosts.push(PausedHost {
                pid,
                handle,
                pause,
                processes: paused.processes,
                externals: paused.externals,
            });
        }
        recorder.since(Actor::Coordinator, "pause", begin);
        Ok(Self { hosts })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// The hosts, in the order in which a snapshot numbers them.
    pub(super) fn all(&self) -> &[PausedHost<'a>] {
        &self.hosts
    }

    /// All offload processes, with the number of the host of each.
    pub(super) fn processes(&self) -> impl Iterator<Item = (usize, &PausedProcess)> {
        let numbered = self.hosts.iter().enumerate();
        numbered.flat_map(|(number, host)| host.processes.iter().map(move |one| (number, one)))
    }

    /// What their agents have declared, under names that are different in all of them. Their offload processes, below these
    /// `daemons` of the cards, have the same standard output and error.
    pub(super) fn declared(&self, daemons: &[i32]) -> Vec<Declared> {
        let partner = |process: &PausedProcess| {
            let daemon = daemons.get(process.card as usize)?;
            descendant(*daemon, process.pid).map(Pid)
        };
        let numbered = self.hosts.iter().enumerate();
        let declared = numbered.map(|(number, host)| Declared {
            pid: Pid(host.pid),
            externals: host
                .externals
                .iter()
                .map(|external| {
                    let mut external = crate::engine::external(external);
                    external.key = host_key(number, &external.key);
                    external
                })
                .collect(),
            partners: host.processes.iter().filter_map(partner).collect(),
        });
        declared.collect()
    }

    /// Lets all go on.
    pub(super) fn end(&mut self, link: &Link) -> Result<(), JobError> {
        let outcomes: Vec<_> = self
            .hosts
            .drain(..)
            .map(|host| host.pause.end(link, &host.handle))
            .collect();
        outcomes.into_iter().collect()
    }

    /// There is nothing to resume any more.
    pub(super) fn forget(&mut self) {
        self.hosts.drain(..).for_each(|host| host.pause.forget());
    }
}

/// Makes sure that all host processes are among those that stand still: what they have on cards belongs to them.
///
/// # Errors
/// If one has ended meanwhile, or is no descendant of the program.
pub(super) fn are_all_here(application: &Application<'_>, frozen: &Frozen) -> Result<(), JobError> {
    let is_here = |agent: &&HostAgent<'_>| frozen.processes().any(|pid| pid.0 == agent.pid);
    let Some(missing) = application.agents.iter().find(|agent| !is_here(agent)) else {
        return Ok(());
    };
    let (pid, host) = (missing.pid, application.host);
    if crate::processes::has_ended(pid) {
        return Err(JobError::Died { pid });
    }
    Err(JobError::Refused(format!(
        "process {pid} uses cards, but is not a descendant of process {host} any more: it would not be saved"
    )))
}
