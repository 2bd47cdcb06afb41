//! The sandbox that makes a card of a part of this machine: namespaces of its own, the machine's files read-only, and a
//! RAM-backed scratch space of the card's size.
//!
//! No privilege is needed: the first namespace is a user namespace (user_namespaces(7)) in which the caller keeps his own
//! ids and has the capabilities for the rest. Process 1 of the sandbox is the daemon; everything in it dies with it
//! (pid_namespaces(7)), and it dies with whoever started it if that is wanted.

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind,
    mount_change, move_mount, open_tree,
};
use rustix::process::{
    Pid, Signal, WaitOptions, getegid, geteuid, getpid, set_parent_process_death_signal, waitpid,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// What a sandbox is like.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// Its host name, for people.
    pub name: String,
    /// Bytes of its scratch space.
    pub memory: u64,
    /// Where the scratch space is mounted.
    pub scratch: PathBuf,
    /// Whether it ends when the caller's parent does.
    pub ends_with_parent: bool,
    /// Directories that must stay visible, read-only, even where the scratch space would hide them.
    pub keep: Vec<PathBuf>,
}

/// The sandbox could not be made.
#[derive(thiserror::Error, Debug)]
#[error(
    "cannot {operation} for the sandbox: {source}{}",
    hint(operation, source)
)]
pub struct SandboxError {
    operation: &'static str,
    source: io::Error,
}

fn hint(operation: &'static str, source: &io::Error) -> &'static str {
    let refused = matches!(
        source.raw_os_error(),
        Some(libc::EPERM | libc::ENOSPC | libc::EINVAL)
    );
    if operation == MAKE_NAMESPACES && refused {
        " (are user namespaces allowed here? see /proc/sys/user/max_user_namespaces and \
         /proc/sys/kernel/unprivileged_userns_clone)"
    } else {
        ""
    }
}

const MAKE_NAMESPACES: &str = "make namespaces";

/// Which side of [`enter`] the caller is on.
#[derive(Debug)]
pub enum Side {
    /// In the sandbox, as its process 1. Holds what had to be done without, in words.
    Inside(Vec<String>),
    /// Outside, after the sandbox has ended; holds the exit status of its process 1.
    Outside(ExitStatus),
}

/// Makes the sandbox. Returns inside at once, and outside when it has ended. The caller has one thread.
///
/// # Errors
/// Where the kernel refuses; nothing is left then, but for the namespaces that the caller is in.
pub fn enter(config: &SandboxConfig) -> Result<Side, SandboxError> {
    if config.ends_with_parent {
        die_with_parent().map_err(failed("ask for the supervisor's death"))?;
    }
    // Out of the terminal's foreground group: what the user types there (^C) concerns the program, not its cards.
    // A group, not a session: the scheduler shares processors out among sessions (sched(7), autogroup), and threads of
    // the host process that yield while they wait for a card would then yield to each other only.
    // Fails only for the leader of a session, which the terminal's signals reach as little.
    let _ = rustix::process::setpgid(None, None);
    let (uid, gid) = (geteuid(), getegid());
    let namespaces = UnshareFlags::NEWUSER
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS;
    // SAFETY: no flag here concerns descriptors, the only thing whose unsharing can surprise others in this process.
    unsafe { unshare_unsafe(namespaces) }.map_err(failed(MAKE_NAMESPACES))?;
    write_map("setgroups", "deny")?;
    write_map("uid_map", &format!("{uid} {uid} 1", uid = uid.as_raw()))?;
    write_map("gid_map", &format!("{gid} {gid} 1", gid = gid.as_raw()))?;
    // SAFETY: the caller has one thread, so the child may do whatever the parent may.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(failed("start its first process")(io::Error::last_os_error())),
        0 => return inside(config).map(Side::Inside),
        child => child,
    };
    let child = Pid::from_raw(child);
    loop {
        match waitpid(child, WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                return Ok(Side::Outside(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("wait for its end")(errno)),
        }
    }
}

/// Has the kernel kill this process when its parent dies. A parent that is dead already has been replaced by another.
fn die_with_parent() -> io::Result<()> {
    let parent = rustix::process::getppid();
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Inside a new PID namespace the parent has no id, before and after.
    if rustix::process::getppid() == parent {
        Ok(())
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn inside(config: &SandboxConfig) -> Result<Vec<String>, SandboxError> {
    die_with_parent().map_err(failed("ask for its outer process's death"))?;
    debug_assert_eq!(getpid(), Pid::INIT);
    let mut warnings = Vec::new();
    // Nothing that is mounted here is seen outside, nor the other way round.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(failed("make its mounts its own"))?;
    set_read_only("/").map_err(failed("make the file system read-only"))?;
    let kept = keep(config)?;
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    mount_scratch(config, plain).map_err(failed("mount the scratch space"))?;
    for (path, tree) in kept {
        fs::create_dir_all(&path).map_err(failed("make a kept directory"))?;
        move_mount(
            &tree,
            "",
            rustix::fs::CWD,
            &path,
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
        )
        .map_err(failed("mount a kept directory"))?;
    }
    if let Err(errno) = share_scratch(config) {
        warnings.push(format!("it has no shared memory of its own: {errno}"));
    }
    // Refused where parts of the machine's own /proc are covered, as in some containers (mount_namespaces(7)).
    if let Err(errno) = mount("proc", "/proc", "proc", plain | MountFlags::NOEXEC, c"") {
        warnings.push(format!(
            "it sees the process ids of the machine in /proc: {errno}"
        ));
    }
    if let Err(errno) = rustix::system::sethostname(config.name.as_bytes()) {
        warnings.push(format!("it has the machine's host name: {errno}"));
    }
    std::env::set_current_dir("/").map_err(failed("change to the root directory"))?;
    Ok(warnings)
}

/// Mounts the scratch space (tmpfs(5)). Large files in it, such as local stores, take huge pages where there are any: the
/// first touch of a page costs more than copying it.
fn mount_scratch(config: &SandboxConfig, flags: MountFlags) -> io::Result<()> {
    let options = |huge: &str| {
        CString::new(format!("size={},mode=1777{huge}", config.memory)).unwrap_or_default()
    };
    let attempt = |options: CString| {
        mount(
            "snapify-card",
            &config.scratch,
            "tmpfs",
            flags,
            options.as_c_str(),
        )
    };
    match attempt(options(",huge=within_size")) {
        // A kernel without huge pages.
        Err(Errno::INVAL) => Ok(attempt(options(""))?),
        other => Ok(other?),
    }
}

/// Puts POSIX shared memory (shm_overview(7)) into the scratch space, so that it counts as memory of the card.
fn share_scratch(config: &SandboxConfig) -> io::Result<()> {
    let shared = Path::new("/dev/shm");
    if !shared.is_dir() || config.scratch == shared {
        return Ok(());
    }
    let place = config.scratch.join(".dev-shm");
    fs::create_dir(&place)?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o1777))?;
    Ok(mount_bind(&place, shared)?)
}

/// Takes hold of the directories that the scratch space would hide.
fn keep(config: &SandboxConfig) -> Result<Vec<(PathBuf, OwnedFd)>, SandboxError> {
    let hidden = config
        .keep
        .iter()
        .filter(|path| path.starts_with(&config.scratch));
    hidden
        .map(|path| {
            let clone = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            let tree =
                open_tree(rustix::fs::CWD, path, clone).map_err(failed("keep a directory"))?;
            Ok((path.clone(), tree))
        })
        .collect()
}

/// Makes a mount and all below it read-only (mount_setattr(2)).
fn set_read_only(path: &str) -> io::Result<()> {
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let attributes = MountAttr {
        set: libc::MOUNT_ATTR_RDONLY,
        clear: 0,
        propagation: 0,
        user_namespace: 0,
    };
    let path = CString::new(path).unwrap_or_default();
    // SAFETY: the path is a string that ends with a zero, the structure has the size that is told, and both outlive
    // the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn write_map(file: &'static str, content: &str) -> Result<(), SandboxError> {
    fs::write(format!("/proc/self/{file}"), content).map_err(failed("map the user's ids"))
}

fn failed<E: Into<io::Error>>(operation: &'static str) -> impl Fn(E) -> SandboxError {
    move |source| SandboxError {
        operation,
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::MetadataExt;

    /// Runs `check` inside a sandbox, in a forked copy of this process, and gives what it returned.
    fn inside_of(config: &SandboxConfig, check: impl FnOnce(Vec<String>) -> String) -> String {
        let (mut read, mut write) = io::pipe().unwrap();
        // SAFETY: the copy does nothing but make the sandbox and write; the test threads of the original hold no lock
        // that it needs but the allocator's, which fork(3) of glibc handles.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(read);
            let said = match enter(config) {
                Ok(Side::Inside(warnings)) => check(warnings),
                Ok(Side::Outside(_)) => String::new(),
                Err(error) => format!("error: {error}"),
            };
            let _ = write.write_all(said.as_bytes());
            // SAFETY: ends the copy at once.
            unsafe { libc::_exit(0) };
        }
        drop(write);
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        let _ = waitpid(Pid::from_raw(child), WaitOptions::empty());
        said
    }

    #[test]
    fn a_sandbox_is_what_it_says() {
        let kept = tempfile::tempdir_in("/tmp").unwrap();
        fs::write(kept.path().join("library"), "here").unwrap();
        let config = SandboxConfig {
            name: "card7".into(),
            memory: 1 << 20,
            scratch: "/tmp".into(),
            ends_with_parent: true,
            keep: vec![kept.path().to_owned()],
        };
        let library = kept.path().join("library");
        let said = inside_of(&config, |warnings| {
            let full = fs::write("/tmp/big", vec![1; 2 << 20]).map_err(|error| error.kind());
            let root = fs::write("/etc/snapify-test", "x").map_err(|error| error.kind());
            let owner = fs::metadata("/proc/self").map(|found| found.uid());
            format!(
                "{:?} pid {} {:?} {:?} {:?} {} {:?}",
                warnings,
                std::process::id(),
                full,
                root,
                fs::read_to_string(library).ok(),
                owner.ok() == Some(geteuid().as_raw()),
                fs::read_to_string("/proc/sys/kernel/hostname").ok(),
            )
        });
        assert_eq!(
            said,
            "[] pid 1 Err(StorageFull) Err(ReadOnlyFilesystem) Some(\"here\") true Some(\"card7\\n\")"
        );
        assert!(
            kept.path().join("library").exists(),
            "what happens inside stays inside"
        );
    }
}
