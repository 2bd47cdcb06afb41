//! What a restart needs, found out before anything is created.

use super::RestartOptions;
use crate::error::JobError;
use crate::registration::Registration;
use crate::shared_cards::Wanted;
use crate::snapshot::{HOST, JOB_FILE, Job, PAGES_FILE, PROCESS_FILE, STORE_FILE, offload_member};
use crate::supervisor::House;
use snapify_offload::control::ProcessId;
use snapify_proc::TreeImage;
use snapify_proc::image::relocate::led;
use snapify_store::Snapshot;
use std::fs::File;
use std::path::{Path, PathBuf};

/// What is restarted, and on which cards.
pub(super) struct Plan {
    pub dir: PathBuf,
    pub snapshot: Snapshot,
    pub job: Job,
    pub image: TreeImage,
    /// The processes that are connected with cards, by the ids that they have for themselves.
    pub hosts: Vec<i32>,
    /// The cards that it needs.
    pub wanted: Wanted,
    /// Which of these serves each card number that the program knows.
    pub card_of: Vec<u32>,
}

impl Plan {
    /// Reads the descriptions in the snapshot and checks what is asked for against them.
    pub(super) fn make(options: &RestartOptions) -> Result<Self, JobError> {
        let dir = std::path::absolute(&options.dir).map_err(|source| JobError::File {
            operation: "use",
            path: options.dir.clone(),
            source,
        })?;
        let snapshot = Snapshot::open(&dir, options.at)?;
        let host = snapshot.member(HOST)?;
        let mut job: Job = host.json(JOB_FILE)?;
        let mut image: TreeImage = host.json(PROCESS_FILE)?;
        // Opened for its checks: a missing or truncated file is found before anything is created.
        host.pages(PAGES_FILE)?;
        for process in &job.processes {
            let member = snapshot.member(&offload_member(process.id))?;
            member.bytes(PROCESS_FILE)?;
            member.pages(PAGES_FILE)?;
            member.pages(STORE_FILE)?;
        }
        let (memories, card_of) = assign_cards(options, &job)?;
        let wanted = if options.share_cards {
            Wanted::Shared {
                otherwise: memories,
                memory: options.card_memory,
            }
        } else {
            Wanted::Own(memories)
        };
        if !options.roots.is_empty() {
            image = image
                .relocated(&options.roots)
                .map_err(super::host_failed)?;
            for output in job.stdio.iter_mut().filter_map(|o| o.file.as_mut()) {
                if let Some(path) = led(&output.path, &options.roots) {
                    output.path = path.to_path_buf();
                }
            }
        }
        image.validate().map_err(super::host_failed)?;
        let hosts = job.hosts(&image).map_err(|why| JobError::Member {
            member: snapshot
                .path()
                .join(HOST)
                .join(JOB_FILE)
                .display()
                .to_string(),
            why,
        })?;
        let obstacles = snapify_proc::preflight(&image);
        if !obstacles.is_empty() {
            return Err(super::host_failed(snapify_proc::ProcError::Unsupported {
                pid: snapify_proc::Pid(image.root().pid()),
                obstacles,
            }));
        }
        Ok(Self {
            dir,
            snapshot,
            job,
            image,
            hosts,
            wanted,
            card_of,
        })
    }

    /// The registrations of OpenMP runtimes, with the ids of their processes.
    pub(super) fn registrations(&self) -> impl Iterator<Item = (i32, &Registration)> {
        let first = self.job.registration.iter();
        let first = first.map(|one| (self.image.root().pid(), one));
        let all = self.job.registrations.iter();
        first.chain(all.map(|(pid, one)| (*pid, one)))
    }

    /// The files of an offload process, for its card.
    pub(super) fn files_of(&self, id: ProcessId) -> Result<ProcessFiles, JobError> {
        let name = offload_member(id);
        let path = self.snapshot.path().join(&name).join(PROCESS_FILE);
        let description = File::open(&path).map_err(|source| JobError::File {
            operation: "open",
            path,
            source,
        })?;
        let member = self.snapshot.member(&name)?;
        Ok(ProcessFiles {
            description,
            pages: member.page_files(PAGES_FILE)?,
            store: member.page_files(STORE_FILE)?,
        })
    }

    /// Host libraries of the program will look for their supervisor where that was when the program started.
    pub(super) fn stand_in_for_old_socket(&self, house: &mut House) -> Result<(), JobError> {
        let Some(folder) = self.job.agent_socket.as_deref().and_then(Path::parent) else {
            return Ok(());
        };
        // What has its connections needs no other, but a script goes on starting programs that do.
        let needed = !self.hosts.contains(&self.image.root().pid());
        let in_use =
            snapify_fabric::Channel::connect(&crate::runtime_dir::control_socket(folder)).is_ok();
        if in_use && needed {
            return Err(JobError::Refused(format!(
                "the program that this snapshot was taken of still runs, and the restarted one would find its cards in the \
                 same place: end it first, as both would use {}",
                folder.join("agent").display()
            )));
        }
        if in_use {
            return Ok(());
        }
        crate::runtime_dir::remove_stale(folder);
        match house.folder.answer_to(folder) {
            Err(error) if !needed => {
                tracing::debug!("{}: {error}", folder.display());
                Ok(())
            }
            done => done,
        }
    }
}

/// The files of an offload process in a snapshot.
pub(super) struct ProcessFiles {
    /// The engine's description.
    pub(super) description: File,
    /// The pages, from the newest file to a full one.
    pub(super) pages: Vec<File>,
    /// The local store, the same.
    pub(super) store: Vec<File>,
}

/// Which cards to start, and which of them serves each of the program's.
fn assign_cards(options: &RestartOptions, job: &Job) -> Result<(Vec<u64>, Vec<u32>), JobError> {
    let known = u32::try_from(job.cards.len()).unwrap_or(u32::MAX);
    let count = options.card_count.unwrap_or(known);
    let memory_of = |card: u32| {
        options
            .card_memory
            .or_else(|| job.cards.get(card as usize).copied())
            .or_else(|| job.cards.first().copied())
            .unwrap_or(0)
    };
    let memories: Vec<u64> = (0..count).map(memory_of).collect();
    if let Some((old, _)) = options.cards.iter().find(|(old, _)| *old >= known) {
        return Err(JobError::Refused(format!(
            "the program had no card {old}: it had {known}, numbered from 0"
        )));
    }
    let mut card_of = Vec::new();
    for old in 0..known {
        let new = options
            .cards
            .iter()
            .rev()
            .find(|(from, _)| *from == old)
            .map_or(old, |(_, to)| *to);
        if new >= count {
            return Err(JobError::Refused(format!(
                "card {new} is missing: there are {count} cards here; start more with --cards, or restore on another \
                 one with --card {old}=NEW"
            )));
        }
        card_of.push(new);
    }
    for (new, memory) in (0..).zip(&memories) {
        let on_it = |process: &&crate::snapshot::OffloadProcess| {
            card_of.get(process.card as usize) == Some(&new)
        };
        let needed: u64 = job
            .processes
            .iter()
            .filter(on_it)
            .map(|process| process.store_bytes)
            .sum();
        // How much room there is on shared ones shows when they are there.
        if needed > *memory && !options.share_cards {
            return Err(JobError::Refused(format!(
                "card {new} is too small: its offload processes need {needed} bytes of memory for their buffers, and \
                 it has {memory}; give it more with --card-memory"
            )));
        }
    }
    Ok((memories, card_of))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::OffloadProcess;
    use snapify_offload::control::ProcessId;
    use snapify_store::ProgramIdentity;

    fn job() -> Job {
        let process = |id, card, store_bytes| OffloadProcess {
            id: ProcessId(id),
            host: 0,
            card,
            store_bytes,
            in_flight: Vec::new(),
        };
        Job {
            identity: ProgramIdentity {
                id: "a".into(),
                command: "b".into(),
            },
            program: vec!["b".into()],
            cards: vec![1000, 2000],
            connected: true,
            hosts: Vec::new(),
            agent_socket: None,
            processes: vec![process(1, 0, 600), process(2, 1, 1500)],
            stdio: Vec::new(),
            registration: None,
            registrations: Vec::new(),
        }
    }

    fn assign(
        cards: &[(u32, u32)],
        count: Option<u32>,
        memory: Option<u64>,
    ) -> Result<(Vec<u64>, Vec<u32>), String> {
        let options = RestartOptions {
            cards: cards.to_vec(),
            card_count: count,
            card_memory: memory,
            ..RestartOptions::default()
        };
        assign_cards(&options, &job()).map_err(|error| error.to_string())
    }

    #[test]
    fn as_they_were() {
        assert_eq!(assign(&[], None, None), Ok((vec![1000, 2000], vec![0, 1])));
    }

    #[test]
    fn exchanged_and_merged() {
        assert_eq!(
            assign(&[(0, 1), (1, 0)], None, Some(2000)),
            Ok((vec![2000, 2000], vec![1, 0]))
        );
        assert_eq!(
            assign(&[(1, 0)], Some(1), Some(2100)),
            Ok((vec![2100], vec![0, 0]))
        );
        assert!(
            assign(&[(1, 0)], Some(1), Some(2099))
                .unwrap_err()
                .contains("card 0 is too small")
        );
    }

    #[test]
    fn missing_or_too_small() {
        assert!(
            assign(&[], Some(1), None)
                .unwrap_err()
                .contains("card 1 is missing")
        );
        assert!(
            assign(&[(1, 5)], None, None)
                .unwrap_err()
                .contains("card 5 is missing")
        );
        assert!(
            assign(&[(7, 0)], None, None)
                .unwrap_err()
                .contains("no card 7")
        );
        assert!(assign(&[], None, Some(100)).unwrap_err().contains("memory"));
        assert!(
            assign(&[(0, 1), (1, 0)], None, None)
                .unwrap_err()
                .contains("card 0 is too small")
        );
    }
}
