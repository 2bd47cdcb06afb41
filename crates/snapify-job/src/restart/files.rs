//! Files that have grown since the snapshot was taken.

use crate::error::JobError;
use crate::snapshot::SharedOutput;
use snapify_proc::TreeImage;
use std::fs::File;
use std::path::Path;

/// What becomes of what files that the program has open for writing have got since the snapshot was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Files {
    /// They keep it.
    #[default]
    Keep,
    /// They are cut back to their length at the checkpoint.
    Truncate,
}

/// Cuts files back. All have been opened by now, and nothing runs yet.
pub(super) fn truncate(image: &TreeImage, outputs: &[SharedOutput]) -> Result<(), JobError> {
    for (path, bytes) in image.written_files() {
        cut(path, bytes)?;
    }
    for file in outputs.iter().filter_map(|output| output.file.as_ref()) {
        if let Some(bytes) = file.bytes {
            cut(&file.path, bytes)?;
        }
    }
    Ok(())
}

fn cut(path: &Path, bytes: u64) -> Result<(), JobError> {
    let failed = |source| JobError::File {
        operation: "cut back",
        path: path.to_path_buf(),
        source,
    };
    // By the name once more: a descriptor that is open for writing may have been opened by somebody else, or for appending only.
    let file = File::options().write(true).open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() > bytes {
        file.set_len(bytes).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_cut_but_never_made_longer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"0123456789").unwrap();
        cut(file.path(), 4).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"0123");
        cut(file.path(), 8).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"0123");
        let error = cut(Path::new("/no/such"), 0).unwrap_err().to_string();
        assert!(error.contains("/no/such"), "{error}");
    }
}
