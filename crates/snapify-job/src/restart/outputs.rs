//! Standard output and error that restored host and offload processes share.

use crate::error::JobError;
use crate::snapshot::{OutputFile, SharedOutput};
use rustix::fs::{Mode, OFlags, SeekFrom, open as open_file, seek};
use snapify_offload::control::{EXTERNAL_STDERR, EXTERNAL_STDOUT};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One open description for each output, for all who share it.
pub(super) struct Outputs {
    files: Vec<(String, OwnedFd)>,
}

/// Opens the outputs: a regular file goes on where it was, anything else is the restart's own output now.
pub(super) fn open(shared: &[SharedOutput]) -> Result<Outputs, JobError> {
    let mut files = Vec::new();
    for output in shared {
        let fd = match &output.file {
            Some(file) => reopen(file)?,
            None => own(&output.key)
                .try_clone_to_owned()
                .map_err(|source| JobError::System {
                    operation: format!("duplicate {}", output.key),
                    source,
                })?,
        };
        files.push((output.key.clone(), fd));
    }
    Ok(Outputs { files })
}

fn own(key: &str) -> BorrowedFd<'static> {
    if key == EXTERNAL_STDERR {
        rustix::stdio::stderr()
    } else {
        rustix::stdio::stdout()
    }
}

fn reopen(file: &OutputFile) -> Result<OwnedFd, JobError> {
    let failed = |errno: rustix::io::Errno| JobError::File {
        operation: "open the program's output file",
        path: file.path.clone(),
        source: errno.into(),
    };
    let flags =
        OFlags::from_bits_retain(file.flags) - (OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC);
    let fd = open_file(&file.path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    seek(&fd, SeekFrom::Start(file.position)).map_err(failed)?;
    Ok(fd)
}

impl Outputs {
    /// Where offload processes write what the program prints, until their host process tells otherwise.
    pub(super) fn stdout(&self) -> BorrowedFd<'_> {
        self.get(EXTERNAL_STDOUT)
    }

    /// Where offload processes write errors, until their host process tells otherwise.
    pub(super) fn stderr(&self) -> BorrowedFd<'_> {
        self.get(EXTERNAL_STDERR)
    }

    fn get(&self, key: &str) -> BorrowedFd<'_> {
        let file = self.files.iter().find(|(name, _)| name == key);
        file.map_or_else(|| own(key), |(_, fd)| fd.as_fd())
    }

    /// The outputs as externals of the processes.
    pub(super) fn into_externals(self) -> Vec<(String, OwnedFd)> {
        self.files
    }
}
