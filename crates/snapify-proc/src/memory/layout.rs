//! The kernel's idea of where text, data, heap, stack, arguments and environment are: prctl(PR_SET_MM_MAP).

use super::build::open_remote;
use super::image::MemoryImage;
use crate::abi::MmMap;
use crate::error::ProcError;
use crate::remote::Tracee;

const PR_SET_MM: u64 = libc::PR_SET_MM as u64;
const PR_SET_MM_MAP: u64 = libc::PR_SET_MM_MAP as u64;

/// Sets the layout, the auxiliary vector and the executable.
///
/// # Errors
/// If the executable cannot be opened, or the kernel finds the layout impossible.
pub(crate) fn restore(tracee: &mut Tracee<'_>, image: &MemoryImage) -> Result<(), ProcError> {
    let exe = open_remote(
        tracee,
        image.files[image.executable].identity.path.as_path(),
        false,
    )?;
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
