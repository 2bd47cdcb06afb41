//! Which descriptors are sides of which pseudo-terminal.

use super::Side;
use crate::error::{Obstacle, ProcError};
use crate::files::holders;
use crate::files::survey::{Owner, Place, Seen};
use crate::ids::Pid;
use rustix::fs::{FileType, major, minor};
use snapify_sys::tty;
use std::collections::HashMap;
use std::io;

/// Device number of `/dev/ptmx`.
const MASTER: (u32, u32) = (5, 2);
/// Device number of `/dev/tty`.
const OWN: (u32, u32) = (5, 0);
/// Major number of the programs' sides.
const PROGRAMS: u32 = 136;

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A side of the pair with this index.
    Of(usize, Side),
    /// The program's side of a terminal with this number that has been hung up.
    HungUp(u32),
}

/// A pseudo-terminal whose master side is within the tree.
#[derive(Debug)]
pub(super) struct Pair {
    /// The file system of its instance, if that is known, and its number.
    instance: Option<u64>,
    pub(super) number: u32,
    pub(super) master: Place,
    /// A descriptor of the program's side that is not hung up.
    pub(super) side: Option<Place>,
    /// The session that it controls, as we see it.
    pub(super) session: Option<i32>,
}

/// The pseudo-terminals of the tree.
#[derive(Debug, Default)]
pub(crate) struct TerminalSurvey {
    pub(super) pairs: Vec<Pair>,
    ends: HashMap<Place, Result<End, Obstacle>>,
}

fn device(seen: &Seen) -> Option<(u32, u32)> {
    let is_device = seen.file_type() == FileType::CharacterDevice;
    is_device.then(|| (major(seen.stat.st_rdev), minor(seen.stat.st_rdev)))
}

impl TerminalSurvey {
    /// Looks at all of them.
    ///
    /// # Errors
    /// If the kernel does not tell what it should.
    pub(crate) fn new(
        seen: &[Seen],
        owners: &[Owner<'_>],
        is_member: impl Fn(Pid) -> bool,
    ) -> Result<Self, ProcError> {
        let mut survey = Self::default();
        // Descriptors of one description tell the same, and processes that are let run may close theirs at any time.
        for one in seen.iter().filter(|one| device(one) == Some(MASTER)) {
            // Not a pseudo-terminal's, or closed meanwhile: it is told to be a device.
            let _ = survey.add_master(one, owners);
        }
        for one in seen {
            let end = match device(one) {
                Some((PROGRAMS, number)) => survey.side(one, number, owners),
                Some(OWN) => survey.own(one, owners),
                _ => None,
            };
            if let Some(end) = end {
                survey.ends.insert(one.place(), Ok(end));
            }
        }
        survey.look_for_others(is_member)?;
        Ok(survey)
    }

    /// What a descriptor is; `None` if it belongs to no pseudo-terminal of the tree.
    pub(crate) fn end(&self, seen: &Seen) -> Option<Result<End, Obstacle>> {
        self.ends.get(&seen.place()).cloned()
    }

    /// Whether a session, as we see it, has one of them as its controlling terminal.
    pub(super) fn controls(&self, session: i32) -> bool {
        self.pairs.iter().any(|pair| pair.session == Some(session))
    }

    fn add_master(&mut self, seen: &Seen, owners: &[Owner<'_>]) -> io::Result<()> {
        let owner = &owners[seen.process];
        let master = owner.duplicate(seen.fd)?;
        let number = tty::number(&master)?;
        // Its own file system is that which its process sees; the descriptor only leads to a device that any of
        // them may have.
        let instance = owner.proc.stat_of("root/dev/pts").ok();
        let instance = instance.map(|stat| stat.st_dev);
        let known = self
            .pairs
            .iter()
            .position(|pair| pair.number == number && pair.instance == instance);
        let index = match known {
            Some(index) => index,
            None => {
                self.pairs.push(Pair {
                    instance,
                    number,
                    master: seen.place(),
                    side: None,
                    session: tty::session(&master)?,
                });
                self.pairs.len() - 1
            }
        };
        let side = match seen.link.as_bytes() {
            b"/dev/pts/ptmx" => Side::MasterByInstance,
            _ => Side::Master,
        };
        self.ends.insert(seen.place(), Ok(End::Of(index, side)));
        Ok(())
    }

    fn pair(&self, instance: u64, number: u32) -> Option<usize> {
        let is_it =
            |pair: &Pair| pair.number == number && pair.instance.is_none_or(|own| own == instance);
        self.pairs.iter().position(is_it)
    }

    fn side(&mut self, seen: &Seen, number: u32, owners: &[Owner<'_>]) -> Option<End> {
        let side = owners[seen.process].duplicate(seen.fd).ok()?;
        match tty::settings(&side) {
            Err(e) if e.raw_os_error() == Some(libc::EIO) => {
                // Standard streams of the first process are the restart's own, whatever they were.
                let mut streams = owners[0].stdio.iter().flatten();
                let is_stream = streams.any(|stream| stream.object_id() == seen.object_id());
                (!is_stream).then_some(End::HungUp(number))
            }
            Err(_) => None,
            Ok(_) => {
                let index = self.pair(seen.stat.st_dev, number)?;
                self.pairs[index].side.get_or_insert(seen.place());
                Some(End::Of(index, Side::Program))
            }
        }
    }

    /// `/dev/tty`: which terminal it is only its device number tells, and who has opened it.
    fn own(&mut self, seen: &Seen, owners: &[Owner<'_>]) -> Option<End> {
        let owner = &owners[seen.process];
        let side = owner.duplicate(seen.fd).ok()?;
        let device = u64::from(tty::device(&side).ok()?);
        let number = minor(device);
        let session = *owner.proc.status().ok()?.ns_session.first()?;
        let is_it = |pair: &Pair| pair.number == number && pair.session == Some(session);
        let index = self.pairs.iter().position(is_it)?;
        (major(device) == PROGRAMS).then_some(End::Of(index, Side::Own))
    }

    /// A terminal that others have open too cannot be saved for the tree alone.
    fn look_for_others(&mut self, is_member: impl Fn(Pid) -> bool) -> Result<(), ProcError> {
        if self.pairs.is_empty() {
            return Ok(());
        }
        let wanted: Vec<(Option<u64>, u32)> = self
            .pairs
            .iter()
            .map(|pair| (pair.instance, pair.number))
            .collect();
        // We have those that are on their way through sockets.
        let us = Pid(std::process::id().cast_signed());
        let is_known = |pid| pid == us || is_member(pid);
        for (index, holder) in holders::of_terminals(&wanted, is_known)? {
            let number = self.pairs[index].number;
            for end in self.ends.values_mut() {
                if matches!(end, Ok(End::Of(pair, _)) if *pair == index) {
                    *end = Err(Obstacle::new(
                        format!("terminal /dev/pts/{number}"),
                        format!(
                            "{holder} has it open too and is not part of the tree, which is not supported"
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}
