//! Asking for process ids as the program itself sees them. The kernel shows ids in the PID namespace of whoever asks; a
//! process that has ended can be found in no other way.

use crate::error::ProcError;
use crate::ids::RemoteFd;
use crate::remote::Tracee;

/// What shows the id.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Question {
    /// The process at the other end of a socket (`SO_PEERCRED`).
    Peer,
    /// The sender of the message that peeking shows. The socket wants credentials, and no descriptors are taken for
    /// want of room.
    Sender,
}

/// Asks in the process, which has the socket open as `fd`; 0 if nothing is shown.
///
/// # Errors
/// Those of the remote calls.
pub(crate) fn ask(
    tracee: &mut Tracee<'_>,
    fd: RemoteFd,
    question: Question,
) -> Result<i32, ProcError> {
    match question {
        Question::Peer => peer(tracee, fd),
        Question::Sender => sender(tracee, fd),
    }
}

/// Bytes of a `struct ucred`.
const CREDENTIALS: u64 = 12;

fn peer(tracee: &mut Tracee<'_>, fd: RemoteFd) -> Result<i32, ProcError> {
    let at = tracee.scratch().addr;
    let value = at.offset(8);
    tracee.put(at, &CREDENTIALS)?;
    let args = [
        fd.0 as u64,
        libc::SOL_SOCKET as u64,
        libc::SO_PEERCRED as u64,
        value.0,
        at.0,
        0,
    ];
    tracee.syscall("getsockopt", libc::SYS_getsockopt, args)?;
    tracee.get(value)
}

fn sender(tracee: &mut Tracee<'_>, fd: RemoteFd) -> Result<i32, ProcError> {
    // A `struct msghdr` with an `iovec` of one byte behind it, and room for credentials only.
    const HEADER: u64 = 56;
    const VECTOR: u64 = 16;
    const CONTROL: u64 = 32;
    let at = tracee.scratch().addr;
    let (vector, control) = (at.0 + HEADER, at.0 + HEADER + VECTOR);
    let byte = control + CONTROL;
    let header = [0, 0, vector, 1, control, CONTROL, 0];
    tracee.put(at, &header)?;
    tracee.put(at.offset(HEADER), &[byte, 1_u64])?;
    tracee.put(at.offset(HEADER + VECTOR), &[0_u64; 4])?;
    let flags = (libc::MSG_PEEK | libc::MSG_DONTWAIT) as u64;
    let args = [fd.0 as u64, at.0, flags, 0, 0, 0];
    tracee.syscall("recvmsg", libc::SYS_recvmsg, args)?;
    let seen: [u32; 8] = tracee.get(at.offset(HEADER + VECTOR))?;
    // Length (two words), level, type, and then the id.
    let is_credentials =
        seen[2] == libc::SOL_SOCKET as u32 && seen[3] == libc::SCM_CREDENTIALS as u32;
    Ok(if is_credentials {
        seen[4].cast_signed()
    } else {
        0
    })
}
