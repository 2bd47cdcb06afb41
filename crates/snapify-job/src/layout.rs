//! Where the installed files of Snapify lie: below the prefix that holds the running `bin/snapify`.

use crate::error::JobError;
use std::path::PathBuf;

/// Paths of the installed files.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The command line itself, which is also the card daemon.
    pub snapify: PathBuf,
    /// The program that becomes each offload process.
    pub offload_process: PathBuf,
    /// Holds the OpenMP plugin under the names that libomptarget looks for.
    pub plugins: PathBuf,
    /// Holds what device images link against inside an offload process.
    pub sink_libraries: PathBuf,
}

impl Layout {
    /// Finds the files: `../lib/snapify` as seen from the running executable, or `SNAPIFY_LIBDIR`.
    ///
    /// # Errors
    /// Where the running executable cannot be found.
    pub fn find() -> Result<Self, JobError> {
        let snapify = std::env::current_exe().map_err(|source| JobError::File {
            operation: "find",
            path: "/proc/self/exe".into(),
            source,
        })?;
        let lib = std::env::var_os("SNAPIFY_LIBDIR").map_or_else(
            || {
                let prefix = snapify.parent().and_then(|bin| bin.parent());
                prefix.map_or_else(PathBuf::new, |prefix| prefix.join("lib/snapify"))
            },
            PathBuf::from,
        );
        Ok(Self {
            offload_process: lib.join("snapify-offload-process"),
            plugins: lib.join("plugins"),
            sink_libraries: lib.join("sink"),
            snapify,
        })
    }

    /// Makes sure that everything is there that cards need.
    ///
    /// # Errors
    /// Names the first file that is missing.
    pub fn require_cards(&self) -> Result<(), JobError> {
        let needed = [&self.offload_process, &self.plugins, &self.sink_libraries];
        match needed.into_iter().find(|path| !path.exists()) {
            Some(missing) => Err(JobError::Incomplete {
                path: missing.clone(),
            }),
            None => Ok(()),
        }
    }
}
