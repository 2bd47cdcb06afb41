//! A directory of numbered points, all of one program.
//!
//! ```text
//! DIR/chain.json         which program; written with the first point
//! DIR/.lock              locked by whoever is writing a point
//! DIR/.cleaner           locked by whoever cleans
//! DIR/.cleaning-*/       a point being made to stand alone, or left over from a cleaner that died
//! DIR/.staging-*/        a point being written, or left over from a writer that died
//! DIR/000001/            a point: manifest.json and a folder per member
//! ```
//!
//! Nothing that a reader looks at ever changes: points appear whole, by a rename, and are exchanged or removed as
//! whole when nobody reads them.

pub(crate) mod clean;
pub(crate) mod copy;
pub(crate) mod files;
mod in_use;
pub(crate) mod inspect;
pub(crate) mod links;
pub(crate) mod lock;
pub(crate) mod manifest;
pub(crate) mod retain;
pub(crate) mod sealed;
pub(crate) mod snapshot;
pub(crate) mod staging;
pub(crate) mod verify;

use crate::StoreError;
use links::{Links, MOST_PARENTS};
use lock::ChainLock;
use serde::{Deserialize, Serialize};
use staging::Staging;
use std::fs;
use std::path::{Path, PathBuf};

/// The file that makes a directory a chain.
pub(crate) const CHAIN_FILE: &str = "chain.json";

/// What the names of a cleaner's drafts begin with. Writers leave them alone, for they may be alive.
pub(crate) const CLEANING_PREFIX: &str = ".cleaning-";

/// What the names of staging directories begin with.
pub(crate) const STAGING_PREFIX: &str = ".staging-";

/// A folder of what operations took, for people. Nothing here reads or writes it.
const REPORTS_DIR: &str = "reports";

const FORMAT: &str = "snapify-chain";
const VERSION: u32 = 1;

/// The program that a chain belongs to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramIdentity {
    /// What makes it the same program; only compared.
    pub id: String,
    /// Its command line, for people.
    pub command: String,
}

/// The contents of `chain.json`.
#[derive(Serialize, Deserialize)]
struct ChainFile {
    format: String,
    version: u32,
    program: ProgramIdentity,
}

/// A directory to put points into, of one program.
#[derive(Debug)]
pub struct Chain {
    dir: PathBuf,
    program: ProgramIdentity,
}

impl Chain {
    /// The chain of `program` in `dir`, which may be missing or empty as yet. Changes nothing: the directory
    /// comes into being with [`Chain::begin`].
    ///
    /// # Errors
    /// [`StoreError::OtherProgram`] if it holds another program's points, [`StoreError::NotAChain`] if it
    /// holds something else, [`StoreError::Damaged`] and [`StoreError::Newer`] if its chain file cannot be
    /// used, [`StoreError::Io`] if it cannot be read.
    pub fn open_or_create(dir: &Path, program: &ProgramIdentity) -> Result<Self, StoreError> {
        let chain = Self {
            dir: dir.to_owned(),
            program: program.clone(),
        };
        chain.check()?;
        Ok(chain)
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Begins the next point, a full one. What writers that died have left behind is removed.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while another point is being written; as [`Chain::open_or_create`] if the
    /// directory has changed since; [`StoreError::Io`] if nothing can be created there.
    pub fn begin(&self) -> Result<Staging, StoreError> {
        let lock = self.lock()?;
        Staging::new(self.dir.clone(), self.program.clone(), lock, None)
    }

    /// Begins the next point, an incremental one on point `on`, or on the newest: the one since which the writer
    /// knows what has changed.
    ///
    /// The point is begun as a full one ([`Staging::parent`] is `None`) if there is nothing yet that it could build on,
    /// or if that builds on so many others that a full point is due.
    ///
    /// # Errors
    /// As [`Chain::begin`]; [`StoreError::NoPoint`] if there is no point `on`; and as
    /// [`Snapshot::open`](crate::Snapshot::open) if that point cannot be used. A full point can be begun all the
    /// same.
    pub fn begin_incremental(&self, on: Option<u32>) -> Result<Staging, StoreError> {
        let lock = self.lock()?;
        match self.parent(on) {
            Ok(parent) => Staging::new(self.dir.clone(), self.program.clone(), lock, parent),
            Err(error) => {
                lock.abandon();
                Err(error)
            }
        }
    }

    /// What a point is to build on: point `on`, or the newest, if it can.
    fn parent(&self, on: Option<u32>) -> Result<Option<Links>, StoreError> {
        let points = Contents::of(&self.dir)?.points;
        let number = match on {
            Some(on) if !points.contains(&on) => {
                return Err(StoreError::NoPoint {
                    dir: self.dir.clone(),
                    at: on,
                    have: snapshot::join(&points),
                });
            }
            Some(on) => Some(on),
            None => points.last().copied(),
        };
        let links = number
            .map(|number| Links::read(&self.dir, number))
            .transpose()?;
        Ok(links.filter(|links| links.numbers().count() <= MOST_PARENTS))
    }

    fn lock(&self) -> Result<ChainLock, StoreError> {
        let created = files::create_dirs(&self.dir)?;
        let lock = ChainLock::acquire(&self.dir, created)?;
        self.check()?;
        remove_stale(&self.dir)?;
        Ok(lock)
    }

    /// Whether the directory may take points of this program, as it is now.
    fn check(&self) -> Result<(), StoreError> {
        let contents = match Contents::of(&self.dir) {
            Err(StoreError::Missing { .. }) => return Ok(()),
            other => other?,
        };
        let Some(theirs) = read_program(&self.dir)? else {
            if let Some(found) = contents.strange.or(contents.odd_points.into_iter().next()) {
                return Err(StoreError::NotAChain {
                    dir: self.dir.clone(),
                    found,
                });
            }
            if let Some(point) = contents.points.first() {
                return Err(StoreError::damaged(
                    &self.dir.join(CHAIN_FILE),
                    0,
                    format!(
                        "it is missing, and yet there is point {}",
                        point_name(*point)
                    ),
                ));
            }
            return Ok(());
        };
        // A chain file without points is what a first checkpoint leaves that died in its last moment.
        if theirs.id != self.program.id && !contents.points.is_empty() {
            return Err(StoreError::OtherProgram {
                dir: self.dir.clone(),
                theirs: theirs.command,
            });
        }
        Ok(())
    }
}

/// The program whose chain is in `dir`, if there is a chain.
pub(crate) fn read_program(dir: &Path) -> Result<Option<ProgramIdentity>, StoreError> {
    let path = dir.join(CHAIN_FILE);
    match sealed::read::<ChainFile>(&path, FORMAT, VERSION) {
        Ok((chain, _)) => Ok(Some(chain.program)),
        Err(StoreError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes `chain.json` so that it is there whole or not at all. The caller holds the lock.
fn write_program(dir: &Path, program: &ProgramIdentity) -> Result<(), StoreError> {
    let path = dir.join(CHAIN_FILE);
    let chain = ChainFile {
        format: FORMAT.into(),
        version: VERSION,
        program: program.clone(),
    };
    let text = sealed::seal(&chain, &path)?;
    // The name marks it as something of a writer: the next one removes it should this one die here.
    let draft = dir.join(format!("{STAGING_PREFIX}{CHAIN_FILE}"));
    files::write_new(&draft, &text)?;
    fs::rename(&draft, &path).map_err(StoreError::io("put into place", &path))?;
    files::sync_dir(dir)
}

/// What may be in a chain's directory beside points and drafts.
const KNOWN: [&str; 4] = [CHAIN_FILE, lock::LOCK_FILE, lock::CLEANER_FILE, REPORTS_DIR];

/// What is in a chain's directory.
#[derive(Default)]
pub(crate) struct Contents {
    /// Numbers of points, ascending.
    pub(crate) points: Vec<u32>,
    /// Names that look like points', of something else.
    pub(crate) odd_points: Vec<String>,
    /// Names of staging directories and drafts.
    pub(crate) staging: Vec<String>,
    /// Names of drafts of a cleaner.
    pub(crate) cleaning: Vec<String>,
    /// The first name, in order, that has no business there.
    pub(crate) strange: Option<String>,
}

impl Contents {
    /// Lists `dir`.
    ///
    /// # Errors
    /// [`StoreError::Missing`] if there is no such directory, [`StoreError::Io`].
    pub(crate) fn of(dir: &Path) -> Result<Self, StoreError> {
        let mut contents = Self::default();
        let mut strange = Vec::new();
        for (name, kind) in files::list(dir)? {
            if name.starts_with(STAGING_PREFIX) {
                contents.staging.push(name);
            } else if name.starts_with(CLEANING_PREFIX) {
                contents.cleaning.push(name);
            } else if let Some(number) = point_number(&name) {
                if kind.is_dir() {
                    contents.points.push(number);
                } else {
                    contents.odd_points.push(name);
                }
            } else if !KNOWN.contains(&&*name) {
                strange.push(name);
            }
        }
        contents.points.sort_unstable();
        contents.strange = strange.into_iter().min();
        Ok(contents)
    }
}

/// The folder of point `number`.
pub(crate) fn point_name(number: u32) -> String {
    format!("{number:06}")
}

/// The number of the point whose folder is called `name`; `None` for any other name.
pub(crate) fn point_number(name: &str) -> Option<u32> {
    let number = name.parse().ok().filter(|&number| number > 0)?;
    (point_name(number) == name).then_some(number)
}

/// Removes what dead writers have left, and dead cleaners. The caller holds the lock, so no writer is alive.
fn remove_stale(dir: &Path) -> Result<(), StoreError> {
    if !Contents::of(dir)?.cleaning.is_empty()
        && let Ok(_cleaner) = lock::CleanerLock::acquire(dir)
    {
        clean::remove_leftovers(dir)?;
    }
    for name in Contents::of(dir)?.staging {
        let path = dir.join(&name);
        tracing::info!(path = %path.display(), "removing what an interrupted checkpoint left");
        files::remove(&path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_names_are_points() {
        assert_eq!(point_number("000001"), Some(1));
        assert_eq!(point_number("1000000"), Some(1_000_000));
        for name in [
            "1",
            "000000",
            "0000001",
            "+00001",
            "00000a",
            "",
            "-00001",
            "99999999999",
        ] {
            assert_eq!(point_number(name), None, "{name}");
        }
    }
}
