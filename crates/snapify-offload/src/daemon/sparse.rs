//! Where a sparse file holds data.

use snapify_store::{PAGE_SIZE, PageRange, SpaceId};
use std::fs::File;
use std::io;

/// The parts of a sparse file that hold data (lseek(2), `SEEK_DATA`), in whole pages.
pub fn data_ranges(file: &File, bytes: u64) -> io::Result<Vec<PageRange>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < bytes {
        let start = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(start) => start / PAGE_SIZE * PAGE_SIZE,
            // No data from here on.
            Err(rustix::io::Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start.max(at)))?
            .next_multiple_of(PAGE_SIZE)
            .min(bytes);
        if end <= start {
            break;
        }
        ranges.push(PageRange {
            space: SpaceId(0),
            start,
            bytes: end - start,
        });
        at = end;
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use snapify_fabric::SharedFile;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    #[test]
    fn holes_of_a_store_are_not_saved() {
        let store = SharedFile::create_in(Path::new("/dev/shm"), 1 << 40).unwrap();
        let file = File::from(store.as_fd().try_clone_to_owned().unwrap());
        assert_eq!(data_ranges(&file, store.bytes()).unwrap(), []);
        file.write_at(&[1; 5000], 8192).unwrap();
        file.write_at(&[1; 10], (1 << 40) - 4096).unwrap();
        let ranges: Vec<_> = data_ranges(&file, store.bytes())
            .unwrap()
            .iter()
            .map(|range| (range.start, range.bytes))
            .collect();
        assert_eq!(ranges, [(8192, 8192), ((1 << 40) - 4096, 4096)]);
    }
}
