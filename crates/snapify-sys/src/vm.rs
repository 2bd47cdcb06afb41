//! Memory of another process: process_vm_readv(2) and process_vm_writev(2).

use std::io;

/// Reads memory of process `pid` at `address` into `buffer`; returns the bytes read, which are
/// fewer than asked for if an unreadable page follows.
pub fn read(pid: i32, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: buffer.len(),
    };
    // SAFETY: `local` describes `buffer`; `remote` is an address in the other process only.
    let n = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Writes `data` to memory of process `pid` at `address`; returns the bytes written, which are
/// fewer than asked for if an unwritable page follows.
pub fn write(pid: i32, address: u64, data: &[u8]) -> io::Result<usize> {
    let local = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: data.len(),
    };
    // SAFETY: the kernel only reads through `local`; `remote` is an address in the other process.
    let n = unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Reads exactly `buffer.len()` bytes; a partial read is `EFAULT`.
pub fn read_exact(pid: i32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match read(pid, address.wrapping_add(done as u64), &mut buffer[done..])? {
            0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            n => done += n,
        }
    }
    Ok(())
}

/// Writes all of `data`; a partial write is `EFAULT`.
pub fn write_all(pid: i32, address: u64, data: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < data.len() {
        match write(pid, address.wrapping_add(done as u64), &data[done..])? {
            0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            n => done += n,
        }
    }
    Ok(())
}
