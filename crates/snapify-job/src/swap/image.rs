//! The image of a swapped-out process: a chain of its own with one snapshot, `DIR/offload-<id>`, so that it is committed
//! and verified like any snapshot.

use super::registry::Swapped;
use crate::error::JobError;
use crate::snapshot::{PAGES_FILE, PROCESS_FILE, STORE_FILE, offload_member};
use snapify_offload::ProcessId;
use snapify_store::Snapshot;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The file that makes a directory one of snapshots.
const CHAIN_FILE: &str = "chain.json";

/// Where the image of a process goes, in a directory that the user names; and which directories that makes.
///
/// # Errors
/// If there are snapshots in it, which the image would spoil.
pub(super) fn place(dir: &Path, id: ProcessId) -> Result<(PathBuf, Vec<PathBuf>), JobError> {
    if dir.join(CHAIN_FILE).exists() {
        return Err(JobError::Refused(format!(
            "{} holds snapshots: give another directory for what is swapped out",
            dir.display()
        )));
    }
    let image = dir.join(offload_member(id));
    let mut made: Vec<PathBuf> = dir
        .ancestors()
        .take_while(|dir| !dir.exists())
        .map(Path::to_owned)
        .collect();
    made.reverse();
    Ok((image, made))
}

/// The folder with the files of the image of `id` in its newest snapshot, and the files, opened after everything that
/// describes them was checked: the description, the pages, the local store; and bytes of all.
///
/// # Errors
/// If the image is damaged, or another program's.
pub(super) fn open(swapped: &Swapped) -> Result<([File; 3], u64), JobError> {
    let snapshot = Snapshot::open(&swapped.image, None)?;
    if snapshot.program().id != swapped.program {
        return Err(JobError::Refused(format!(
            "{} holds another program's image",
            swapped.image.display()
        )));
    }
    let name = offload_member(swapped.id);
    let member = snapshot.member(&name)?;
    member.bytes(PROCESS_FILE)?;
    member.pages(PAGES_FILE)?;
    member.pages(STORE_FILE)?;
    let bytes = member.files().iter().map(|file| file.bytes).sum();
    let folder = snapshot.path().join(&name);
    let open = |name: &str| {
        let path = folder.join(name);
        File::open(&path).map_err(|source| JobError::File {
            operation: "open",
            path,
            source,
        })
    };
    let files = [open(PROCESS_FILE)?, open(PAGES_FILE)?, open(STORE_FILE)?];
    Ok((files, bytes))
}

/// Removes an image, and what was made for it if that is empty. Nothing else: a directory that holds something else by now
/// stays.
pub(super) fn remove(swapped: &Swapped) {
    let ours = match Snapshot::open(&swapped.image, None) {
        Ok(snapshot) => snapshot.program().id == swapped.program,
        Err(_) => match program_of(&swapped.image) {
            Some(program) => program == swapped.program,
            None => holds_nothing_but_beginnings(&swapped.image),
        },
    };
    if !ours {
        return;
    }
    let _ = std::fs::remove_dir_all(&swapped.image);
    for dir in swapped.made.iter().rev() {
        if std::fs::remove_dir(dir).is_err() {
            return;
        }
    }
}

/// Whether a directory holds at most what a chain holds before its first snapshot is committed.
fn holds_nothing_but_beginnings(image: &Path) -> bool {
    std::fs::read_dir(image).is_ok_and(|mut entries| {
        entries.all(|entry| {
            entry.is_ok_and(|entry| entry.file_name().as_encoded_bytes().starts_with(b"."))
        })
    })
}

/// The program that a damaged image says it is of, if it says so.
fn program_of(image: &Path) -> Option<String> {
    let text = std::fs::read(image.join(CHAIN_FILE)).ok()?;
    let chain: serde_json::Value = serde_json::from_slice(&text).ok()?;
    Some(chain["program"]["id"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swapped(image: &Path, made: Vec<PathBuf>) -> Swapped {
        Swapped {
            id: ProcessId(1),
            host: None,
            card: 0,
            store_bytes: 0,
            dir: image.to_owned(),
            image: image.to_owned(),
            program: "mine".into(),
            made,
        }
    }

    #[test]
    fn only_what_was_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        let (image, made) = place(&deep, ProcessId(1)).unwrap();
        assert_eq!(made, [dir.path().join("a"), deep.clone()]);
        std::fs::create_dir_all(&image).unwrap();
        std::fs::write(dir.path().join("a/other"), "").unwrap();
        remove(&swapped(&image, made));
        assert!(!deep.exists() && dir.path().join("a/other").exists());

        let image = dir.path().join("theirs");
        std::fs::create_dir(&image).unwrap();
        let text = r#"{"program": {"id": "theirs"}}"#;
        std::fs::write(image.join(CHAIN_FILE), text).unwrap();
        remove(&swapped(&image, Vec::new()));
        assert!(image.exists());
        assert!(place(&image, ProcessId(1)).is_err());
    }
}
