//! What the kinds of kernel objects share while processes are built.

use crate::error::ProcError;
use crate::files::directory::RemovedDirectory;
use crate::ids::RemoteFd;
use crate::image::TreeImage;
use snapify_store::SpaceId;
use snapify_sys::area::Area;
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Descriptors that the processes under construction have inherited, by what they are. They have the same numbers here in their
/// init and there, all above any number in the image, and are closed there when the descriptors are complete:
/// a kind duplicates them (dup3) to where they belong, or reopens them through `/proc/self/fd/N`.
#[derive(Debug)]
pub struct RestoreContext<'a> {
    /// The image that is being restored.
    pub image: &'a TreeImage,
    pub(crate) externals: HashMap<String, RemoteFd>,
    pub(crate) objects: HashMap<SpaceId, (RemoteFd, File)>,
    /// Objects that this init has mapped while they are filled.
    pub(crate) areas: HashMap<SpaceId, Area>,
    /// Removed directories that this init has made, by their identity.
    pub(crate) removed_directories: RefCell<HashMap<(u64, u64), OwnedFd>>,
    pub(crate) stdio: [RemoteFd; 3],
    pub(crate) first_inherited: RemoteFd,
    pub(crate) warnings: RefCell<Vec<String>>,
}

impl RestoreContext<'_> {
    /// The descriptor that the caller supplied for an external.
    ///
    /// # Errors
    /// If there is none.
    pub fn external(&self, key: &str) -> Result<RemoteFd, ProcError> {
        self.externals.get(key).copied().ok_or_else(|| {
            ProcError::BadImage(format!(
                "no descriptor was supplied for its external {key:?}"
            ))
        })
    }

    /// The descriptor (read and write) of the new file that holds an object's content.
    ///
    /// # Errors
    /// If the image has no such object.
    pub fn object(&self, space: SpaceId) -> Result<RemoteFd, ProcError> {
        Ok(self.object_file(space)?.0)
    }

    /// The content of a (small) object.
    ///
    /// # Errors
    /// If the image has no such object or it is longer than `limit` bytes.
    pub fn object_bytes(&self, space: SpaceId, limit: u64) -> Result<Vec<u8>, ProcError> {
        let (_, file) = self.object_file(space)?;
        let bytes = self
            .image
            .objects
            .iter()
            .find(|o| o.space == space)
            .map_or(0, |o| o.bytes);
        if bytes > limit {
            return Err(ProcError::BadImage(format!(
                "object {} has {bytes} bytes, more than the {limit} that it can have",
                space.0
            )));
        }
        let mut content = vec![0; bytes as usize];
        file.read_exact_at(&mut content, 0)
            .map_err(ProcError::system(format!("reading object {}", space.0)))?;
        Ok(content)
    }

    /// The path, for this init and for the processes, of the directory that takes the place of a removed one: the same for all that
    /// lead to it.
    ///
    /// # Errors
    /// Those of making it.
    pub(crate) fn removed_directory(
        &self,
        directory: &RemovedDirectory,
    ) -> Result<PathBuf, ProcError> {
        let mut made = self.removed_directories.borrow_mut();
        // Without an identity each is one of its own.
        let key = directory.identity.unwrap_or((u64::MAX, made.len() as u64));
        let fd = match made.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let new = directory.make()?;
                let number = self.first_inherited.0;
                place.insert(snapify_sys::fd::duplicate(new.as_raw_fd(), number).map_err(
                    ProcError::system(format!("keeping a directory above {number}")),
                )?)
            }
        };
        let init = std::process::id();
        Ok(format!("/proc/{init}/fd/{}", fd.as_raw_fd()).into())
    }

    /// The restart's standard input, output and error.
    #[must_use]
    pub fn stdio(&self) -> [RemoteFd; 3] {
        self.stdio
    }

    /// All inherited descriptors are numbered from here on, with numbers that no process of the image uses; a descriptor that is
    /// made meanwhile may be too.
    #[must_use]
    pub fn first_inherited(&self) -> RemoteFd {
        self.first_inherited
    }

    /// Notes what does not come back quite as it was. The restart goes on, and its user is told.
    pub fn warn(&self, warning: impl Into<String>) {
        self.warnings.borrow_mut().push(warning.into());
    }

    fn object_file(&self, space: SpaceId) -> Result<&(RemoteFd, File), ProcError> {
        self.objects
            .get(&space)
            .ok_or_else(|| ProcError::BadImage(format!("it has no object {}", space.0)))
    }
}
