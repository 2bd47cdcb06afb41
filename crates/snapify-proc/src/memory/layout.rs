//! The kernel's idea of where text, data, heap, stack, arguments and environment are: prctl(PR_SET_MM_MAP).

use super::build::open_remote;
use super::image::{Executable, MemoryImage};
use crate::abi::MmMap;
use crate::error::ProcError;
use crate::remote::Tracee;
use crate::restore::RestoreContext;
use rustix::fs::{MemfdFlags, Mode};
use snapify_store::SpaceId;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

const PR_SET_MM: u64 = libc::PR_SET_MM as u64;
const PR_SET_MM_MAP: u64 = libc::PR_SET_MM_MAP as u64;

/// Sets the layout, the auxiliary vector and the executable.
///
/// # Errors
/// If the executable cannot be opened, or the kernel finds the layout impossible.
pub(crate) fn restore(
    tracee: &mut Tracee<'_>,
    image: &MemoryImage,
    ctx: &RestoreContext<'_>,
) -> Result<(), ProcError> {
    let exe = match image.executable {
        Executable::File(file) => {
            open_remote(tracee, image.files[file].identity.path.as_path(), false)?
        }
        Executable::Removed { object } => {
            let copy = read_only_copy(ctx, object)?;
            // The number by which the /proc that is mounted here shows this process.
            let ourselves =
                std::fs::read_link("/proc/self").map_err(ProcError::proc("/proc/self"))?;
            let path = Path::new("/proc").join(ourselves).join("fd");
            open_remote(tracee, &path.join(copy.as_raw_fd().to_string()), false)?
        }
    };
    let scratch = tracee.scratch().addr;
    let auxv = scratch.offset(4096);
    tracee.write(auxv, &image.auxv.0)?;
    let layout = &image.layout;
    let mut map = MmMap {
        start_code: layout.start_code,
        end_code: layout.end_code,
        start_data: layout.start_data,
        end_data: layout.end_data,
        start_brk: layout.start_brk,
        brk: layout.brk,
        start_stack: layout.start_stack,
        arg_start: layout.arg_start,
        arg_end: layout.arg_end,
        env_start: layout.env_start,
        env_end: layout.env_end,
        auxv: auxv.0,
        auxv_size: image.auxv.0.len() as u32,
        exe_fd: exe as u32,
    };
    let mut result = set(tracee, &map);
    if matches!(&result, Err(e) if e.errno() == Some(libc::EINVAL)) && map.start_brk <= map.end_data
    {
        // A program started through the dynamic linker (`ld.so ./program`) has its data above the heap, which some
        // kernels refuse. What they show as data matters to nobody.
        map.start_data = 0x10000;
        map.end_data = 0x10001;
        result = set(tracee, &map);
    }
    result?;
    tracee.syscall("close", libc::SYS_close, [exe, 0, 0, 0, 0, 0])?;
    Ok(())
}

/// The content of an executable that was removed, in a file that nobody has open for writing: the kernel runs no other.
fn read_only_copy(ctx: &RestoreContext<'_>, object: SpaceId) -> Result<OwnedFd, ProcError> {
    let what = "make the executable, which was removed, again";
    let reopen = |fd: i32| File::open(format!("/proc/self/fd/{fd}"));
    let copy = || -> io::Result<OwnedFd> {
        let mode = ctx
            .image
            .objects
            .iter()
            .find(|o| o.space == object)
            .map_or(0o700, |o| o.mode);
        let number = ctx.object(object).map_err(io::Error::other)?.0;
        let flags = MemfdFlags::CLOEXEC;
        let executable = flags.union(MemfdFlags::from_bits_retain(libc::MFD_EXEC));
        let made = match rustix::fs::memfd_create("executable", executable) {
            // Before Linux 6.3.
            Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create("executable", flags),
            other => other,
        };
        let mut file = File::from(made?);
        io::copy(&mut reopen(number)?, &mut file)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o777))?;
        Ok(reopen(file.as_raw_fd())?.into())
    };
    copy().map_err(ProcError::system(what))
}

fn set(tracee: &mut Tracee<'_>, map: &MmMap) -> Result<(), ProcError> {
    let scratch = tracee.scratch().addr;
    tracee.put(scratch, map)?;
    let args = [
        PR_SET_MM,
        PR_SET_MM_MAP,
        scratch.0,
        size_of::<MmMap>() as u64,
        0,
        0,
    ];
    tracee.syscall("prctl(PR_SET_MM_MAP)", libc::SYS_prctl, args)?;
    Ok(())
}
