//! Making pseudo-terminals again, in an instance (a devpts file system) of the tree's own: there all numbers are free.

use super::{Side, TerminalEnd, TerminalImage, queue};
use crate::error::{Obstacle, ProcError};
use crate::ids::Pid;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use snapify_sys::tty::{self, Termios};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The pseudo-terminals of an image, made.
#[derive(Debug)]
pub(crate) struct NewTerminals {
    made: Vec<Made>,
}

#[derive(Debug)]
struct Made {
    /// Closed once a terminal that was hung up has all its descriptions.
    master: Option<OwnedFd>,
    /// The program's side, if that is to have been opened: with the last of its descriptors closed, the master side shows
    /// that.
    side: Option<OwnedFd>,
}

impl NewTerminals {
    /// Makes them, with all that they hold.
    ///
    /// # Errors
    /// If the kernel has no more, or not under these numbers.
    pub(crate) fn new(
        images: &[TerminalImage],
        sides: impl Fn(usize) -> Option<Side>,
        ctx: &RestoreContext<'_>,
    ) -> Result<Self, ProcError> {
        if images.is_empty() {
            return Ok(Self { made: Vec::new() });
        }
        own_instance(ctx);
        let mut masters = allocate(images, sides, ctx)?;
        let mut made = Vec::with_capacity(images.len());
        for (index, image) in images.iter().enumerate() {
            let master = masters
                .remove(&index)
                .ok_or_else(|| unavailable(image, ctx))?;
            let failed = |source: io::Error| ProcError::System {
                what: format!("set up terminal /dev/pts/{}", image.number),
                source,
            };
            let side = image.set_up(&master, ctx).map_err(failed)?;
            made.push(Made {
                master: Some(master),
                side,
            });
        }
        Ok(Self { made })
    }

    /// A description of a side of one of them.
    ///
    /// # Errors
    /// Those of opening it.
    pub(crate) fn description(&self, end: TerminalEnd, flags: u32) -> Result<OwnedFd, ProcError> {
        let failed = ProcError::system("open a side of a terminal");
        let Some(master) = self.made.get(end.terminal).and_then(|m| m.master.as_ref()) else {
            return Err(failed(io::Error::from_raw_os_error(libc::ENXIO)));
        };
        if !end.side.is_master() {
            return tty::peer(master, flags.cast_signed()).map_err(failed);
        }
        let status = OFlags::from_bits_retain(flags) & (OFlags::NONBLOCK | OFlags::APPEND);
        rustix::fs::fcntl_setfl(master, status)
            .map_err(io::Error::from)
            .and_then(|()| master.try_clone())
            .map_err(failed)
    }

    /// Hangs up those that are to be, once they have all their descriptions.
    pub(crate) fn hang_up(&mut self, images: &[TerminalImage]) {
        for (made, image) in self.made.iter_mut().zip(images) {
            if image.hung_up {
                made.master = None;
            }
        }
    }

    /// The number of a descriptor that the leader of each session has inherited of what is to be its controlling terminal.
    pub(crate) fn controlling(&self, images: &[TerminalImage]) -> HashMap<i32, i32> {
        let all = self.made.iter().zip(images);
        all.filter_map(|(made, image)| {
            let side = made.side.as_ref().filter(|_| image.session != 0)?;
            Some((image.session, side.as_raw_fd()))
        })
        .collect()
    }

    /// What would be in the way of opening them, or show in the queues.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(crate) fn finish(&self, images: &[TerminalImage]) -> Result<(), ProcError> {
        for (made, image) in self.made.iter().zip(images) {
            let Some(master) = &made.master else {
                continue;
            };
            let set = || {
                if let Some(side) = made.side.as_ref().filter(|_| image.exclusive) {
                    tty::set_exclusive(side, true)?;
                }
                tty::set_packet_mode(master, image.packet_mode)?;
                tty::set_locked(master, image.locked)
            };
            set().map_err(ProcError::system(format!(
                "set the modes of terminal /dev/pts/{}",
                image.number
            )))?;
        }
        Ok(())
    }
}

/// Opens the controlling terminal of a process under construction there, as `/dev/tty`.
pub(crate) fn open_own(tracee: &mut Tracee<'_>, flags: u32) -> Result<u64, ProcError> {
    let path = tracee.put_cstr("/dev/tty")?;
    let kept = libc::O_ACCMODE | libc::O_NONBLOCK | libc::O_APPEND;
    let flags = flags & kept.cast_unsigned() | libc::O_CLOEXEC.cast_unsigned();
    let at = libc::AT_FDCWD as u64;
    tracee
        .syscall(
            "openat",
            libc::SYS_openat,
            [at, path.0, flags.into(), 0, 0, 0],
        )
        .map_err(|error| match error {
            ProcError::RemoteSyscall { source, .. } => ProcError::file("open", "/dev/tty")(source),
            other => other,
        })
}

/// Covers `/dev/pts` with a new instance. The restart's own terminal stays open, but has no name there.
fn own_instance(ctx: &RestoreContext<'_>) {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    let data = c"mode=620,ptmxmode=666";
    if let Err(e) = rustix::mount::mount("devpts", "/dev/pts", "devpts", flags, data) {
        ctx.warn(format!(
            "pseudo-terminals are the machine's own, as /dev/pts cannot be mounted: {e}"
        ));
    }
}

/// Makes terminals until all wanted numbers have come, by index. The kernel gives the lowest that is free.
fn allocate(
    images: &[TerminalImage],
    sides: impl Fn(usize) -> Option<Side>,
    ctx: &RestoreContext<'_>,
) -> Result<HashMap<usize, OwnedFd>, ProcError> {
    let mut wanted: HashMap<u32, usize> = HashMap::new();
    let mut any = Vec::new();
    // Those that were hung up may have had a number that another has now.
    for (index, image) in images.iter().enumerate() {
        if !image.hung_up {
            wanted.insert(image.number, index);
        }
    }
    for (index, image) in images.iter().enumerate().filter(|(_, i)| i.hung_up) {
        match wanted.entry(image.number) {
            Entry::Occupied(_) => any.push(index),
            Entry::Vacant(place) => {
                place.insert(index);
            }
        }
    }
    let mut masters = HashMap::new();
    let mut others = Vec::new();
    while masters.len() < wanted.len() {
        let missing = wanted
            .iter()
            .filter(|(_, index)| !masters.contains_key(*index));
        let Some((&greatest, &index)) = missing.max_by_key(|(number, _)| **number) else {
            break;
        };
        // The one with the greatest number comes last in a new instance: at any other time another will do.
        let master = open_master("/dev/ptmx")?;
        let number = tty::number(&master).map_err(ProcError::system("number a terminal"))?;
        match wanted.get(&number) {
            Some(&index) => {
                let by_instance = sides(index) == Some(Side::MasterByInstance);
                masters.insert(index, if by_instance { again(master)? } else { master });
            }
            None if number > greatest => return Err(unavailable(&images[index], ctx)),
            None => others.push(master),
        }
    }
    for index in any {
        let master = others.pop().map_or_else(|| open_master("/dev/ptmx"), Ok)?;
        masters.insert(index, master);
    }
    Ok(masters)
}

fn open_master(path: &str) -> Result<OwnedFd, ProcError> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(ProcError::file("open", path))
}

/// The same number, which is the lowest that is free then, by the other name.
fn again(master: OwnedFd) -> Result<OwnedFd, ProcError> {
    drop(master);
    open_master("/dev/pts/ptmx")
}

fn unavailable(image: &TerminalImage, ctx: &RestoreContext<'_>) -> ProcError {
    let name = format!("terminal /dev/pts/{}", image.number);
    ProcError::Unsupported {
        pid: Pid(ctx.image.root().pid()),
        obstacles: vec![Obstacle::new(name, "its number is taken here")],
    }
}

impl TerminalImage {
    /// Gives a new terminal all that it had, but for what would be in the way of opening it. Gives its other side, if that is to
    /// have been opened.
    fn set_up(&self, master: &OwnedFd, ctx: &RestoreContext<'_>) -> io::Result<Option<OwnedFd>> {
        tty::set_locked(master, false)?;
        if self.hung_up {
            return Ok(None);
        }
        let settings = Termios::from(self.settings);
        let [ws_row, ws_col, ws_xpixel, ws_ypixel] = self.size;
        let size = rustix::termios::Winsize {
            ws_row,
            ws_col,
            ws_xpixel,
            ws_ypixel,
        };
        rustix::termios::tcsetwinsize(master, size)?;
        if !self.opened {
            tty::set_settings(master, &settings)?;
            return Ok(None);
        }
        let side = tty::peer(master, libc::O_RDWR | libc::O_NONBLOCK)?;
        let lost = |what: &str, e: io::Error| {
            ctx.warn(format!(
                "terminal /dev/pts/{} loses some {what}: {e}",
                self.number
            ));
        };
        if let Err(e) = queue::put_output(side.as_fd(), &settings, &self.output.0) {
            lost("output", e);
        }
        if let Err(e) = queue::put_input(master.as_fd(), side.as_fd(), &settings, &self.input) {
            lost("input", e);
        }
        if let Some(how) = self.suspended {
            queue::suspend(master.as_fd(), side.as_fd(), &settings, how)?;
        }
        Ok(Some(side))
    }
}
