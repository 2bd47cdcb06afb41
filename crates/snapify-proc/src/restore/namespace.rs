//! Fresh namespaces, and the init process in them.
//!
//! As an ordinary user: new user, PID and mount namespaces, with only the user's own ids in them, mapped to
//! themselves, or to what the processes had for them in a user namespace of their own. With CAP_SYS_ADMIN (root, or a process with capabilities in a namespace of its own, as root in it):
//! new PID and mount namespaces.

use crate::error::ProcError;
use crate::procfs::status::Status;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use snapify_sys::clone::{Fork, NEW_IPC, NEW_MOUNT, NEW_PID, NEW_USER, fork};
use snapify_sys::process;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// Bit of CAP_SYS_ADMIN.
const CAP_SYS_ADMIN: u64 = 21;

/// What a new init starts with.
pub(crate) struct Inside {
    /// To the creator.
    pub(crate) socket: OwnedFd,
    /// What is not as it should be.
    pub(crate) warnings: Vec<String>,
}

/// What the creator of an init holds of it.
#[derive(Debug)]
pub(crate) struct Init {
    /// As the creator sees it.
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) socket: OwnedFd,
}

/// Forks an init into fresh namespaces, where `work` runs; the init ends when `work` returns. An IPC namespace is
/// only among them if `ipc` says so; `owner` tells what the user's ids are called inside, if not as here.
///
/// The caller should have one thread only: locks that other threads hold at this moment stay locked in the init.
///
/// # Errors
/// If the system does not allow the namespaces.
#[allow(unsafe_code)]
pub(crate) fn spawn(
    name: &str,
    ipc: bool,
    owner: Option<(u32, u32)>,
    work: impl FnOnce(Inside),
) -> Result<Init, ProcError> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(ProcError::system("make a socket pair"))?;
    let user = NeedsUser::find(owner)?;
    let flags = NEW_PID
        | NEW_MOUNT
        | if user.needed { NEW_USER } else { 0 }
        | if ipc { NEW_IPC } else { 0 };
    // SAFETY: the caller has one thread only, as documented.
    match unsafe { fork(flags, None) } {
        Ok(Fork::Parent { pid, pidfd }) => Ok(Init {
            pid,
            pidfd,
            socket: ours,
        }),
        Ok(Fork::Child) => {
            drop(ours);
            // A panic must not unwind into the copy of the caller's stack.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                enter(name, theirs, &user, work)
            }));
            process::exit_now(i32::from(result.is_err()))
        }
        Err(source) => Err(ProcError::System {
            what: format!(
                "make {} namespaces{}",
                if user.needed { "user" } else { "PID" },
                hint(&source)
            ),
            source,
        }),
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            " (this system does not allow it to ordinary users: an administrator can, by sysctl kernel.unprivileged_userns_clone=1 \
             or kernel.apparmor_restrict_unprivileged_userns=0, or restart it as root)"
        }
        Some(libc::ENOSPC) => {
            " (user.max_user_namespaces, user.max_pid_namespaces or user.max_mnt_namespaces is 0 or reached: an administrator \
             can raise it with sysctl)"
        }
        Some(libc::EINVAL) => " (this kernel has been built without them)",
        _ => "",
    }
}

struct NeedsUser {
    needed: bool,
    uid: u32,
    gid: u32,
    /// What they are called inside.
    inner: (u32, u32),
}

impl NeedsUser {
    fn find(owner: Option<(u32, u32)>) -> Result<Self, ProcError> {
        let path = "/proc/self/status";
        let text = fs::read(path).map_err(ProcError::proc(path))?;
        let status = Status::parse(&text).map_err(|e| ProcError::proc(path)(e.into()))?;
        let admin = status.caps.effective >> CAP_SYS_ADMIN & 1 == 1;
        let (uid, gid) = (status.uid.effective, status.gid.effective);
        let inner = owner.unwrap_or((uid, gid));
        Ok(Self {
            needed: !(admin && uid == 0) || inner != (uid, gid),
            uid,
            gid,
            inner,
        })
    }
}

fn enter(name: &str, socket: OwnedFd, user: &NeedsUser, work: impl FnOnce(Inside)) {
    let mut inside = Inside {
        socket,
        warnings: Vec::new(),
    };
    if let Err(e) = prepare(name, &mut inside, user) {
        let _ = super::protocol::send(&inside.socket, &super::protocol::FromInit::failed(&e), None);
        return;
    }
    work(inside);
}

fn prepare(name: &str, inside: &mut Inside, user: &NeedsUser) -> Result<(), ProcError> {
    // Everything in the namespaces dies with this init, and this with the creator. It may have died already, before
    // prctl: then its end of the socket is closed.
    process::set_parent_death_signal(libc::SIGKILL)
        .map_err(ProcError::system("ask for a signal at the parent's death"))?;
    if peer_is_gone(&inside.socket) {
        process::exit_now(1);
    }
    process::default_signals();
    if let Ok(name) = CString::new(name) {
        let _ = process::set_name(&name);
    }
    if user.needed {
        map_ids(user)?;
    }
    mount(inside)?;
    raise_descriptor_limit();
    Ok(())
}

fn peer_is_gone(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut fds, Some(&now)), Ok(n) if n > 0)
        && fds[0].revents().contains(PollFlags::HUP)
}

/// Maps the user's own ids to one each; the kernel allows an ordinary user no more (user_namespaces(7)).
fn map_ids(user: &NeedsUser) -> Result<(), ProcError> {
    let write =
        |path: &str, text: &str| fs::write(path, text).map_err(ProcError::file("write", path));
    // Before Linux 3.19 there was no such file and no such rule.
    match write("/proc/self/setgroups", "deny") {
        Err(e) if e.errno() != Some(libc::ENOENT) => return Err(e),
        _ => {}
    }
    match write(
        "/proc/self/uid_map",
        &format!("{} {} 1\n", user.inner.0, user.uid),
    ) {
        // Since Linux 5.12 (user_namespaces(7)): files of root could be given capabilities there.
        Err(ProcError::File { source, .. })
            if user.uid == 0 && source.raw_os_error() == Some(libc::EPERM) =>
        {
            return Err(ProcError::System {
                what: "make root known in a user namespace (which takes CAP_SETFCAP, and the bounding set here lacks it, as \
                       it lacks CAP_SYS_ADMIN: restart it where root has one of them)"
                    .into(),
                source,
            });
        }
        other => other?,
    }
    write(
        "/proc/self/gid_map",
        &format!("{} {} 1\n", user.inner.1, user.gid),
    )
}

/// A /proc that shows the new PID namespace, in a mount namespace from which nothing leaks out.
fn mount(inside: &mut Inside) -> Result<(), ProcError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)
        .map_err(ProcError::file("make private mounts of", "/"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if let Err(e) = rustix::mount::mount("proc", "/proc", "proc", flags, None) {
        // In containers that cover parts of their /proc.
        inside.warnings.push(format!(
            "/proc shows the processes of the outer PID namespace: mount: {e}"
        ));
    }
    Ok(())
}

/// Descriptors that the new process inherits are numbered above all its own.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
