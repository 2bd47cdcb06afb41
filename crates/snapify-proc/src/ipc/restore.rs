//! Making System V objects again, in the init of a fresh IPC namespace, under the ids that they had.

use super::{IpcImage, Label, undo};
use crate::error::ProcError;
use crate::remote::Tracee;
use snapify_store::SpaceId;
use snapify_sys::area::Area;
use snapify_sys::ipc::{self, Permissions, QueueStatus, SegmentStatus, SetStatus};
use std::collections::HashMap;
use std::{fs, io};

/// The segments, by the space of their content, as this process has them attached while they are filled.
pub(crate) type Segments = HashMap<SpaceId, Area>;

const CREATE: i32 = libc::IPC_CREAT | libc::IPC_EXCL;
/// Where the size of huge pages is in the flags of shmget(2).
const HUGE_SHIFT: i32 = 26;

/// Makes all objects, segments without their content. What does not come back quite as it was is told to `warn`.
///
/// # Errors
/// If an object cannot be made, or not under its id.
pub(crate) fn make(image: &IpcImage, warn: impl Fn(String)) -> Result<Segments, ProcError> {
    let mut segments = Segments::new();
    for segment in &image.segments {
        let Label { id, key, mode, .. } = segment.label;
        let what = format!("shared memory segment {id}");
        let huge = segment.huge_page.map_or(0, |bytes| {
            libc::SHM_HUGETLB | (bytes.trailing_zeros() as i32) << HUGE_SHIFT
        });
        choose("shm", id, &what)?;
        let made = ipc::segment(key, segment.bytes, CREATE | huge | mode as i32);
        is(id, made, &what)?;
        if owned_elsewhere(&segment.label) {
            let status = SegmentStatus {
                permissions: permissions(&segment.label),
                ..SegmentStatus::default()
            };
            tell(ipc::set_segment(id, &status), &what, &segment.label, &warn);
        }
        if segment.locked
            && let Err(e) = ipc::lock_segment(id)
        {
            warn(format!("{what} is not locked in memory any more: {e}"));
        }
        let area = Area::of_segment(id, segment.bytes)
            .map_err(ProcError::system(format!("attach {what}")))?;
        segments.insert(segment.object, area);
    }
    for set in &image.sets {
        let Label { id, key, mode, .. } = set.label;
        let what = format!("semaphore set {id}");
        choose("sem", id, &what)?;
        let made = ipc::semaphores(key, set.values.len() as u32, CREATE | mode as i32);
        is(id, made, &what)?;
        ipc::set_values(id, &set.values)
            .map_err(ProcError::system(format!("set the values of {what}")))?;
        if owned_elsewhere(&set.label) {
            let status = SetStatus {
                permissions: permissions(&set.label),
                ..SetStatus::default()
            };
            tell(ipc::set_semaphores(id, &status), &what, &set.label, &warn);
        }
    }
    for queue in &image.queues {
        let Label { id, key, mode, .. } = queue.label;
        let what = format!("message queue {id}");
        choose("msg", id, &what)?;
        is(id, ipc::queue(key, CREATE | mode as i32), &what)?;
        let status = QueueStatus {
            permissions: permissions(&queue.label),
            limit: queue.limit,
            ..QueueStatus::default()
        };
        if let Err(e) = ipc::set_queue(id, &status) {
            warn(format!(
                "{what} does not belong to user {} with a limit of {} bytes any more: {e}",
                queue.label.uid, queue.limit
            ));
        }
        for message in &queue.messages {
            ipc::send(id, message.kind, &message.text.0)
                .map_err(ProcError::system(format!("fill {what}")))?;
        }
    }
    Ok(segments)
}

/// When all processes have attached their segments, and this one has not any more: removes those that were to go with the last process.
///
/// # Errors
/// If one cannot be removed.
pub(crate) fn finish(image: &IpcImage) -> Result<(), ProcError> {
    for segment in image.segments.iter().filter(|segment| segment.removed) {
        let id = segment.label.id;
        ipc::remove_segment(id).map_err(ProcError::system(format!(
            "remove shared memory segment {id}"
        )))?;
    }
    Ok(())
}

/// Gives a process that is being built what it takes back from semaphores when it ends. `pid` is its own id.
///
/// # Errors
/// Those of semop(2).
pub(crate) fn adjust(tracee: &mut Tracee<'_>, image: &IpcImage, pid: i32) -> Result<(), ProcError> {
    image
        .sets
        .iter()
        .try_for_each(|set| undo::restore(tracee, pid, set))
}

/// Chooses the id that the next object of a kind gets.
fn choose(kind: &str, id: i32, what: &str) -> Result<(), ProcError> {
    let path = format!("/proc/sys/kernel/{kind}_next_id");
    fs::write(&path, id.to_string()).map_err(|source| ProcError::System {
        what: format!("choose the id of {what} in {path}"),
        source,
    })
}

fn is(wanted: i32, made: io::Result<i32>, what: &str) -> Result<(), ProcError> {
    match made {
        Ok(id) if id == wanted => Ok(()),
        // The index within the id is taken, which in a fresh namespace only an impossible image can bring about.
        Ok(id) => Err(ProcError::BadImage(format!("{what} would become {id}"))),
        Err(source) => Err(ProcError::System {
            what: format!("make {what}"),
            source,
        }),
    }
}

fn owned_elsewhere(label: &Label) -> bool {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (label.uid, label.gid) != (uid.as_raw(), gid.as_raw())
}

fn permissions(label: &Label) -> Permissions {
    Permissions {
        uid: label.uid,
        gid: label.gid,
        mode: label.mode,
        ..Permissions::default()
    }
}

fn tell(result: io::Result<()>, what: &str, label: &Label, warn: &impl Fn(String)) {
    if let Err(e) = result {
        warn(format!(
            "{what} does not belong to user {} and group {} any more: {e}",
            label.uid, label.gid
        ));
    }
}
