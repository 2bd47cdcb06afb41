//! What is on its way between the two sides of a pseudo-terminal.
//!
//! Nobody can look at it without taking it out, so it is taken out and put in again, at capture while all who could see
//! it are stopped. The line discipline would change it on the way (echo it, send signals, wait for whole lines), so this is
//! done with settings under which it does nothing but keep lines apart.

use crate::image::hex::HexBytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use snapify_sys::tty::{self, Termios};
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long the kernel may take to pass on what was written; it does so within microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a terminal's buffer holds for its reader (`N_TTY_BUF_SIZE`), less room for the character that tells that
/// all has arrived.
const BUFFER: usize = 4094;

/// What waits to be read by a program on a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Whole lines, of which a read gets one at a time; only in canonical mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<Line>,
    /// What comes after them: a line that is still being typed, or all if there are no lines.
    #[serde(default)]
    pub rest: HexBytes,
}

/// A line of input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Its bytes with the character that ends it.
    pub bytes: HexBytes,
    /// Whether it was ended by the end-of-file character, which is not part of it.
    #[serde(default)]
    pub end_of_file: bool,
}

impl Input {
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.rest.0.is_empty()
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        let lines = self.lines.iter().flat_map(|line| &line.bytes.0);
        lines.chain(&self.rest.0).copied()
    }

    /// Bytes that are in none of it, and that mean nothing to the line discipline: to stand for characters of control.
    fn absent(&self) -> Option<(u8, u8)> {
        let mut used = [false; 256];
        self.bytes().for_each(|byte| used[usize::from(byte)] = true);
        let mut free = (1..=254_u8).filter(|&byte| !used[usize::from(byte)] && byte != b'\n');
        Some((free.next()?, free.next()?))
    }
}

fn is_canonical(settings: &Termios) -> bool {
    settings.local & (libc::ICANON | libc::EXTPROC) == libc::ICANON
}

/// Settings under which nothing is changed, echoed or turned into a signal. What decides how lines are kept apart stays:
/// the kernel forgets the lines when it changes. So does IXON: output that is suspended would start again.
fn calm(settings: &Termios) -> Termios {
    Termios {
        input: settings.input & libc::IXON,
        output: 0,
        local: settings.local & (libc::ICANON | libc::EXTPROC),
        ..*settings
    }
}

fn is_ready(fd: BorrowedFd<'_>, what: PollFlags) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(fd, what)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now))?;
    Ok(fds[0].revents().contains(what))
}

/// Whether output to the terminal is suspended. There is room for some, or that is the reason too.
pub(super) fn is_suspended(side: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(!is_ready(side, PollFlags::OUT)?)
}

fn read_all(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while is_ready(fd, PollFlags::IN)? {
        match rustix::io::read(fd, &mut buffer) {
            // Nothing more from a side that is closed.
            Ok(0) | Err(rustix::io::Errno::IO) => break,
            Ok(n) => bytes.extend_from_slice(&buffer[..n]),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(bytes)
}

/// Writes without ever waiting in the kernel: the descriptor may be a program's, whose flags it has.
///
/// The kernel limits its buffers by their sizes, a buffer of 256 holds 512 bytes, and the last one may exceed the limit: in
/// small pieces and a large one in the end whatever was there before fits in again.
fn write_all(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
    let result = write_at_once(fd, bytes);
    rustix::fs::fcntl_setfl(fd, flags)?;
    result
}

fn write_at_once(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    const SMALL: usize = 256;
    const LARGE: usize = 1792;
    while !bytes.is_empty() {
        let large = bytes.len() <= 2 * LARGE;
        let piece = bytes.len().min(if large { LARGE } else { SMALL });
        let mut written = 0;
        wait_until(|| match rustix::io::write(fd, &bytes[..piece]) {
            Err(rustix::io::Errno::AGAIN) => Ok(false),
            Err(e) => Err(e.into()),
            Ok(n) => {
                written = n;
                Ok(n > 0)
            }
        })?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Takes out what waits at the master side, which is not in packet mode.
pub(super) fn take_output(master: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    read_all(master)
}

/// Has `bytes` wait at the master side again.
pub(super) fn put_output(side: BorrowedFd<'_>, settings: &Termios, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    tty::set_settings(side, &calm(settings))?;
    let result = write_all(side, bytes);
    tty::set_settings(side, settings)?;
    result
}

/// Takes out what waits at the program's side.
pub(super) fn take_input(side: BorrowedFd<'_>, settings: &Termios) -> io::Result<Input> {
    // Whatever the kernel has not passed on yet it does now, under the program's own settings (n_tty_poll).
    is_ready(side, PollFlags::IN)?;
    if !is_canonical(settings) && rustix::io::ioctl_fionread(side)? == 0 {
        return Ok(Input::default());
    }
    let calm = calm(settings);
    tty::set_settings(side, &calm)?;
    let result = take_calmly(side, settings, &calm);
    // Even if that failed.
    tty::set_settings(side, settings)?;
    result
}

fn take_calmly(side: BorrowedFd<'_>, settings: &Termios, calm: &Termios) -> io::Result<Input> {
    let mut input = Input::default();
    let mut buffer = [0; 4096];
    while is_canonical(settings) && is_ready(side, PollFlags::IN)? {
        let n = rustix::io::read(side, &mut buffer)?;
        let ends = [
            b'\n',
            settings.characters[libc::VEOL],
            settings.characters[libc::VEOL2],
        ];
        let last = buffer[..n].last();
        input.lines.push(Line {
            end_of_file: last.is_none_or(|last| *last == 0 || !ends.contains(last)),
            bytes: HexBytes(buffer[..n].to_vec()),
        });
    }
    // A line that is not complete can be read in no other way.
    let mut raw = *calm;
    raw.local = 0;
    raw.characters[libc::VMIN] = 0;
    raw.characters[libc::VTIME] = 0;
    tty::set_settings(side, &raw)?;
    input.rest = HexBytes(read_all(side)?);
    Ok(input)
}

/// Has `input` wait at the program's side again, which has the settings afterwards.
///
/// # Errors
/// If it does not fit; the settings are made even so.
pub(super) fn put_input(
    master: BorrowedFd<'_>,
    side: BorrowedFd<'_>,
    settings: &Termios,
    input: &Input,
) -> io::Result<()> {
    if input.is_empty() {
        return tty::set_settings(side, settings);
    }
    let typed = type_in(master, side, settings, input);
    // First without flow control: output that we have suspended starts again with that.
    let mut calm = calm(settings);
    calm.input = 0;
    tty::set_settings(side, &calm)?;
    tty::set_settings(side, settings)?;
    // What did not fit into the buffer waits before it, to be treated as the settings say once there is room.
    write_all(master, &typed?)
}

/// Types the input in as far as it fits, and gives what is left.
fn type_in(
    master: BorrowedFd<'_>,
    side: BorrowedFd<'_>,
    settings: &Termios,
    input: &Input,
) -> io::Result<Vec<u8>> {
    let mut typing = calm(settings);
    let ends = [
        settings.characters[libc::VEOL],
        settings.characters[libc::VEOL2],
    ];
    typing.characters = [0; 19];
    typing.characters[libc::VMIN] = 1;
    if !is_canonical(settings) {
        typing.input = 0;
        tty::set_settings(side, &typing)?;
        let bytes: Vec<u8> = input.bytes().collect();
        let (now, later) = bytes.split_at(bytes.len().min(BUFFER));
        write_all(master, now)?;
        wait_until(|| Ok(rustix::io::ioctl_fionread(side)? >= now.len() as u64))?;
        return Ok(later.to_vec());
    }
    let (stop, end_of_file) = input
        .absent()
        .ok_or_else(|| io::Error::other("it holds every character there is"))?;
    typing.input = libc::IXON;
    typing.characters[libc::VSTOP] = stop;
    typing.characters[libc::VEOF] = end_of_file;
    tty::set_settings(side, &typing)?;
    let mut room = BUFFER;
    let mut later = Vec::new();
    for line in &input.lines {
        let bytes = &line.bytes.0;
        if bytes.len() >= room || !later.is_empty() {
            room = 0;
            later.extend_from_slice(bytes);
            later.extend(line.end_of_file.then_some(settings.characters[libc::VEOF]));
            continue;
        }
        room -= bytes.len() + usize::from(line.end_of_file);
        let last = bytes.last().copied().unwrap_or(0);
        if !line.end_of_file && last != b'\n' && ends.contains(&last) {
            // All before must have been told from this.
            arrive(master, side, &typing)?;
            let mut other = typing;
            other.characters[libc::VEOL] = last;
            tty::set_settings(side, &other)?;
            write_all(master, bytes)?;
            arrive(master, side, &other)?;
            tty::set_settings(side, &typing)?;
            continue;
        }
        write_all(master, bytes)?;
        if line.end_of_file {
            write_all(master, &[end_of_file])?;
        }
    }
    let rest = &input.rest.0;
    if later.is_empty() && rest.len() <= room {
        write_all(master, rest)?;
    } else {
        later.extend_from_slice(rest);
    }
    arrive(master, side, &typing)?;
    Ok(later)
}

/// Waits until all that was written to the master side has arrived, which the kernel tells nobody: a character that
/// suspends output is written after it, which shows in that the program's side takes none. Output goes on afterwards.
fn arrive(master: BorrowedFd<'_>, side: BorrowedFd<'_>, typing: &Termios) -> io::Result<()> {
    write_all(master, &[typing.characters[libc::VSTOP]])?;
    wait_until(|| is_suspended(side))?;
    let mut free = *typing;
    free.input &= !libc::IXON;
    tty::set_settings(side, &free)?;
    tty::set_settings(side, typing)
}

/// How output was suspended: what one has suspended the other does not let go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suspension {
    /// By the key for it (`^S`).
    Key,
    /// By a call (`TCOOFF`, tcflow(3)).
    Call,
}

/// Lets suspended output go on, and tells how it was suspended.
pub(super) fn resume(side: BorrowedFd<'_>, settings: &Termios) -> io::Result<Suspension> {
    let mut free = *settings;
    free.input &= !libc::IXON;
    tty::set_settings(side, &free)?;
    tty::set_settings(side, settings)?;
    if settings.input & libc::IXON != 0 && !is_suspended(side)? {
        return Ok(Suspension::Key);
    }
    rustix::termios::tcflow(side, rustix::termios::Action::OOn)?;
    Ok(Suspension::Call)
}

/// Suspends output of a terminal, which has these settings.
pub(super) fn suspend(
    master: BorrowedFd<'_>,
    side: BorrowedFd<'_>,
    settings: &Termios,
    how: Suspension,
) -> io::Result<()> {
    if how == Suspension::Call {
        return Ok(rustix::termios::tcflow(
            side,
            rustix::termios::Action::OOff,
        )?);
    }
    const STOP: u8 = 1;
    let mut typing = calm(settings);
    typing.input = libc::IXON;
    typing.characters = [0; 19];
    typing.characters[libc::VSTOP] = STOP;
    tty::set_settings(side, &typing)?;
    write_all(master, &[STOP])?;
    wait_until(|| is_suspended(side))?;
    tty::set_settings(side, settings)
}

fn wait_until(mut condition: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let begin = Instant::now();
    while !condition()? {
        if begin.elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // The kernel's worker needs a processor.
        std::thread::yield_now();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};

    fn terminal() -> (OwnedFd, OwnedFd) {
        let flags = rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY;
        let master = rustix::pty::openpt(flags).unwrap();
        tty::set_locked(&master, false).unwrap();
        let side = tty::peer(&master, libc::O_RDWR).unwrap();
        (master, side)
    }

    fn moved(change: impl FnOnce(&mut Termios), text: &[u8]) -> Input {
        let (master, side) = terminal();
        let mut settings = tty::settings(&side).unwrap();
        settings.local &= !libc::ECHO;
        change(&mut settings);
        tty::set_settings(&side, &settings).unwrap();
        write_all(master.as_fd(), text).unwrap();
        // All that can be read, in the end.
        std::thread::sleep(Duration::from_millis(20));
        let taken = take_input(side.as_fd(), &settings).unwrap();
        assert_eq!(tty::settings(&side).unwrap(), settings);
        assert!(take_input(side.as_fd(), &settings).unwrap().is_empty());
        let (master, side) = terminal();
        put_input(master.as_fd(), side.as_fd(), &settings, &taken).unwrap();
        assert_eq!(tty::settings(&side).unwrap(), settings);
        assert!(!is_suspended(side.as_fd()).unwrap());
        assert!(take_output(master.as_fd()).unwrap().is_empty());
        assert_eq!(take_input(side.as_fd(), &settings).unwrap(), taken);
        taken
    }

    #[test]
    fn lines_and_what_is_half_typed_come_back() {
        let taken = moved(|_| {}, b"one\r\ntwo\x04\x04thr\x16\x03ee\nhal");
        let lines: Vec<(&[u8], bool)> = taken
            .lines
            .iter()
            .map(|line| (line.bytes.0.as_slice(), line.end_of_file))
            .collect();
        assert_eq!(
            lines,
            [
                (b"one\n".as_slice(), false),
                (b"\n", false),
                (b"two", true),
                (b"", true),
                (b"thr\x03ee\n", false)
            ]
        );
        assert_eq!(taken.rest.0, b"hal");
    }

    #[test]
    fn other_ends_of_lines_are_kept() {
        let taken = moved(
            |settings| settings.characters[libc::VEOL] = b';',
            b"a;b;c\nd",
        );
        assert_eq!(taken.lines.len(), 3);
        assert!(taken.lines.iter().all(|line| !line.end_of_file));
    }

    #[test]
    fn raw_input_comes_back_as_it_was() {
        let raw = |settings: &mut Termios| {
            settings.input = 0;
            settings.local = 0;
        };
        let every: Vec<u8> = (0..=255).collect();
        assert_eq!(moved(raw, &every).rest.0, every);
        assert!(moved(raw, b"").is_empty());
    }

    #[test]
    fn output_is_not_changed_on_its_way_back() {
        let (master, side) = terminal();
        let settings = tty::settings(&side).unwrap();
        write_all(side.as_fd(), b"a\nb").unwrap();
        let taken = take_output(master.as_fd()).unwrap();
        assert_eq!(taken, b"a\r\nb");
        put_output(side.as_fd(), &settings, &taken).unwrap();
        assert_eq!(take_output(master.as_fd()).unwrap(), taken);
    }

    #[test]
    fn suspended_output_is_told_from_going_output() {
        for how in [Suspension::Key, Suspension::Call] {
            let (master, side) = terminal();
            let settings = tty::settings(&side).unwrap();
            assert!(!is_suspended(side.as_fd()).unwrap());
            suspend(master.as_fd(), side.as_fd(), &settings, how).unwrap();
            assert!(is_suspended(side.as_fd()).unwrap());
            assert_eq!(resume(side.as_fd(), &settings).unwrap(), how);
            assert!(!is_suspended(side.as_fd()).unwrap());
            assert_eq!(tty::settings(&side).unwrap(), settings);
        }
    }
}
