//! `/proc/PID/timers` (proc_pid_timers(5)): the POSIX timers of a process. It shows how each was
//! created; the time left has to be asked for in the process itself (`timer_gettime`).

use super::text::{self, Malformed};

/// How a timer tells of its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// `SIGEV_NONE`.
    None,
    /// `SIGEV_SIGNAL`: a signal for the process.
    Signal,
    /// `SIGEV_THREAD`: raw kernel value; glibc itself uses `SIGEV_THREAD_ID`.
    Thread,
    /// `SIGEV_THREAD_ID`: a signal for one thread, with its id as the reader of this `/proc` sees
    /// it.
    ThreadId(i32),
}

/// One POSIX timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// The kernel's timer id.
    pub id: i32,
    /// Signal number.
    pub signal: i32,
    /// `sigev_value`.
    pub value: u64,
    /// How it notifies.
    pub notify: Notify,
    /// Clock id; negative for CPU-time clocks of a process or thread.
    pub clock: i32,
}

/// Reads a timers file.
///
/// # Errors
/// If an entry is incomplete or has fields that we do not know.
pub fn parse(text: &[u8]) -> Result<Vec<Timer>, Malformed> {
    let mut timers = Vec::new();
    let mut lines = text::lines(text);
    while let Some(first) = lines.next() {
        let mut entry = [first; 4];
        for line in &mut entry[1..] {
            *line = lines
                .next()
                .ok_or_else(|| Malformed::new("complete timer entry", first))?;
        }
        timers.push(timer(&entry).ok_or_else(|| Malformed::new("timer", &entry.join(&b' ')))?);
    }
    Ok(timers)
}

fn timer(entry: &[&[u8]; 4]) -> Option<Timer> {
    let field = |line: usize, name: &[u8]| {
        let (key, value) = text::key_value(entry[line])?;
        (key == name).then_some(value)
    };
    let (signal, value) = text::cut(field(1, b"signal")?, b'/')?;
    Some(Timer {
        id: text::id(field(0, b"ID")?)?,
        signal: text::id(signal)?,
        // Printed with %px: 16 digits without a prefix.
        value: text::unsigned(value, 16)?,
        notify: notify(field(2, b"notify")?)?,
        clock: text::id(field(3, b"ClockID")?)?,
    })
}

fn notify(text: &[u8]) -> Option<Notify> {
    let (how, target) = text::cut(text, b'/')?;
    let (kind, id) = text::cut(target, b'.')?;
    match (how, kind) {
        (b"signal", b"tid") => Some(Notify::ThreadId(text::id(id)?)),
        (b"signal", b"pid") => Some(Notify::Signal),
        (b"none", _) => Some(Notify::None),
        (b"thread", b"pid") => Some(Notify::Thread),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/pid.2634\nClockID: 0\n\
ID: 0\nsignal: 32/0000000000000005\nnotify: signal/tid.2635\nClockID: -21070\nID: 7\nsignal: 0/0000000000000000\n\
notify: none/pid.2634\nClockID: 1\n";

    #[test]
    fn entries_are_read() {
        let timers = parse(SAMPLE).unwrap();
        assert_eq!(
            timers[0],
            Timer {
                id: 1,
                signal: 60,
                value: 0x7fff_86e4_52a8,
                notify: Notify::Signal,
                clock: 0
            }
        );
        assert_eq!(timers[1].notify, Notify::ThreadId(2635));
        assert_eq!(timers[1].clock, -21070);
        assert_eq!(timers[2].notify, Notify::None);
        assert_eq!(parse(b""), Ok(Vec::new()));
    }

    #[test]
    fn cut_off_text_is_refused_or_shorter() {
        for end in 0..SAMPLE.len() {
            if let Ok(timers) = parse(&SAMPLE[..end]) {
                assert!(timers.len() <= 3);
            }
        }
        assert!(parse(b"ID: 1\nsignal: 60\nnotify: signal/pid.1\nClockID: 0\n").is_err());
    }
}
