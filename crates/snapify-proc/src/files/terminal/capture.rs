//! Saving pseudo-terminals of a frozen tree.

use super::survey::Pair;
use super::{Outer, TerminalImage, queue};
use crate::error::Obstacle;
use crate::files::survey::{Seen, View};
use crate::ids::Pid;
use crate::image::hex::HexBytes;
use crate::procfs::ProcDir;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use snapify_sys::tty;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Saves the terminal with this index among those that the survey has found.
///
/// # Errors
/// What stands in the way.
pub(crate) fn capture(view: &View<'_>, index: usize) -> Result<TerminalImage, Obstacle> {
    let pair = &view.terminals.pairs[index];
    let name = format!("terminal /dev/pts/{}", pair.number);
    let unreadable = |e: io::Error| Obstacle::new(&name, format!("it cannot be read: {e}"));
    let master = view.duplicate_at(pair.master).map_err(unreadable)?;
    let mut image = look(&master, pair).map_err(unreadable)?;
    if tty::discipline(&master).map_err(unreadable)? != 0 {
        return Err(Obstacle::new(
            name,
            "it has a line discipline of its own, which is not supported",
        ));
    }
    if let Some(session) = pair.session {
        let member = view.members.get(&Pid(session));
        image.session = member.ok_or_else(|| {
            let why = format!(
                "it is the controlling terminal of session {session}, whose leader is no process of the tree"
            );
            Obstacle::new(&name, why)
        })?
        .0;
        let group = tty::foreground(&master).map_err(unreadable)?;
        image.foreground = inner_group(view, group);
    }
    let side = pair
        .side
        .map(|place| view.duplicate_at(place))
        .transpose()
        .map_err(unreadable)?;
    if let Some(side) = &side {
        image.exclusive = tty::exclusive(side).map_err(unreadable)?;
    }
    contents(&mut image, &master, side.as_ref()).map_err(unreadable)?;
    Ok(image)
}

fn look(master: &OwnedFd, pair: &Pair) -> io::Result<TerminalImage> {
    Ok(TerminalImage {
        number: pair.number,
        settings: tty::settings(master)?.into(),
        size: size(master.as_fd())?,
        opened: pair.side.is_some() || hangs_up(master.as_fd())?,
        locked: tty::locked(master)?,
        packet_mode: tty::packet_mode(master)?,
        ..TerminalImage::default()
    })
}

fn size(terminal: BorrowedFd<'_>) -> io::Result<[u16; 4]> {
    let size = rustix::termios::tcgetwinsize(terminal)?;
    Ok([size.ws_row, size.ws_col, size.ws_xpixel, size.ws_ypixel])
}

/// Whether the program's side has been opened and closed.
fn hangs_up(master: BorrowedFd<'_>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(master, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now))?;
    Ok(fds[0].revents().contains(PollFlags::HUP))
}

/// What is on its way, which is taken out and put back at once. With nothing on its way hardly anything is touched.
fn contents(image: &mut TerminalImage, master: &OwnedFd, side: Option<&OwnedFd>) -> io::Result<()> {
    if image.packet_mode {
        // What is read would have a byte of control before it, and what is done here would be told about.
        tty::set_packet_mode(master, false)?;
    }
    let result = exchange(image, master, side);
    if image.packet_mode {
        tty::set_packet_mode(master, true)?;
    }
    result
}

fn exchange(image: &mut TerminalImage, master: &OwnedFd, side: Option<&OwnedFd>) -> io::Result<()> {
    let settings = image.settings.into();
    let reopened;
    let side = match side {
        Some(side) => side,
        // The program's side was never opened, and would not be as it is now if it were.
        None if !image.opened => return Ok(()),
        None if image.locked => return Ok(()),
        None => {
            reopened = tty::peer(master, libc::O_RDWR | libc::O_NONBLOCK)?;
            &reopened
        }
    };
    let output = queue::take_output(master.as_fd())?;
    if queue::is_suspended(side.as_fd())? {
        // Nothing passes then, not even what has been taken out.
        image.suspended = Some(queue::resume(side.as_fd(), &settings)?);
    }
    queue::put_output(side.as_fd(), &settings, &output)?;
    image.output = HexBytes(output);
    image.input = queue::take_input(side.as_fd(), &settings)?;
    if !image.input.is_empty() {
        queue::put_input(master.as_fd(), side.as_fd(), &settings, &image.input)?;
    }
    if let Some(how) = image.suspended {
        queue::suspend(master.as_fd(), side.as_fd(), &settings, how)?;
    }
    Ok(())
}

/// What a group, as we see it, is called within the tree; 0 if it has no member there.
fn inner_group(view: &View<'_>, group: i32) -> i32 {
    view.members
        .keys()
        .filter_map(|&pid| ProcDir::open(pid).ok()?.status().ok())
        .find(|status| status.ns_pgrp.first() == Some(&group))
        .map_or(0, |status| status.inner_pgrp())
}

/// The controlling terminal of the tree that is not within it, if there is one.
pub(crate) fn outer(view: &View<'_>) -> Option<Outer> {
    let owner = view.owners.iter().find(|owner| {
        // This process comes last, for what is on its way through sockets.
        let is_member = view.members.contains_key(&owner.proc.pid());
        let session = owner
            .proc
            .status()
            .ok()
            .and_then(|s| s.ns_session.first().copied());
        is_member
            && owner.terminal != 0
            && session.is_some_and(|session| !view.terminals.controls(session))
    })?;
    let is_it = |seen: &&Seen| {
        seen.file_type() == FileType::CharacterDevice
            && seen.stat.st_rdev == u64::from(owner.terminal.cast_unsigned())
    };
    let stream = owner.stdio.iter().flatten().find(is_it)?;
    let terminal = view.duplicate(stream).ok()?;
    Some(Outer {
        settings: tty::settings(&terminal).ok()?.into(),
        size: size(terminal.as_fd()).ok()?,
        foreground: inner_group(view, owner.foreground),
    })
}
