//! Finding and saving the System V objects of a program, by system calls of its own: they see its IPC namespace, with its rights
//! and its process ids. Only to list them, and where we see the same, that is left to ours: others may have made thousands.
//!
//! Nobody keeps a list of who uses an object, so there are rules:
//!
//! - In an IPC namespace other than ours (the program was restored before, or lives in a container) everything is taken
//!   that no stranger has attached.
//! - In ours a segment is taken if the program has it attached; and an object of any kind if the last to have used it, or its
//!   creator, belongs to the program; or if it is the user's, younger than the program, and nobody who lives is known
//!   to use it: a new object shows no user, and the process that made it may have ended.
//! - What a stranger uses *as well* is an obstacle, for the restored program would have a copy of its own.

use super::undo::{self, Adjustment};
use super::{IpcImage, Label, MessageImage, QueueImage, SegmentImage, SetImage, list};
use crate::capture::CaptureContext;
use crate::error::{Obstacle, ProcError};
use crate::image::hex::HexBytes;
use crate::memory;
use crate::procfs::maps::Mapping;
use crate::remote::Tracee;
use snapify_store::SpaceId;
use snapify_sys::ipc::{self, Permissions, QueueStatus, SegmentStatus, SetStatus};
use std::collections::BTreeMap;

/// Permission bits of a mode.
const PERMISSION_BITS: u32 = 0o777;

/// Which objects processes are known to use.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// The segments that they have attached, by id.
    attached: BTreeMap<i32, Attachments>,
    /// What they take back from semaphores when they end, by id of the set.
    adjustments: BTreeMap<i32, Vec<Adjustment>>,
}

#[derive(Debug, Default)]
struct Attachments {
    /// How many mappings there are of it, in all processes.
    count: u64,
    /// Its content and the size of its huge pages, found out in the first process that has it; nothing if that failed.
    segment: Option<(SpaceId, Option<u64>)>,
}

impl Uses {
    /// Adds the segments in the memory of a process; notes the contents of those that it is the first to have attached.
    ///
    /// # Errors
    /// If the process is killed.
    pub(crate) fn add_memory(
        &mut self,
        tracee: &mut Tracee<'_>,
        ctx: &CaptureContext<'_>,
    ) -> Result<(), ProcError> {
        let mut by_id: BTreeMap<i32, Vec<&Mapping>> = BTreeMap::new();
        for mapping in ctx.maps {
            if let Some(id) = memory::segment_id(mapping) {
                by_id.entry(id).or_default().push(mapping);
            }
        }
        for (id, mappings) in by_id {
            let attachments = self.attached.entry(id).or_default();
            attachments.count += mappings.len() as u64;
            if attachments.segment.is_some() {
                continue;
            }
            match content(tracee, ctx, id, &mappings) {
                Ok(object) => {
                    let huge_page = mappings.first().and_then(|m| m.huge_page());
                    attachments.segment = Some((object, huge_page));
                }
                Err(e) if e.errno().is_none() => return Err(e),
                Err(e) => tracing::debug!("shared memory segment {id}: {e}"),
            }
        }
        Ok(())
    }

    /// Adds what a process takes back from semaphores.
    ///
    /// # Errors
    /// If the process is killed.
    pub(crate) fn add_adjustments(
        &mut self,
        tracee: &mut Tracee<'_>,
        ctx: &CaptureContext<'_>,
    ) -> Result<(), ProcError> {
        let user = ctx.status.uid.effective;
        for (id, status) in list::all::<SetStatus>(tracee, list::sees_the_same(ctx))? {
            let permissions = &status.permissions;
            let strange = permissions.uid != user && permissions.cuid != user;
            // On a set that nobody has operated on there is nothing to be taken back.
            if strange || status.operated_at == 0 {
                continue;
            }
            let pid = ctx.status.inner_tgid().0;
            let found = values(tracee, id, status.semaphores)
                .and_then(|values| undo::find(tracee, pid, id, &values));
            match found {
                Ok(found) if found.is_empty() => {}
                Ok(found) => self.adjustments.entry(id).or_default().extend(found),
                Err(e) if e.errno().is_none() => return Err(e),
                Err(e) => tracing::debug!("semaphore set {id}: {e}"),
            }
        }
        Ok(())
    }
}

/// The values of a set.
fn values(tracee: &mut Tracee<'_>, set: i32, count: u64) -> Result<Vec<u16>, ProcError> {
    let scratch = tracee.scratch();
    if count * 2 > scratch.len {
        return Err(ProcError::System {
            what: format!("read {count} values"),
            source: std::io::Error::from_raw_os_error(libc::E2BIG),
        });
    }
    let args = [set as u64, 0, ipc::SEM_GET_ALL as u64, scratch.addr.0, 0, 0];
    tracee.syscall("semctl(GETALL)", libc::SYS_semctl, args)?;
    let mut bytes = vec![0; count as usize * 2];
    tracee.read(scratch.addr, &mut bytes)?;
    let value = |pair: &[u8]| u16::from_ne_bytes([pair[0], pair[1]]);
    Ok(bytes.chunks_exact(2).map(value).collect())
}

fn content(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
    id: i32,
    mappings: &[&Mapping],
) -> Result<SpaceId, ProcError> {
    let buffer = tracee.scratch().addr;
    let args = [id as u64, ipc::STAT as u64, buffer.0, 0, 0, 0];
    tracee.syscall("shmctl(IPC_STAT)", libc::SYS_shmctl, args)?;
    let status: SegmentStatus = tracee.get(buffer)?;
    memory::segment_content(tracee, ctx, id, status.bytes, mappings)
}

/// Saves the objects of the program, by one of its processes. `members` are the ids that its processes have for
/// themselves, `uses` what all of them are known to use.
///
/// # Errors
/// If the process is killed.
pub(crate) fn capture(
    tracee: &mut Tracee<'_>,
    ctx: &CaptureContext<'_>,
    members: Vec<i32>,
    uses: Uses,
) -> Result<IpcImage, ProcError> {
    let elsewhere = list::in_another_namespace(ctx)?;
    let mut survey = Survey {
        ctx,
        elsewhere,
        sees_the_same: list::sees_the_same(ctx),
        members,
        user: ctx.status.uid.effective,
        born: born(ctx),
    };
    let mut image = IpcImage::default();
    survey.segments(tracee, uses.attached, &mut image)?;
    survey.sets(tracee, uses.adjustments, &mut image)?;
    survey.queues(tracee, &mut image)?;
    let none = image.segments.is_empty() && image.sets.is_empty() && image.queues.is_empty();
    image.namespace = elsewhere || !none;
    Ok(image)
}

/// When the program began, in seconds since 1970; 0 if that is not to be found out. Young objects are told by it.
fn born(ctx: &CaptureContext<'_>) -> i64 {
    let ticks = rustix::param::clock_ticks_per_second();
    let boot = std::fs::read_to_string("/proc/stat").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("btime "))?;
        line.trim().parse::<i64>().ok()
    });
    match (boot, ctx.proc.stat()) {
        // The boot time is rounded.
        (Some(boot), Ok(stat)) => boot + (stat.start_time / ticks) as i64 - 1,
        _ => 0,
    }
}

struct Survey<'a> {
    ctx: &'a CaptureContext<'a>,
    /// Whether the program lives in an IPC namespace that is not ours.
    elsewhere: bool,
    /// Whether we see objects and their users as the program does.
    sees_the_same: bool,
    /// The processes that are saved, as they see themselves.
    members: Vec<i32>,
    user: u32,
    born: i64,
}

/// What is done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Take,
    /// It may be the program's: it is young enough, and nobody is known to use it. What cannot be read is not.
    TakeIfReadable,
    Leave,
    /// A stranger with this process id (0: one that is not visible) uses it, too.
    Shared(i32),
}

impl Survey<'_> {
    /// Decides about an object that these processes are known to have used (0: nobody), the last of them at `used_at`.
    fn judge(
        &self,
        tracee: &mut Tracee<'_>,
        permissions: &Permissions,
        (changed_at, used_at): (i64, i64),
        users: &[i32],
    ) -> Result<Verdict, ProcError> {
        if self.elsewhere {
            return Ok(Verdict::Take);
        }
        if self.is_old(permissions, (changed_at, used_at)) {
            return Ok(Verdict::Leave);
        }
        let recent = self.is_recent(permissions, (changed_at, used_at));
        let ours = recent && users.iter().any(|user| self.members.contains(user));
        let mut stranger = None;
        for &user in users.iter().filter(|user| !self.members.contains(user)) {
            if user > 0 && list::lives(tracee, user)? {
                stranger = Some(user);
            }
        }
        let young = self.is_young(permissions, changed_at);
        Ok(match (ours, stranger) {
            (true, Some(stranger)) => Verdict::Shared(stranger),
            (true, None) => Verdict::Take,
            (false, None) if young => Verdict::TakeIfReadable,
            (false, _) => Verdict::Leave,
        })
    }

    /// Whether an object is not the program's, whoever has used it.
    fn is_old(&self, permissions: &Permissions, (changed_at, used_at): (i64, i64)) -> bool {
        !self.elsewhere
            && !self.is_recent(permissions, (changed_at, used_at))
            && !self.is_young(permissions, changed_at)
    }

    /// Whether the program may have used an object: what was last used before it began was used by another with an id that has
    /// been given again since.
    fn is_recent(&self, permissions: &Permissions, (changed_at, used_at): (i64, i64)) -> bool {
        changed_at.max(used_at) >= self.born && self.may_use(permissions)
    }

    /// Whether the program may have made an object.
    fn is_young(&self, permissions: &Permissions, changed_at: i64) -> bool {
        let ours = permissions.uid == self.user || permissions.cuid == self.user;
        changed_at >= self.born && ours
    }

    /// Whether the program can have used an object, as far as its owner and mode tell.
    fn may_use(&self, permissions: &Permissions) -> bool {
        let owners = [permissions.uid, permissions.cuid, 0];
        owners.contains(&self.user) || permissions.mode & 0o066 != 0
    }

    fn refuse(&self, what: &str, id: i32, why: impl Into<String>) {
        self.ctx
            .refuse(Obstacle::new(format!("System V {what} {id}"), why));
    }

    fn refuse_shared(&self, what: &str, id: i32, stranger: i32) {
        self.refuse(
            what,
            id,
            format!("process {stranger}, which is not saved, uses it too"),
        );
    }

    fn segments(
        &mut self,
        tracee: &mut Tracee<'_>,
        mut attached: BTreeMap<i32, Attachments>,
        image: &mut IpcImage,
    ) -> Result<(), ProcError> {
        for (id, status) in list::all::<SegmentStatus>(tracee, self.sees_the_same)? {
            let ours = attached.remove(&id).unwrap_or_default();
            let strangers = status.attached > ours.count;
            let mut verdict = Verdict::Take;
            if ours.count > 0 && strangers {
                let why = "a process that is not saved has it attached, too";
                self.refuse("shared memory segment", id, why);
                continue;
            }
            if ours.count == 0 {
                let users = [status.creator, status.last_user];
                let times = (
                    status.changed_at,
                    status.attached_at.max(status.detached_at),
                );
                verdict = self.judge(tracee, &status.permissions, times, &users)?;
                // One that others have attached may have been made for them.
                if strangers || verdict == Verdict::Leave {
                    continue;
                }
                if let Verdict::Shared(stranger) = verdict {
                    self.refuse_shared("shared memory segment", id, stranger);
                    continue;
                }
            }
            let content = match ours.segment {
                Some(known) => Ok(known),
                None => memory::segment_content(tracee, self.ctx, id, status.bytes, &[])
                    .map(|object| (object, None)),
            };
            match content {
                Ok((object, huge_page)) => image.segments.push(SegmentImage {
                    label: label(id, &status.permissions),
                    bytes: status.bytes,
                    object,
                    removed: status.permissions.mode & ipc::SHM_DEST != 0,
                    locked: status.permissions.mode & ipc::SHM_LOCKED != 0,
                    huge_page,
                }),
                Err(e) => self.unreadable(verdict, "shared memory segment", id, e)?,
            }
        }
        // Attached in an IPC namespace that the program has left.
        for (id, _) in attached {
            let why = "it is attached, but not to be found in the program's IPC namespace";
            self.refuse("shared memory segment", id, why);
        }
        Ok(())
    }

    fn sets(
        &mut self,
        tracee: &mut Tracee<'_>,
        mut adjustments: BTreeMap<i32, Vec<Adjustment>>,
        image: &mut IpcImage,
    ) -> Result<(), ProcError> {
        for (id, status) in list::all::<SetStatus>(tracee, self.sees_the_same)? {
            let what = "semaphore set";
            let adjustments = adjustments.remove(&id).unwrap_or_default();
            let times = (status.changed_at, status.operated_at);
            if self.is_old(&status.permissions, times) {
                continue;
            }
            let mut users: Vec<i32> = adjustments.iter().map(|a| a.pid).collect();
            if !self.elsewhere {
                for number in 0..status.semaphores {
                    let args = [id as u64, number, ipc::SEM_GET_PID as u64, 0, 0, 0];
                    // Whose values may not be read are not the program's.
                    match tracee.syscall("semctl(GETPID)", libc::SYS_semctl, args) {
                        Ok(user) => users.push(user as i32),
                        Err(e) if list::is_not_ours(&e) => break,
                        Err(e) => return Err(e),
                    }
                }
                users.sort_unstable();
                users.dedup();
            }
            let verdict = self.judge(tracee, &status.permissions, times, &users)?;
            match verdict {
                Verdict::Take | Verdict::TakeIfReadable => {}
                Verdict::Leave => continue,
                Verdict::Shared(stranger) => {
                    self.refuse_shared(what, id, stranger);
                    continue;
                }
            }
            match values(tracee, id, status.semaphores) {
                Ok(values) => image.sets.push(SetImage {
                    label: label(id, &status.permissions),
                    values,
                    adjustments,
                }),
                Err(e) => self.unreadable(verdict, what, id, e)?,
            }
        }
        Ok(())
    }

    fn queues(&mut self, tracee: &mut Tracee<'_>, image: &mut IpcImage) -> Result<(), ProcError> {
        for (id, status) in list::all::<QueueStatus>(tracee, self.sees_the_same)? {
            let what = "message queue";
            let users = [status.last_sender, status.last_receiver];
            let times = (status.changed_at, status.sent_at.max(status.received_at));
            let verdict = self.judge(tracee, &status.permissions, times, &users)?;
            match verdict {
                Verdict::Take | Verdict::TakeIfReadable => {}
                Verdict::Leave => continue,
                Verdict::Shared(stranger) => {
                    self.refuse_shared(what, id, stranger);
                    continue;
                }
            }
            match messages(tracee, id, status.messages) {
                Ok(messages) => image.queues.push(QueueImage {
                    label: label(id, &status.permissions),
                    limit: status.limit,
                    messages,
                }),
                Err(e) => self.unreadable(verdict, what, id, e)?,
            }
        }
        Ok(())
    }

    /// Notes that the content of an object cannot be had, unless the object is gone by now or need not be the program's.
    fn unreadable(
        &self,
        verdict: Verdict,
        what: &str,
        id: i32,
        error: ProcError,
    ) -> Result<(), ProcError> {
        match error.errno() {
            Some(libc::EINVAL | libc::EIDRM) => Ok(()),
            Some(_) if verdict == Verdict::TakeIfReadable => {
                tracing::debug!("{what} {id} is left out: {error}");
                Ok(())
            }
            Some(_) => {
                self.refuse(what, id, format!("its content cannot be read: {error}"));
                Ok(())
            }
            None => Err(error),
        }
    }
}

fn label(id: i32, permissions: &Permissions) -> Label {
    Label {
        id,
        key: permissions.key,
        uid: permissions.uid,
        gid: permissions.gid,
        mode: permissions.mode & PERMISSION_BITS,
    }
}

/// Copies of the messages of a queue, which stay in it (`MSG_COPY`, which a kernel without checkpoint/restore lacks).
fn messages(
    tracee: &mut Tracee<'_>,
    queue: i32,
    count: u64,
) -> Result<Vec<MessageImage>, ProcError> {
    let scratch = tracee.scratch();
    let mut messages = Vec::new();
    for number in 0..count {
        let room = scratch.len - size_of::<i64>() as u64;
        let flags = (ipc::MSG_COPY | libc::IPC_NOWAIT) as u64;
        let args = [queue as u64, scratch.addr.0, room, number, flags, 0];
        let bytes = match tracee.syscall("msgrcv(MSG_COPY)", libc::SYS_msgrcv, args) {
            Ok(bytes) => bytes,
            Err(e) if e.errno() == Some(libc::ENOMSG) => break,
            Err(e) => return Err(e),
        };
        let mut text = vec![0; bytes as usize];
        tracee.read(scratch.addr.offset(size_of::<i64>() as u64), &mut text)?;
        messages.push(MessageImage {
            kind: tracee.get(scratch.addr)?,
            text: HexBytes(text),
        });
    }
    Ok(messages)
}
