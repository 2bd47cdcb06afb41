//! Which program a chain of snapshots belongs to.

use snapify_store::ProgramIdentity;

/// The identity of a plain process: the same process of the same boot, and nothing else, continues its chain.
pub(crate) fn of_process(pid: i32) -> Option<ProgramIdentity> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let started = start_time(pid)?;
    Some(ProgramIdentity {
        id: format!("process-{}-{pid}-{started}", boot.trim()),
        command: command_line(pid),
    })
}

/// When a process was started, in clock ticks since boot; it tells processes with the same id from each other.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // Field 22, counted from the end of the command, which may itself hold blanks and parentheses.
    let fields = stat.rsplit_once(')')?.1;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// A new identity for an application of a supervisor; it keeps it over restarts.
pub(crate) fn of_application(folder: &std::path::Path, program: &[String]) -> ProgramIdentity {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = folder
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    ProgramIdentity {
        id: format!("application-{}-{name}", boot.trim()),
        command: program.join(" "),
    }
}

/// The command line of a process, for people.
pub(crate) fn command_line(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    words.join(" ")
}
