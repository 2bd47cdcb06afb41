//! `/proc/PID/stat` (proc_pid_stat(5)): the addresses of code, data, stack, arguments and
//! environment, which no other file shows, and the start time, which tells a process from a later
//! one with the same number.

use super::text::{self, Malformed};

/// What a stat file says, as far as a checkpoint needs it. Addresses are the tracee's and read 0
/// for those who may not trace it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Stat {
    /// Thread name, without its parentheses.
    pub comm: Vec<u8>,
    /// State letter.
    pub state: u8,
    /// Device number of the controlling terminal, 0 for none.
    pub tty: i32,
    /// Foreground process group of that terminal, -1 for none.
    pub foreground: i32,
    /// Nice value, -20 to 19.
    pub nice: i32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Begin and end of the program text.
    pub code: (u64, u64),
    /// The address that the stack began at.
    pub start_stack: u64,
    /// Begin and end of initialized data.
    pub data: (u64, u64),
    /// Where the heap begins (not its present end).
    pub start_brk: u64,
    /// Begin and end of the argument strings.
    pub args: (u64, u64),
    /// Begin and end of the environment strings.
    pub env: (u64, u64),
    /// Whether it is on its way to its end (`PF_EXITING`): it has perhaps no memory any more, and is no zombie yet.
    pub exiting: bool,
    /// The signal that the parent gets at the end of the process (0 for none), or -1 for a thread that is no leader.
    pub exit_signal: i32,
    /// How the process has ended, as wait(2) tells it; 0 while it runs.
    pub exit_code: i32,
}

/// A flag of a task (include/linux/sched.h) that proc(5) shows.
const PF_EXITING: u64 = 4;

impl Stat {
    /// Reads a stat file.
    ///
    /// # Errors
    /// If fields are missing or no numbers.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        // The name may hold blanks and parentheses; the last closing one ends it.
        let malformed = |what| Malformed::new(what, text);
        let open = text
            .iter()
            .position(|&b| b == b'(')
            .ok_or_else(|| malformed("name"))?;
        let close = text
            .iter()
            .rposition(|&b| b == b')')
            .ok_or_else(|| malformed("name"))?;
        let comm = text.get(open + 1..close).ok_or_else(|| malformed("name"))?;
        let fields: Vec<&[u8]> = text::words(&text[close + 1..]).collect();
        // proc(5) counts fields from 1; the state is field 3.
        let field = |number: usize, what| {
            fields
                .get(number - 3)
                .copied()
                .ok_or_else(|| malformed(what))
        };
        let number = |at, what| text::unsigned(field(at, what)?, 10).ok_or_else(|| malformed(what));
        let small = |at, what| text::id(field(at, what)?).ok_or_else(|| malformed(what));
        Ok(Self {
            comm: comm.to_vec(),
            state: field(3, "state")?
                .first()
                .copied()
                .ok_or_else(|| malformed("state"))?,
            tty: small(7, "tty_nr")?,
            foreground: small(8, "tpgid")?,
            nice: small(19, "nice")?,
            start_time: number(22, "starttime")?,
            code: (number(26, "startcode")?, number(27, "endcode")?),
            start_stack: number(28, "startstack")?,
            data: (number(45, "start_data")?, number(46, "end_data")?),
            start_brk: number(47, "start_brk")?,
            args: (number(48, "arg_start")?, number(49, "arg_end")?),
            env: (number(50, "env_start")?, number(51, "env_end")?),
            exiting: number(9, "flags")? & PF_EXITING != 0,
            exit_signal: small(38, "exit_signal")?,
            exit_code: small(52, "exit_code")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"7985 (a) (b c) R 7980 7980 4384 34816 -1 4194304 102 0 0 0 0 0 0 0 20 -5 1 0 143777 3133440 383 \
18446744073709551615 11 12 13 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 21 22 23 31 32 33 34 0\n";

    #[test]
    fn a_name_with_parentheses_is_no_trap() {
        let stat = Stat::parse(SAMPLE).unwrap();
        assert_eq!(stat.comm, b"a) (b c");
        assert_eq!(
            (stat.state, stat.tty, stat.nice, stat.start_time),
            (b'R', 34816, -5, 143_777)
        );
        assert_eq!(stat.foreground, -1);
        assert_eq!((stat.code, stat.start_stack), ((11, 12), 13));
        assert_eq!(
            (stat.data, stat.start_brk, stat.args, stat.env),
            ((21, 22), 23, (31, 32), (33, 34))
        );
    }

    #[test]
    fn our_own_stat_is_read() {
        let stat = Stat::parse(&std::fs::read("/proc/self/stat").unwrap()).unwrap();
        assert!(stat.code.0 < stat.code.1 && stat.start_stack != 0 && stat.args.0 < stat.args.1);
    }

    #[test]
    fn cut_off_text_is_refused() {
        for end in 0..SAMPLE.len() - 4 {
            assert!(Stat::parse(&SAMPLE[..end]).is_err(), "{end}");
        }
        assert!(Stat::parse(b")(").is_err());
    }
}
