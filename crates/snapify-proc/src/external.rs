//! Objects that belong to an agent in the process and not to the image.

use crate::ids::{RemoteAddr, RemoteFd};
use serde::{Deserialize, Serialize};

/// An object (a connection, the local store of an offload process) that an agent in the process declared its own.
///
/// Its content is not saved. At restore the caller supplies one open descriptor for the key, which is put at the same
/// descriptor numbers and mapped at the same places before any thread runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct External {
    /// Its name, unique in the process.
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
