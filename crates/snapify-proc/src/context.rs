//! What a process has beside memory, threads, files, signals and timers: working directory, umask,
//! resource limits, credentials, and the attributes that prctl(2) keeps.
//!
//! Affinity, scheduling, names and timer slack are the threads' own and saved with them.

use crate::attributes::{Attributes, write_own};
use crate::capture::CaptureContext;
use crate::clocks::ClocksImage;
use crate::error::{Obstacle, ProcError};
use crate::files::directory::RemovedDirectory;
use crate::ldt;
use crate::path::ImagePath;
use crate::privileges::Privileges;
use crate::procfs::limits::{Limit, RESOURCES, resource_name};
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use crate::user_ns;
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io;
use std::path::Path;

/// Everything about a process that has no module of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextImage {
    /// Working directory, or what it was called when it had a name.
    pub directory: ImagePath,
    /// Whether the working directory was removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory_removed: bool,
    /// More about it, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed_directory: Option<RemovedDirectory>,
    /// File mode creation mask.
    pub umask: u32,
    /// User and group id. All of real, effective, saved and file-system id are the same.
    pub owner: (u32, u32),
    /// The same as the process sees them itself, if it lives in a user namespace where they are others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner_owner: Option<(u32, u32)>,
    /// Capabilities and what limits them.
    pub privileges: Privileges,
    /// Resource limits, at the index of their `RLIMIT_*` number.
    pub limits: Vec<LimitImage>,
    /// Execution domain and flags (personality(2)).
    pub personality: u32,
    /// Whether it had a controlling terminal.
    #[serde(default)]
    pub had_terminal: bool,
    /// What prctl(2) keeps.
    pub attributes: Attributes,
    /// Inclination of the kernel to kill it when memory is short, -1000 to 1000.
    pub oom_score_adj: i64,
    /// Segment descriptors of its own (modify_ldt(2)), as the processor has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<u64>,
    /// Number of filters that its system calls were under.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seccomp_filters: u32,
    /// What its clocks showed, not before any timer was saved: none may expire early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<ClocksImage>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A resource limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitImage {
    /// Which resource, for people.
    pub resource: String,
    /// The limit in force; none if absent.
    pub soft: Option<u64>,
    /// How far it may be raised; without limit if absent.
    pub hard: Option<u64>,
}

/// Saves the context of a frozen process. What cannot be saved is noted in `ctx`.
///
/// # Errors
/// Those of the remote calls and of reading `/proc`.
pub fn capture(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
) -> Result<ContextImage, ProcError> {
    let status = ctx.status;
    let mut directory = ctx.proc.link("cwd")?;
    let stat = ctx.proc.stat_of("cwd")?;
    if let Some(obstacle) = lost_directory(&directory, &stat) {
        ctx.refuse(obstacle);
    }
    let directory_removed = stat.st_nlink == 0;
    let removed_directory = directory_removed.then(|| RemovedDirectory::new(&directory, &stat));
    if let Some(removed) = &removed_directory {
        directory = removed.was.clone();
    }
    let owner = (status.uid.real, status.gid.real);
    Ok(ContextImage {
        directory,
        directory_removed,
        removed_directory,
        umask: status.umask.unwrap_or(0o022),
        owner,
        // Others are refused.
        inner_owner: user_ns::inner_owner(ctx.proc, status)?.filter(|inner| *inner != owner),
        privileges: Privileges::capture(tracee, status)?,
        limits: (0..)
            .zip(ctx.proc.limits()?)
            .map(|(resource, limit)| LimitImage::new(resource, limit))
            .collect(),
        personality: ctx.proc.personality()?,
        had_terminal: ctx.proc.stat()?.tty != 0,
        attributes: Attributes::capture(tracee, ctx.proc)?,
        oom_score_adj: ctx.proc.number("oom_score_adj")?,
        segments: ldt::capture(tracee)?,
        seccomp_filters: status.seccomp_filters,
        clocks: None,
    })
}

/// Why a process cannot come back to its working directory.
pub(crate) fn lost_directory(directory: &ImagePath, stat: &rustix::fs::Stat) -> Option<Obstacle> {
    let lost = stat.st_nlink > 0 && !crate::identity::leads_to(directory, stat);
    lost.then(|| {
        let why =
            "this name leads to something else by now, or to nothing that can be reached from here";
        Obstacle::new(format!("working directory {directory}"), why)
    })
}

/// What has changed since the snapshot was taken so that the context cannot come back. Creates
/// nothing; directories among `restorable` will be.
#[must_use]
pub fn preflight(image: &ContextImage, restorable: &HashSet<&Path>) -> Vec<Obstacle> {
    let mut obstacles = Vec::new();
    let refuse = |why: String| Obstacle::new(format!("working directory {}", image.directory), why);
    match rustix::fs::stat(image.directory.as_path()) {
        _ if image.directory_removed => {}
        _ if restorable.contains(image.directory.as_path()) => {}
        Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {}
        Ok(_) => obstacles.push(refuse("it is no directory any more".into())),
        Err(errno) => obstacles.push(refuse(io::Error::from(errno).to_string())),
    }
    let user = rustix::process::geteuid().as_raw();
    if user != image.owner.0 {
        let why = format!(
            "the program belongs to user {}, and this is user {user}",
            image.owner.0
        );
        obstacles.push(Obstacle::new("owner", why).with_hint("restart it as its owner"));
    }
    obstacles
}

/// Restores what may come before the threads: working directory, umask, and attributes
/// that the threads share.
///
/// # Errors
/// Those of the remote calls.
pub fn restore(
    tracee: &mut Tracee<'_>,
    image: &ContextImage,
    ctx: &mut RestoreContext<'_>,
) -> Result<(), ProcError> {
    match &image.removed_directory {
        Some(removed) => change_to(tracee, &ctx.removed_directory(removed)?)?,
        None if image.directory_removed => {
            let removed = RemovedDirectory {
                was: image.directory.clone(),
                mode: 0o700,
                identity: None,
            };
            change_to(tracee, &ctx.removed_directory(&removed)?)?;
        }
        None => change_to(tracee, &image.directory)?,
    }
    tracee.syscall(
        "umask",
        libc::SYS_umask,
        [image.umask.into(), 0, 0, 0, 0, 0],
    )?;
    ldt::restore(tracee, &image.segments)?;
    image.attributes.restore(tracee, ctx)
}

fn change_to(tracee: &mut Tracee<'_>, path: &Path) -> Result<(), ProcError> {
    let at = tracee.put_cstr(path)?;
    tracee
        .syscall("chdir", libc::SYS_chdir, [at.0, 0, 0, 0, 0, 0])
        .map(drop)
        .map_err(|error| about(error, "change to", path))
}

fn about(error: ProcError, what: &'static str, path: &Path) -> ProcError {
    match error {
        ProcError::RemoteSyscall { source, .. } => ProcError::file(what, path)(source),
        other => other,
    }
}

/// The last remote calls of a restore: what takes privileges away (in every thread) or would be in
/// the way of the calls before. After it, memory of the process may be closed to us.
///
/// # Errors
/// If the kernel refuses.
pub fn restore_last(
    tracee: &mut Tracee<'_>,
    image: &ContextImage,
    ctx: &mut RestoreContext<'_>,
) -> Result<(), ProcError> {
    set_oom_score(tracee, image.oom_score_adj, ctx)?;
    tracee.syscall(
        "personality",
        libc::SYS_personality,
        [image.personality.into(), 0, 0, 0, 0, 0],
    )?;
    if image.limits.len() > RESOURCES {
        return Err(ProcError::BadImage(format!(
            "it has {} resource limits",
            image.limits.len()
        )));
    }
    for (resource, limit) in (0..).zip(&image.limits) {
        limit.restore(tracee, resource, ctx)?;
    }
    image.privileges.restore(tracee, ctx)?;
    image.attributes.restore_last(tracee)
}

impl LimitImage {
    fn new(resource: usize, limit: Limit) -> Self {
        let finite = |value| (value != u64::MAX).then_some(value);
        Self {
            resource: resource_name(resource).into(),
            soft: finite(limit.soft),
            hard: finite(limit.hard),
        }
    }

    /// Sets the limit; where the hard one may not be raised that far, as far as it may be.
    fn restore(
        &self,
        tracee: &mut Tracee<'_>,
        resource: u64,
        ctx: &RestoreContext<'_>,
    ) -> Result<(), ProcError> {
        let at = tracee.scratch().addr;
        let (new, old) = (at, at.offset(16));
        let [soft, hard] = [self.soft, self.hard].map(|limit| limit.unwrap_or(u64::MAX));
        let mut set = |soft: u64, hard: u64| {
            tracee.put(new, &[soft.min(hard), hard])?;
            tracee.syscall(
                "prlimit64",
                libc::SYS_prlimit64,
                [0, resource, new.0, old.0, 0, 0],
            )?;
            Ok(())
        };
        match set(soft, hard) {
            Err(ProcError::RemoteSyscall { source, .. })
                if source.raw_os_error() == Some(libc::EPERM) => {}
            other => return other,
        }
        tracee.syscall(
            "prlimit64",
            libc::SYS_prlimit64,
            [0, resource, 0, old.0, 0, 0],
        )?;
        let [_, allowed] = tracee.get::<[u64; 2]>(old)?;
        ctx.warn(format!(
            "limit of {}: {hard} cannot be had here, the program gets {allowed}",
            self.resource
        ));
        tracee.put(new, &[soft.min(allowed), allowed])?;
        tracee
            .syscall(
                "prlimit64",
                libc::SYS_prlimit64,
                [0, resource, new.0, 0, 0, 0],
            )
            .map(drop)
    }
}

/// Sets the inclination to be killed when memory is short. Only root may lower it below what the
/// restart has; a program that cannot have it back is warned of and goes on.
fn set_oom_score(
    tracee: &mut Tracee<'_>,
    wanted: i64,
    ctx: &RestoreContext<'_>,
) -> Result<(), ProcError> {
    const FILE: &str = "/proc/self/oom_score_adj";
    let present = std::fs::read_to_string(FILE)
        .ok()
        .and_then(|text| text.trim().parse::<i64>().ok());
    if present == Some(wanted) {
        return Ok(());
    }
    write_own(tracee, FILE, &wanted.to_string(), ctx)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> ContextImage {
        let directory = std::env::current_dir().unwrap().into();
        let owner = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        ContextImage {
            directory,
            owner,
            ..ContextImage::default()
        }
    }

    #[test]
    fn our_own_context_could_be_restored_here() {
        assert_eq!(preflight(&ours(), &HashSet::new()), []);
    }

    #[test]
    fn a_lost_directory_and_another_owner_are_told_together() {
        let image = ContextImage {
            directory: ImagePath::from_bytes("/no/such"),
            owner: (u32::MAX, 0),
            ..ours()
        };
        let obstacles = preflight(&image, &HashSet::new());
        assert_eq!(obstacles.len(), 2);
        assert!(
            obstacles[0].object.contains("/no/such") && obstacles[1].why.contains("4294967295")
        );
        let image = ContextImage {
            directory: ImagePath::from_bytes("/etc/passwd"),
            ..ours()
        };
        assert!(
            preflight(&image, &HashSet::new())[0]
                .why
                .contains("no directory")
        );
    }

    #[test]
    fn limits_read_well() {
        let limit = LimitImage::new(
            7,
            Limit {
                soft: 1024,
                hard: u64::MAX,
            },
        );
        let json = serde_json::to_string(&limit).unwrap();
        assert_eq!(json, r#"{"resource":"open files","soft":1024,"hard":null}"#);
    }
}
