//! Timelines that are kept beside snapshots: `DIR/reports/<milliseconds since 1970>-<operation>-<process>.json`.
//!
//! A manifest could not hold them: it is complete before the commit is over, and a restart has none of its own.

use crate::timeline::Timeline;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The folder in a snapshot directory that holds timelines.
pub const REPORTS_DIR: &str = "reports";

/// So many timelines are kept; older ones go.
const MAX_KEPT: usize = 200;

/// A longer file is no timeline.
const MAX_BYTES: u64 = 4 << 20;

/// A timeline could not be kept or read.
#[derive(thiserror::Error, Debug)]
pub enum ReportError {
    /// A file or folder.
    #[error("cannot {operation} {}: {source}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// A file among the timelines that is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

fn failed<'a>(operation: &'static str, path: &'a Path) -> impl Fn(io::Error) -> ReportError + 'a {
    move |source| ReportError::File {
        operation,
        path: path.to_owned(),
        source,
    }
}

/// Keeps a timeline in `dir`, which exists. It appears whole or not at all; it is not made to survive a crash of the machine,
/// for nothing depends on it.
///
/// # Errors
/// If it cannot be written.
pub fn keep(dir: &Path, timeline: &Timeline) -> Result<PathBuf, ReportError> {
    let folder = dir.join(REPORTS_DIR);
    match fs::DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("create", &folder)(error));
        }
        _ => {}
    }
    let name = format!(
        "{:015}-{}-{}.json",
        timeline.started_unix_ms,
        timeline.operation.name(),
        std::process::id()
    );
    let path = folder.join(name);
    let mut text = serde_json::to_vec_pretty(timeline)
        .map_err(|error| failed("write", &path)(error.into()))?;
    text.push(b'\n');
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(&folder)
        .map_err(failed("create a file in", &folder))?;
    file.write_all(&text).map_err(failed("write", &path))?;
    file.persist(&path)
        .map_err(|error| failed("put into place", &path)(error.error))?;
    let names = names(&folder).map_err(failed("read", &folder))?;
    for old in names.iter().rev().skip(MAX_KEPT) {
        // Somebody else may have removed it.
        let _ = fs::remove_file(folder.join(old));
    }
    Ok(path)
}

/// The timelines kept in `dir`, oldest first, but no more than the `newest` of them; and what else is among them. A directory
/// without any has none.
///
/// # Errors
/// If the folder cannot be read.
pub fn kept(dir: &Path, newest: usize) -> Result<(Vec<Timeline>, Vec<Unreadable>), ReportError> {
    let folder = dir.join(REPORTS_DIR);
    let names = match names(&folder) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        Err(error) => return Err(failed("read", &folder)(error)),
    };
    let (mut timelines, mut unreadable) = (Vec::new(), Vec::new());
    for name in &names[names.len().saturating_sub(newest)..] {
        let path = folder.join(name);
        match read(&path) {
            Ok(timeline) => timelines.push(timeline),
            Err(why) => unreadable.push(Unreadable { path, why }),
        }
    }
    Ok((timelines, unreadable))
}

/// Names of timelines, oldest first: they begin with the time, in so many digits that they sort.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        if let Ok(name) = entry?.file_name().into_string()
            && name.ends_with(".json")
            && !name.starts_with('.')
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn read(path: &Path) -> Result<Timeline, String> {
    let file = rustix::fs::open(
        path,
        // A pipe in the place of a file would not be waited for.
        rustix::fs::OFlags::RDONLY
            | rustix::fs::OFlags::CLOEXEC
            | rustix::fs::OFlags::NOFOLLOW
            | rustix::fs::OFlags::NONBLOCK,
        rustix::fs::Mode::empty(),
    )
    .map_err(|errno| errno.to_string())?;
    let mut text = Vec::new();
    let read = File::from(file).take(MAX_BYTES + 1).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_BYTES {
        return Err("it is too long for a report".into());
    }
    let timeline: Timeline = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    timeline.validate()?;
    Ok(timeline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{Actor, Operation, Recorder};

    fn timeline(at: u64) -> Timeline {
        let recorder = Recorder::begin(Operation::Checkpoint);
        recorder.time(Actor::Host, "describe", || ());
        let mut timeline = recorder.finish();
        timeline.started_unix_ms = at;
        timeline
    }

    #[test]
    fn what_is_kept_is_found_again_in_order() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(kept(dir.path(), 10).unwrap(), (vec![], vec![]));
        let all: Vec<_> = [7, 1_700_000_000_000, 900_000_000_000].map(timeline).into();
        for timeline in &all {
            keep(dir.path(), timeline).unwrap();
        }
        let (found, unreadable) = kept(dir.path(), 10).unwrap();
        assert_eq!(
            found,
            [all[0].clone(), all[2].clone(), all[1].clone()],
            "oldest first"
        );
        assert_eq!(unreadable, []);
        assert_eq!(kept(dir.path(), 1).unwrap().0, [all[1].clone()]);
    }

    #[test]
    fn the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        for at in 0..MAX_KEPT as u64 + 5 {
            keep(dir.path(), &timeline(at)).unwrap();
        }
        let (found, _) = kept(dir.path(), usize::MAX).unwrap();
        assert_eq!(found.len(), MAX_KEPT);
        assert_eq!(found[0].started_unix_ms, 5);
    }

    #[test]
    fn what_is_no_timeline_is_named_and_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let good = timeline(5);
        keep(dir.path(), &good).unwrap();
        let folder = dir.path().join(REPORTS_DIR);
        fs::write(folder.join("000000000000001-x.json"), "{}").unwrap();
        fs::write(folder.join("000000000000002-x.json"), b"\xff\x00").unwrap();
        let long = File::create(folder.join("000000000000003-x.json")).unwrap();
        long.set_len(1 << 40).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.join("000000000000004-x.json")).unwrap();
        fs::create_dir(folder.join("000000000000005-x.json")).unwrap();
        fs::write(folder.join("notes.txt"), "").unwrap();
        let (found, unreadable) = kept(dir.path(), 10).unwrap();
        assert_eq!(found, [good]);
        assert_eq!(unreadable.len(), 5, "{unreadable:?}");
    }
}
