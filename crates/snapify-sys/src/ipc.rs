//! System V IPC: segments of shared memory, sets of semaphores and message queues (sysvipc(7)), as the
//! kernel's own structures and raw calls. The C library's declarations differ from one to the other.

use std::io;

/// Removes an object.
pub const RMID: i32 = 0;
/// Sets owner and mode.
pub const SET: i32 = 1;
/// Reads the status by id.
pub const STAT: i32 = 2;
/// Locks a segment in memory.
pub const SHM_LOCK: i32 = 11;
/// Reads the status of a segment by index, whoever may read it.
pub const SHM_STAT_ANY: i32 = 15;
/// How many segments there are, and the highest index.
pub const SHM_INFO: i32 = 14;
/// The process that operated on a semaphore last.
pub const SEM_GET_PID: i32 = 11;
/// Reads all values of a set.
pub const SEM_GET_ALL: i32 = 13;
/// Sets all values of a set.
pub const SEM_SET_ALL: i32 = 17;
/// How many sets there are, and the highest index.
pub const SEM_INFO: i32 = 19;
/// Reads the status of a set by index.
pub const SEM_STAT_ANY: i32 = 20;
/// How many queues there are, and the highest index.
pub const MSG_INFO: i32 = 12;
/// Reads the status of a queue by index.
pub const MSG_STAT_ANY: i32 = 13;
/// msgrcv(2): copies a message by its number and leaves it there.
pub const MSG_COPY: i32 = 0o40000;

/// Mode bit of a segment that is removed when nobody has it attached any more.
pub const SHM_DEST: u32 = 0o1000;
/// Mode bit of a segment that is locked in memory.
pub const SHM_LOCKED: u32 = 0o2000;

/// `struct ipc64_perm`: key, owner, creator and mode.
#[allow(missing_docs)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    pub key: i32,
    pub uid: u32,
    pub gid: u32,
    pub cuid: u32,
    pub cgid: u32,
    pub mode: u32,
    pub sequence: u16,
    pub pad: [u16; 3],
    pub unused: [u64; 2],
}

/// `struct shmid64_ds`.
#[allow(missing_docs)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentStatus {
    pub permissions: Permissions,
    pub bytes: u64,
    pub attached_at: i64,
    pub detached_at: i64,
    pub changed_at: i64,
    pub creator: i32,
    pub last_user: i32,
    pub attached: u64,
    pub unused: [u64; 2],
}

/// `struct semid64_ds`.
#[allow(missing_docs)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetStatus {
    pub permissions: Permissions,
    pub operated_at: i64,
    pub unused1: u64,
    pub changed_at: i64,
    pub unused2: u64,
    pub semaphores: u64,
    pub unused3: [u64; 2],
}

/// `struct msqid64_ds`.
#[allow(missing_docs)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    pub permissions: Permissions,
    pub sent_at: i64,
    pub received_at: i64,
    pub changed_at: i64,
    pub bytes: u64,
    pub messages: u64,
    pub limit: u64,
    pub last_sender: i32,
    pub last_receiver: i32,
    pub unused: [u64; 2],
}

/// The status of an object of one kind.
pub trait Status: Copy + Default + sealed::Sealed {
    /// The control call.
    const CALL: i64;
    /// Its command that tells how many objects there are, and where in the answer, in bytes.
    const INFO: (i32, usize);
    /// Its command that reads a status by index, whoever may read the object.
    const STAT_ANY: i32;

    /// The arguments of a control call.
    #[must_use]
    fn arguments(command: i32, id: u64, buffer: u64) -> [u64; 6] {
        [id, command as u64, buffer, 0, 0, 0]
    }
}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for SegmentStatus {}
impl sealed::Sealed for SetStatus {}
impl sealed::Sealed for QueueStatus {}

impl Status for SegmentStatus {
    const CALL: i64 = libc::SYS_shmctl;
    const INFO: (i32, usize) = (SHM_INFO, 0);
    const STAT_ANY: i32 = SHM_STAT_ANY;
}

impl Status for SetStatus {
    const CALL: i64 = libc::SYS_semctl;
    const INFO: (i32, usize) = (SEM_INFO, 7 * size_of::<i32>());
    const STAT_ANY: i32 = SEM_STAT_ANY;

    fn arguments(command: i32, id: u64, buffer: u64) -> [u64; 6] {
        [id, 0, command as u64, buffer, 0, 0]
    }
}

impl Status for QueueStatus {
    const CALL: i64 = libc::SYS_msgctl;
    const INFO: (i32, usize) = (MSG_INFO, 0);
    const STAT_ANY: i32 = MSG_STAT_ANY;
}

/// All objects of a kind in the IPC namespace of the calling process: ids and status.
///
/// # Errors
/// `ENOMEM`.
pub fn all<S: Status>() -> io::Result<Vec<(i32, S)>> {
    let control = |command, id, buffer: u64| {
        let [a, b, c, d, ..] = S::arguments(command, id, buffer);
        // SAFETY: the kernel writes an answer to `buffer`, for which there is room.
        crate::check(unsafe { libc::syscall(S::CALL, a, b, c, d) })
    };
    // Longer than the answer of each.
    let mut info = [0_i32; 32];
    let highest = match control(S::INFO.0, 0, info.as_mut_ptr() as u64) {
        Ok(highest) => highest,
        // A kernel without System V IPC.
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let count = info[S::INFO.1 / size_of::<i32>()].max(0) as usize;
    let mut found = Vec::new();
    for index in 0..=highest {
        if found.len() == count {
            break;
        }
        let mut status = S::default();
        match control(S::STAT_ANY, index, &raw mut status as u64) {
            Ok(id) => found.push((id as i32, status)),
            // Nothing has this index.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EINVAL | libc::EIDRM | libc::EACCES)
                ) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

fn id(result: libc::c_long) -> io::Result<i32> {
    crate::check(result).map(|value| value as i32)
}

/// shmget(2).
///
/// # Errors
/// `EEXIST`, `ENOSPC`, `ENOMEM`, `EINVAL`.
pub fn segment(key: i32, bytes: u64, flags: i32) -> io::Result<i32> {
    // SAFETY: no memory is passed.
    id(unsafe { libc::syscall(libc::SYS_shmget, key, bytes, flags) })
}

/// semget(2).
///
/// # Errors
/// `EEXIST`, `ENOSPC`, `EINVAL`.
pub fn semaphores(key: i32, count: u32, flags: i32) -> io::Result<i32> {
    // SAFETY: no memory is passed.
    id(unsafe { libc::syscall(libc::SYS_semget, key, count, flags) })
}

/// msgget(2).
///
/// # Errors
/// `EEXIST`, `ENOSPC`.
pub fn queue(key: i32, flags: i32) -> io::Result<i32> {
    // SAFETY: no memory is passed.
    id(unsafe { libc::syscall(libc::SYS_msgget, key, flags) })
}

/// Sets owner and mode of a segment (`IPC_SET`).
///
/// # Errors
/// `EPERM`, `EINVAL` for an id that does not exist or an owner that has no place in this user namespace.
pub fn set_segment(segment: i32, status: &SegmentStatus) -> io::Result<()> {
    // SAFETY: the kernel reads one structure.
    crate::check(unsafe { libc::syscall(libc::SYS_shmctl, segment, SET, &raw const *status) })
        .map(drop)
}

/// Sets owner and mode of a set of semaphores (`IPC_SET`).
///
/// # Errors
/// As [`set_segment`].
pub fn set_semaphores(set: i32, status: &SetStatus) -> io::Result<()> {
    // SAFETY: the kernel reads one structure.
    crate::check(unsafe { libc::syscall(libc::SYS_semctl, set, 0, SET, &raw const *status) })
        .map(drop)
}

/// Sets owner, mode and limit of a message queue (`IPC_SET`).
///
/// # Errors
/// As [`set_segment`]; `EPERM` for a limit above `kernel.msgmnb`.
pub fn set_queue(queue: i32, status: &QueueStatus) -> io::Result<()> {
    // SAFETY: the kernel reads one structure.
    crate::check(unsafe { libc::syscall(libc::SYS_msgctl, queue, SET, &raw const *status) })
        .map(drop)
}

/// Removes a segment, as soon as nobody has it attached (`IPC_RMID`).
///
/// # Errors
/// `EPERM`, `EINVAL`.
pub fn remove_segment(segment: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    crate::check(unsafe { libc::syscall(libc::SYS_shmctl, segment, RMID, 0) }).map(drop)
}

/// Locks a segment in memory (`SHM_LOCK`).
///
/// # Errors
/// `EPERM`, `ENOMEM` beyond `RLIMIT_MEMLOCK`.
pub fn lock_segment(segment: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    crate::check(unsafe { libc::syscall(libc::SYS_shmctl, segment, SHM_LOCK, 0) }).map(drop)
}

/// Sets the values of all semaphores of a set, of which there must be as many.
///
/// # Errors
/// `ERANGE` for a value above 32767, `EINVAL` for another number of semaphores.
pub fn set_values(set: i32, values: &[u16]) -> io::Result<()> {
    let mut status = SetStatus::default();
    // SAFETY: the kernel writes one structure.
    crate::check(unsafe { libc::syscall(libc::SYS_semctl, set, 0, STAT, &raw mut status) })?;
    if status.semaphores != values.len() as u64 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the kernel reads as many values as the set has semaphores, which is the slice's length.
    crate::check(unsafe { libc::syscall(libc::SYS_semctl, set, 0, SEM_SET_ALL, values.as_ptr()) })
        .map(drop)
}

/// Sends a message without waiting for room (msgsnd(2), `IPC_NOWAIT`).
///
/// # Errors
/// `EAGAIN` if the queue is full, `EINVAL` for a type below 1 or a message above `kernel.msgmax`.
pub fn send(queue: i32, kind: i64, text: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(8 + text.len());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(text);
    // SAFETY: the kernel reads the type and `text.len()` bytes behind it.
    crate::check(unsafe {
        libc::syscall(
            libc::SYS_msgsnd,
            queue,
            message.as_ptr(),
            text.len(),
            libc::IPC_NOWAIT,
        )
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<Permissions>(), 48);
        assert_eq!(size_of::<SegmentStatus>(), 112);
        assert_eq!(size_of::<SetStatus>(), 104);
        assert_eq!(size_of::<QueueStatus>(), 120);
    }

    #[test]
    fn objects_are_found() {
        let ids = || -> Vec<i32> {
            let sets = all::<SetStatus>().unwrap();
            sets.into_iter().map(|(id, _)| id).collect()
        };
        let made: Vec<i32> = (1..4)
            .map(|count| semaphores(libc::IPC_PRIVATE, count, libc::IPC_CREAT | 0o600).unwrap())
            .collect();
        let all = all::<SetStatus>().unwrap();
        for (set, count) in made.iter().zip(1..) {
            let (_, status) = all.iter().find(|(id, _)| id == set).unwrap();
            assert_eq!((status.semaphores, status.operated_at), (count, 0));
            // SAFETY: no memory is passed.
            unsafe { libc::syscall(libc::SYS_semctl, *set, 0, RMID) };
        }
        assert!(ids().iter().all(|id| !made.contains(id)));
    }

    #[test]
    fn values_must_be_as_many_as_there_are_semaphores() {
        let set = semaphores(libc::IPC_PRIVATE, 3, libc::IPC_CREAT | 0o600).unwrap();
        assert!(set_values(set, &[1, 2]).is_err());
        set_values(set, &[1, 2, 3]).unwrap();
        // SAFETY: no memory is passed.
        let value = unsafe { libc::syscall(libc::SYS_semctl, set, 2, libc::GETVAL) };
        assert_eq!(value, 3);
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_semctl, set, 0, RMID) };
    }
}
