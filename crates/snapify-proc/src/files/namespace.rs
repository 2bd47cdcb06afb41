//! Descriptors of namespaces (namespaces(7)). One of the process's own comes back as one of its own: the restarted process is in
//! new namespaces of some kinds, and a descriptor of the old ones would be of no use to it.

use super::Object;
use super::regular::{NamedFile, NamedType};
use super::survey::{Found, Recognized, Seen, View};
use crate::identity::FileIdentity;
use crate::path::ImagePath;

pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    // Links such as "net:[4026531840]".
    let (kind, rest) = crate::procfs::text::cut(seen.link.as_bytes(), b':')?;
    if !rest.starts_with(b"[") || !KINDS.contains(&kind) {
        return None;
    }
    let kind = String::from_utf8_lossy(kind);
    let owner = view.owner(seen);
    let own = owner
        .proc
        .stat_of(&format!("ns/{kind}"))
        .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == seen.object_id());
    if !own {
        let why = format!(
            "it is another {kind} namespace than the process's own, which is not supported"
        );
        return Some(Err(seen.obstacle(why)));
    }
    let path = format!("/proc/{}/ns/{kind}", owner.inner_pid);
    Some(Ok(Found::Whole(Object::Named(NamedFile {
        identity: FileIdentity::new(ImagePath::from_bytes(path), &seen.stat),
        offset: 0,
        file_type: NamedType::OwnProc,
    }))))
}

const KINDS: [&[u8]; 8] = [
    b"cgroup", b"ipc", b"mnt", b"net", b"pid", b"time", b"user", b"uts",
];
