//! Finding names for files of which only device and inode number are known: watched ones, and open ones whose name was
//! removed while they have others. The kernel opens a file by its number for root only, so directories are looked
//! through, likely ones first, within bounds.

use crate::path::ImagePath;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Device and inode number, as stat(2) shows them.
pub(crate) type FileId = (u64, u64);

/// The search gives up after so many names, or after so long: the process may be stopped meanwhile.
const MOST_NAMES: usize = 500_000;
const LONGEST: Duration = Duration::from_secs(3);

/// Names of files that are looked for.
#[derive(Debug)]
pub(crate) struct Search {
    wanted: HashSet<FileId>,
    /// Those of the files that are missing.
    devices: HashSet<u64>,
    found: HashMap<FileId, ImagePath>,
    /// Directories that were looked through or are about to be.
    entered: HashSet<FileId>,
    ahead: VecDeque<PathBuf>,
    /// Directories to be looked through last, see [`find`].
    sensitive: HashSet<FileId>,
    last: Vec<PathBuf>,
    names: usize,
    begin: Instant,
}

/// Finds names for `wanted`: first among the paths in `likely`, then in the directories of these and all below, then in
/// places where programs keep files, and last everywhere on the file systems in question. What is not found within the bounds
/// is missing in the result. Directories in `sensitive` are looked through only if all else does not help: somebody is told of
/// it.
pub(crate) fn find(
    wanted: impl IntoIterator<Item = FileId>,
    sensitive: &HashSet<FileId>,
    likely: impl IntoIterator<Item = PathBuf>,
) -> HashMap<FileId, ImagePath> {
    let mut search = Search::near(wanted, sensitive, likely);
    if !search.is_done() {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let usual = ["/tmp", "/var/tmp", "/dev/shm", "/run"].map(PathBuf::from);
        search.walk(home.into_iter().chain(usual));
    }
    if !search.is_done() {
        search.walk(mount_points());
    }
    if !search.is_done() {
        search.sensitive.clear();
        let last = std::mem::take(&mut search.last);
        search.walk(last);
    }
    search.found
}

/// Finds names for `wanted` in the directories of the paths in `near` and below only.
pub(crate) fn find_near(
    wanted: impl IntoIterator<Item = FileId>,
    sensitive: &HashSet<FileId>,
    near: impl IntoIterator<Item = PathBuf>,
) -> HashMap<FileId, ImagePath> {
    Search::near(wanted, sensitive, near).found
}

impl Search {
    /// What is found among `likely` and below them.
    fn near(
        wanted: impl IntoIterator<Item = FileId>,
        sensitive: &HashSet<FileId>,
        likely: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        let wanted: HashSet<FileId> = wanted.into_iter().collect();
        let mut search = Search {
            devices: wanted.iter().map(|(device, _)| *device).collect(),
            wanted,
            found: HashMap::new(),
            entered: HashSet::new(),
            ahead: VecDeque::new(),
            sensitive: sensitive.clone(),
            last: Vec::new(),
            names: 0,
            begin: Instant::now(),
        };
        let likely: HashSet<PathBuf> = likely.into_iter().filter(|p| p.is_absolute()).collect();
        for path in &likely {
            path.ancestors().for_each(|path| search.look_at(path));
        }
        if !search.is_done() {
            // Breadth first: what is near is likelier than what is deep.
            let mut directories: Vec<&Path> = likely
                .iter()
                .flat_map(|path| [path.as_path()].into_iter().chain(path.parent()))
                .filter(|path| path.parent().is_some())
                .collect();
            directories.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
            search.walk(directories.into_iter().map(Path::to_owned));
        }
        search
    }

    fn is_done(&self) -> bool {
        self.found.len() == self.wanted.len()
    }

    fn is_out_of_bounds(&self) -> bool {
        self.names > MOST_NAMES || self.begin.elapsed() > LONGEST
    }

    fn look_at(&mut self, path: &Path) {
        if let Ok(stat) = rustix::fs::lstat(path) {
            self.take((stat.st_dev, stat.st_ino), path);
        }
    }

    fn take(&mut self, id: FileId, path: &Path) {
        if self.wanted.contains(&id) && !self.found.contains_key(&id) {
            self.found.insert(id, path.into());
            // Nothing more is looked for where all was found.
            let missing = self.wanted.iter().filter(|id| !self.found.contains_key(id));
            self.devices = missing.map(|(device, _)| *device).collect();
        }
    }

    fn walk(&mut self, from: impl IntoIterator<Item = PathBuf>) {
        self.ahead.extend(from);
        while let Some(directory) = self.ahead.pop_front() {
            if self.is_done() || self.is_out_of_bounds() {
                self.ahead.clear();
                return;
            }
            self.look_through(&directory);
        }
    }

    /// Looks at the names in a directory. Their inode numbers come with them, so that few need to be looked at closely.
    fn look_through(&mut self, path: &Path) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // Other users' directories are closed to us, and directories vanish.
        let Ok(directory) = rustix::fs::openat(CWD, path, flags, Mode::empty()) else {
            return;
        };
        let Ok(stat) = rustix::fs::fstat(&directory) else {
            return;
        };
        self.take((stat.st_dev, stat.st_ino), path);
        if !self.devices.contains(&stat.st_dev) || !self.entered.insert((stat.st_dev, stat.st_ino))
        {
            return;
        }
        let Ok(entries) = Dir::read_from(&directory) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            self.names += 1;
            let full = || path.join(std::ffi::OsStr::from_bytes(name));
            if self.wanted.contains(&(stat.st_dev, entry.ino())) {
                let look =
                    rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                if let Ok(found) = look {
                    self.take((found.st_dev, found.st_ino), &full());
                }
            }
            if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
                match self.sensitive.contains(&(stat.st_dev, entry.ino())) {
                    true => self.last.push(full()),
                    false => self.ahead.push_back(full()),
                }
            }
        }
    }
}

/// Where file systems are mounted.
fn mount_points() -> Vec<PathBuf> {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    // The fifth word is the mount point, with blanks and the like as octal numbers.
    crate::procfs::text::lines(&text)
        .filter_map(|line| crate::procfs::text::words(line).nth(4).map(unescape))
        .map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(&path)))
        .collect()
}

fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| crate::procfs::text::unsigned(digits, 8))
            .and_then(|code| u8::try_from(code).ok());
        plain.push(code.unwrap_or(first));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(path: &Path) -> FileId {
        let stat = rustix::fs::lstat(path).unwrap();
        (stat.st_dev, stat.st_ino)
    }

    #[test]
    fn files_are_found_near_likely_places() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b");
        std::fs::create_dir_all(&deep).unwrap();
        let file = deep.join("file");
        std::fs::write(&file, "").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let found = find(
            [id(&file), id(&link), id(folder.path())],
            &HashSet::new(),
            [folder.path().join("something")],
        );
        assert_eq!(found[&id(&file)].as_path(), file);
        assert_eq!(found[&id(&link)].as_path(), link);
        assert_eq!(found[&id(folder.path())].as_path(), folder.path());
    }

    #[test]
    fn what_is_gone_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let id = id(&file);
        let open = std::fs::File::open(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(find_near([id], &HashSet::new(), [file]).is_empty());
        drop(open);
    }

    #[test]
    fn blanks_in_mount_points_are_read() {
        assert_eq!(unescape(b"/a\\040b\\0"), b"/a b\\0");
    }
}
