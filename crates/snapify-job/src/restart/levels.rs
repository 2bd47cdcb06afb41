//! Restarting from whichever of two directories has the newest snapshot that can be used: one on storage of a node, one
//! with copies on shared storage.

use super::RestartOptions;
use crate::error::JobError;
use snapify_store::{Snapshot, StoreError, inspect, verify};
use std::path::Path;

/// What to try, one after the other: the newest snapshot first, and of a snapshot and its copy the one in the first
/// directory.
///
/// # Errors
/// If there is nothing to try: what is wrong with the first directory. [`JobError::Refused`] if the two hold snapshots
/// of different programs.
pub(super) fn candidates(options: &RestartOptions) -> Result<Vec<RestartOptions>, JobError> {
    let Some(shared) = &options.shared else {
        return Ok(vec![options.clone()]);
    };
    let mut found = Vec::new();
    let mut programs = Vec::new();
    let mut first_error = None;
    for dir in [&options.dir, shared] {
        match snapshots(dir, options.at) {
            Ok((program, numbers)) => {
                found.extend(numbers.into_iter().map(|number| (dir.clone(), number)));
                programs.push(program);
            }
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    if programs.iter().any(|program| *program != programs[0]) {
        return Err(JobError::Refused(format!(
            "{} and {} hold snapshots of different programs",
            options.dir.display(),
            shared.display()
        )));
    }
    if found.is_empty() {
        let none = || StoreError::NoSnapshot {
            dir: options.dir.clone(),
        };
        return Err(first_error.unwrap_or_else(none).into());
    }
    // Stable: the first directory stays in front.
    found.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
    let candidates = found.into_iter().map(|(dir, number)| RestartOptions {
        dir,
        at: Some(number),
        shared: None,
        ..options.clone()
    });
    Ok(candidates.collect())
}

/// The program whose snapshots are in `dir`, and the numbers of those that are complete, or of `at` if it is.
fn snapshots(dir: &Path, at: Option<u32>) -> Result<(String, Vec<u32>), StoreError> {
    let report = inspect(dir)?;
    let numbers = report.points.iter().map(|point| point.number);
    let wanted = numbers.filter(|number| at.is_none_or(|at| at == *number));
    let complete = wanted.filter(|number| Snapshot::open(dir, Some(*number)).is_ok());
    Ok((report.program.id, complete.collect()))
}

/// Whether the snapshot of a candidate cannot be used, as far as reading all of it can tell. A restart that failed may have
/// failed for other reasons, in which another snapshot is no better.
pub(super) fn is_damaged(candidate: &RestartOptions) -> bool {
    !verify(&candidate.dir, candidate.at, &()).is_ok_and(|report| report.is_sound())
}

#[cfg(test)]
mod tests {
    use super::*;
    use snapify_store::{Chain, PointHeader, ProgramIdentity};
    use std::path::PathBuf;

    fn commit(dir: &Path, program: &str, after: u32) {
        let program = ProgramIdentity {
            id: program.into(),
            command: program.into(),
        };
        let chain = Chain::open_or_create(dir, &program).unwrap();
        let mut staging = chain.begin().unwrap();
        staging.number_after(after);
        let member = staging.member("host").unwrap();
        member.write_json("process.json", &after).unwrap();
        drop(member);
        staging
            .commit(PointHeader {
                created_unix_ms: 0,
                details: serde_json::Value::Null,
            })
            .unwrap();
    }

    fn tried(local: &Path, shared: &Path, at: Option<u32>) -> Result<Vec<(PathBuf, u32)>, String> {
        let options = RestartOptions {
            dir: local.to_owned(),
            shared: Some(shared.to_owned()),
            at,
            ..RestartOptions::default()
        };
        let found = candidates(&options).map_err(|error| error.to_string())?;
        let found = found.into_iter();
        Ok(found.map(|one| (one.dir, one.at.unwrap())).collect())
    }

    #[test]
    fn the_newest_first_and_the_local_one_of_two() {
        let top = tempfile::tempdir().unwrap();
        let (local, shared) = (top.path().join("l"), top.path().join("s"));
        assert!(tried(&local, &shared, None).is_err());
        for after in [4, 5, 6] {
            commit(&local, "p", after);
        }
        // One directory is enough, whichever it is.
        let numbers = |found: Vec<(PathBuf, u32)>| -> Vec<u32> {
            found.into_iter().map(|(_, number)| number).collect()
        };
        assert_eq!(numbers(tried(&local, &shared, None).unwrap()), [7, 6, 5]);
        assert_eq!(numbers(tried(&shared, &local, None).unwrap()), [7, 6, 5]);
        commit(&shared, "p", 5);
        commit(&shared, "p", 8);
        let l = |number| (local.clone(), number);
        let s = |number| (shared.clone(), number);
        assert_eq!(
            tried(&local, &shared, None).unwrap(),
            [s(9), l(7), l(6), s(6), l(5)]
        );
        assert_eq!(tried(&local, &shared, Some(6)).unwrap(), [l(6), s(6)]);
        assert!(tried(&local, &shared, Some(1)).is_err());
        // What is not complete is not tried.
        std::fs::remove_file(shared.join("000009/host/process.json")).unwrap();
        assert_eq!(tried(&local, &shared, None).unwrap()[0], l(7));
    }

    #[test]
    fn different_programs_are_refused() {
        let top = tempfile::tempdir().unwrap();
        let (local, shared) = (top.path().join("l"), top.path().join("s"));
        commit(&local, "p", 0);
        commit(&shared, "q", 0);
        let error = tried(&local, &shared, None).unwrap_err();
        assert!(error.contains("different programs"), "{error}");
    }
}
