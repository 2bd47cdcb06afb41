//! Standard input and output that lead outside of the process: terminals, and pipes and sockets
//! whose other end another process holds. A restarted program uses those of the restart instead, as
//! if it had been started there.

use super::survey::{Found, Recognized, Seen, View};
use super::{ACCESS_MODE, Object, can_write, pipe};
use rustix::fs::{FileType, major};
use serde::{Deserialize, Serialize};

/// A standard stream of the restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stdio {
    /// 0, 1 or 2.
    pub fd: u32,
    /// What it was when the snapshot was taken, for people.
    pub was: String,
}

impl Stdio {
    pub(crate) fn new(fd: u32, seen: &Seen) -> Self {
        Self {
            fd,
            was: seen.link.to_string(),
        }
    }
}

/// Recognizes a terminal, pipe or socket that is standard input, output or error, or the same
/// object as one of them. All kinds that are within the process have been asked before.
pub(crate) fn recognize(seen: &Seen, view: &View<'_>) -> Recognized {
    if !leads_outside(seen) {
        return None;
    }
    let fd = standard_stream(seen, view)?;
    Some(Ok(Found::Whole(Object::Stdio(Stdio::new(fd, seen)))))
}

fn leads_outside(seen: &Seen) -> bool {
    match seen.file_type() {
        FileType::Socket | FileType::Fifo => true,
        FileType::CharacterDevice => is_terminal(seen),
        _ => false,
    }
}

/// Major device numbers of the sides of terminals that programs run on: virtual consoles and serial
/// lines (4, 204), `/dev/tty` and `/dev/console` (5), pseudo-terminals (136 to 143), hypervisor
/// consoles (229).
fn is_terminal(seen: &Seen) -> bool {
    const PSEUDO_TERMINAL_MASTER: u64 = 5 << 8 | 2;
    matches!(major(seen.stat.st_rdev), 4 | 5 | 136..=143 | 204 | 229)
        && seen.stat.st_rdev != PSEUDO_TERMINAL_MASTER
}

/// The standard stream of the restart that the descriptor will lead to: the one of the first process that is the same object,
/// else the one whose number it has, or that its own process has for the same object, or has put away. Of several the one
/// with the same access mode, and if none has it, one that at least can be written if it can.
pub(crate) fn standard_stream(seen: &Seen, view: &View<'_>) -> Option<u32> {
    let own_number = u32::try_from(seen.fd.0).ok().filter(|fd| *fd < 3);
    if seen.process == 0 && own_number.is_some() {
        return own_number;
    }
    same_object(seen, view, &view.owners.first()?.stdio)
        .or(own_number)
        .or_else(|| same_object(seen, view, &view.owner(seen).stdio))
        .or_else(|| kept_stream(seen, view))
}

/// The standard stream that a shell has put away: while it redirects one for commands of its own, it keeps the old one where no
/// command looks, at descriptor 10 or above and closed on exec (dash, bash and zsh alike).
fn kept_stream(seen: &Seen, view: &View<'_>) -> Option<u32> {
    let leads_outside = matches!(
        view.pipes.get(&seen.stat.st_ino),
        Some((true, false) | (false, true))
    );
    let is_kept = is_put_away(seen) && pipe::is_anonymous(seen) && leads_outside;
    is_kept.then(|| place_of_kept(seen, view, self::leads_outside))
}

/// The same for a file that cannot be opened again.
pub(super) fn kept_file(seen: &Seen, view: &View<'_>) -> Option<u32> {
    let is_kept = is_put_away(seen) && seen.file_type() == FileType::RegularFile;
    is_kept.then(|| place_of_kept(seen, view, |stream| stream.object_id() == seen.object_id()))
}

fn is_put_away(seen: &Seen) -> bool {
    const LOWEST: i32 = 10;
    seen.fd.0 >= LOWEST && seen.close_on_exec()
}

/// The stream whose place something else has taken than what `is_original` is said of.
fn place_of_kept(seen: &Seen, view: &View<'_>, is_original: impl Fn(&Seen) -> bool) -> u32 {
    if !can_write(seen.flags()) {
        return 0;
    }
    let [_, output, error] = &view.owner(seen).stdio;
    let is_redirected =
        |stream: &Option<Seen>| stream.as_ref().is_none_or(|stream| !is_original(stream));
    match is_redirected(error) && !is_redirected(output) {
        true => 2,
        false => 1,
    }
}

fn same_object(seen: &Seen, view: &View<'_>, stdio: &[Option<Seen>; 3]) -> Option<u32> {
    let same = (0..).zip(stdio).filter_map(|(fd, stream)| {
        let stream = stream.as_ref()?;
        let same_object = stream.object_id() == seen.object_id()
            || is_controlling(seen, view) && has_terminal(stream, view);
        same_object.then_some((fd, stream))
    });
    same.max_by_key(|(fd, stream)| {
        let same_mode = stream.flags() & ACCESS_MODE == seen.flags() & ACCESS_MODE;
        (
            same_mode,
            can_write(stream.flags()) == can_write(seen.flags()),
            std::cmp::Reverse(*fd),
        )
    })
    .map(|(fd, _)| fd)
}

/// Whether it is `/dev/tty`, which stands for the controlling terminal.
fn is_controlling(seen: &Seen, view: &View<'_>) -> bool {
    const TTY: u64 = 5 << 8;
    let terminal = view.owner(seen).terminal;
    terminal != 0 && seen.file_type() == FileType::CharacterDevice && seen.stat.st_rdev == TTY
}

/// Whether a stream is the controlling terminal itself.
fn has_terminal(stream: &Seen, view: &View<'_>) -> bool {
    stream.file_type() == FileType::CharacterDevice
        && stream.stat.st_rdev == u64::from(view.owner(stream).terminal.cast_unsigned())
}
