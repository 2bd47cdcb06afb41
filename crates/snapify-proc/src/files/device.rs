//! Character devices that have no state and are the same everywhere.

use super::Object;
use super::survey::{Found, Recognized, Seen};
use crate::path::ImagePath;
use rustix::fs::{FileType, major, minor};
use serde::{Deserialize, Serialize};

/// A device without state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its path when it was opened.
    pub path: ImagePath,
    /// Major device number.
    pub major: u32,
    /// Minor device number.
    pub minor: u32,
}

/// Major number of the memory devices (Documentation/admin-guide/devices.txt).
const MEMORY: u32 = 1;

/// `null`, `zero`, `full`, `random` and `urandom`.
const STATELESS: [(u32, &str); 5] = [
    (3, "/dev/null"),
    (5, "/dev/zero"),
    (7, "/dev/full"),
    (8, "/dev/random"),
    (9, "/dev/urandom"),
];

pub(crate) fn recognize(seen: &Seen) -> Recognized {
    if seen.file_type() != FileType::CharacterDevice {
        return None;
    }
    let (major, minor) = (major(seen.stat.st_rdev), minor(seen.stat.st_rdev));
    let device = Device {
        path: seen.link.clone(),
        major,
        minor,
    };
    device
        .usual_path()
        .is_some()
        .then_some(Ok(Found::Whole(Object::Device(device))))
}

impl Device {
    /// Where the device is found on any Linux system; `None` if it is none that we know.
    #[must_use]
    pub fn usual_path(&self) -> Option<&'static str> {
        let known = STATELESS
            .iter()
            .find(|(minor, _)| self.major == MEMORY && self.minor == *minor);
        known.map(|(_, path)| *path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_devices_are_where_they_should_be() {
        for (_, path) in STATELESS {
            let rdev = rustix::fs::stat(path).unwrap().st_rdev;
            let device = Device {
                path: ImagePath::from_bytes("/elsewhere"),
                major: major(rdev),
                minor: minor(rdev),
            };
            assert_eq!(device.usual_path(), Some(path));
        }
        assert_eq!(
            Device {
                path: ImagePath::default(),
                major: 10,
                minor: 3
            }
            .usual_path(),
            None
        );
    }
}
