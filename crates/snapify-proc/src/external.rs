//! Objects that belong to an agent in the process and not to the image.

use crate::ids::{Pid, RemoteAddr, RemoteFd};
use crate::procfs::maps::Mapping;
use serde::{Deserialize, Serialize};

/// An object (a connection, the local store of an offload process) that an agent in the process declared its own.
///
/// Its content is not saved. At restore the caller supplies one open descriptor for the key, which is put at the same
/// descriptor numbers and mapped at the same places before any thread runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct External {
    /// Its name, unique in the tree.
    pub key: String,
    /// The descriptors that lead to it.
    pub fds: Vec<RemoteFd>,
    /// Address and bytes of each place where it is mapped.
    pub mappings: Vec<(RemoteAddr, u64)>,
}

impl External {
    /// Whether the mapping at `start` with `bytes` lies within one of this object's.
    #[must_use]
    pub fn maps(&self, start: RemoteAddr, bytes: u64) -> bool {
        let end = start.0.saturating_add(bytes);
        self.mappings
            .iter()
            .any(|&(at, len)| at.0 <= start.0 && end <= at.0.saturating_add(len))
    }
}

/// What the agent in one process of a tree has declared its own.
///
/// Children that have inherited it, by fork(2), have it too, and get what is supplied for it: descriptors of the same open
/// file descriptions, and mappings of the same files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The process, as the caller sees its id.
    pub pid: Pid,
    /// The objects.
    pub externals: Vec<External>,
    /// Processes that are not saved here, as the caller sees their ids, but may hold its standard output and error: that does not
    /// stand in the way.
    pub partners: Vec<Pid>,
}

/// What a process itself has declared.
pub(crate) fn declared_by(declared: &[Declared], pid: Pid) -> &[External] {
    let own = declared.iter().find(|one| one.pid == pid);
    own.map_or(&[], |own| &own.externals)
}

/// The files behind the places where declared objects are mapped. Other processes have an object mapped where they map its file:
/// addresses say nothing there.
#[derive(Debug, Default)]
pub(crate) struct MappedFiles {
    /// Key of the object, device and inode number.
    files: Vec<(String, (u32, u32), u64)>,
}

impl MappedFiles {
    /// Takes note of what a process has declared, and has mapped like this.
    pub(crate) fn note(&mut self, own: &[External], maps: &[Mapping]) {
        for external in own {
            for mapping in maps.iter().filter(|mapping| mapping.inode != 0) {
                let known = |file: &(String, (u32, u32), u64)| {
                    (file.1, file.2) == (mapping.device, mapping.inode)
                };
                if external.maps(mapping.start, mapping.bytes()) && !self.files.iter().any(known) {
                    let key = external.key.clone();
                    self.files.push((key, mapping.device, mapping.inode));
                }
            }
        }
    }

    /// What is no part of the image of a process with these mappings: what it has `own`, and what of others' it has inherited.
    pub(crate) fn of(&self, own: &[External], maps: &[Mapping]) -> Vec<External> {
        let mut all = own.to_vec();
        for (key, device, inode) in &self.files {
            let mappings: Vec<_> = maps
                .iter()
                .filter(|one| one.shared && one.device == *device && one.inode == *inode)
                .filter(|one| !own.iter().any(|own| own.maps(one.start, one.bytes())))
                .map(|one| (one.start, one.bytes()))
                .collect();
            if !mappings.is_empty() {
                all.push(External {
                    key: key.clone(),
                    fds: Vec::new(),
                    mappings,
                });
            }
        }
        all
    }
}

/// What becomes of connections to those who are not saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outside {
    /// They stand in the way.
    #[default]
    Refuse,
    /// TCP connections come back as closed by the peer.
    CloseTcp,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, bytes: u64, inode: u64) -> Mapping {
        let text = format!(
            "{start:x}-{:x} rw-s 00000000 00:2a {inode} /tmp/store (deleted)\n",
            start + bytes
        );
        let maps = crate::procfs::maps::parse(text.as_bytes()).expect("a line of maps");
        maps.into_iter().next().expect("one mapping")
    }

    #[test]
    fn a_child_has_the_file_and_others_only_the_address() {
        let own = [External {
            key: "store".into(),
            fds: Vec::new(),
            mappings: vec![(RemoteAddr(0x10000), 0x8000)],
        }];
        let parent = [mapping(0x10000, 0x8000, 7), mapping(0x40000, 0x1000, 9)];
        let mut files = MappedFiles::default();
        files.note(&own, &parent);
        assert_eq!(files.of(&own, &parent), own);
        let child = [mapping(0x10000, 0x8000, 7)];
        assert_eq!(files.of(&[], &child), own);
        let moved = files.of(&[], &[mapping(0x70000, 0x1000, 7)]);
        assert_eq!(moved[0].mappings, [(RemoteAddr(0x70000), 0x1000)]);
        let stranger = [mapping(0x10000, 0x8000, 8), mapping(0x40000, 0x1000, 9)];
        assert_eq!(files.of(&[], &stranger), []);
    }
}
