//! The functions that libomptarget calls: raw pointers in, numbers out.
//!
//! By the interface's contract pointers are valid for the call, and device numbers are below what
//! [`__tgt_rtl_number_of_devices`] said. Calls come from any thread of the host process. No panic may leave this module: it would
//! unwind into C++.

use crate::abi::{
    DeviceImage, FAILURE, KernelArgs, OffloadEntry, SUCCESS, TargetTable, VERSION_WITH_ENVIRONMENT,
};
use crate::device::{Device, failed};
use crate::error::PluginError;
use crate::image;
use crate::plugin::{note_fork, plugin, tell};
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::Once;

/// Runs the body of a function; a panic becomes a message and `otherwise`.
fn guarded<T>(function: &str, otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        // What panicked has said where.
        tell(&format!("internal error in {function}"));
        otherwise
    })
}

/// Does something with a device; an error becomes a message and `otherwise`.
fn with_device<T>(
    function: &str,
    number: i32,
    otherwise: T,
    body: impl FnOnce(&Device) -> Result<T, PluginError>,
) -> T
where
    T: Copy,
{
    guarded(function, otherwise, || {
        plugin()
            .device(number)
            .and_then(body)
            .unwrap_or_else(|error| {
                plugin().report(number, &error);
                otherwise
            })
    })
}

/// Success or failure.
fn status(function: &str, body: impl FnOnce() -> Result<(), PluginError>, number: i32) -> i32 {
    guarded(function, FAILURE, || match body() {
        Ok(()) => SUCCESS,
        Err(error) => {
            plugin().report(number, &error);
            FAILURE
        }
    })
}

extern "C" fn in_child_of_fork() {
    note_fork();
}

/// # Safety
/// `image` points to a [`DeviceImage`] whose `start` and `end` enclose readable memory.
unsafe fn bytes<'a>(image: *const DeviceImage) -> Option<&'a [u8]> {
    // SAFETY: the caller vouches for it.
    let image = unsafe { image.as_ref() }?;
    let length = (image.end as usize).checked_sub(image.start as usize)?;
    if image.start.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for it; images are part of the program and stay where they are.
    Some(unsafe { slice::from_raw_parts(image.start, length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __tgt_rtl_is_valid_binary(binary: *const DeviceImage) -> i32 {
    guarded("is_valid_binary", 0, || {
        // SAFETY: by the interface's contract.
        let bytes = unsafe { bytes(binary) };
        i32::from(bytes.is_some_and(image::is_ours))
    })
}

#[unsafe(no_mangle)]
extern "C" fn __tgt_rtl_number_of_devices() -> i32 {
    guarded("number_of_devices", 0, || {
        static WATCH_FORKS: Once = Once::new();
        // SAFETY: the handler only stores to an atomic, which a child of a process with threads may do. This library is
        // never unloaded (build.rs).
        WATCH_FORKS.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(in_child_of_fork));
        });
        plugin().devices()
    })
}

#[unsafe(no_mangle)]
extern "C" fn __tgt_rtl_init_requires(flags: i64) -> i64 {
    guarded("init_requires", flags, || {
        plugin().require(flags);
        flags
    })
}

#[unsafe(no_mangle)]
extern "C" fn __tgt_rtl_init_device(device: i32) -> i32 {
    status("init_device", || plugin().start(device), device)
}

#[unsafe(no_mangle)]
extern "C" fn __tgt_rtl_deinit_device(device: i32) -> i32 {
    status("deinit_device", || plugin().stop(device), device)
}

/// Gives a table of the image's entries on the device, or null. libomptarget asks once for each image and device, and keeps the
/// table for the rest of the program.
#[unsafe(no_mangle)]
unsafe extern "C" fn __tgt_rtl_load_binary(
    device: i32,
    binary: *const DeviceImage,
) -> *mut TargetTable {
    with_device("load_binary", device, std::ptr::null_mut(), |device| {
        // SAFETY: by the interface's contract.
        let (image, host) = unsafe { (bytes(binary), binary.as_ref()) };
        let (Some(image), Some(host)) = (image, host) else {
            return Err(device.bad_argument("load an image", "image"));
        };
        let count = (host.entries_end as usize).saturating_sub(host.entries_begin as usize)
            / size_of::<OffloadEntry>();
        let entries = if count == 0 {
            &[]
        } else {
            // SAFETY: by the interface's contract the two enclose an array of entries.
            unsafe { slice::from_raw_parts(host.entries_begin, count) }
        };
        let names = entries
            .iter()
            .map(|entry| {
                // SAFETY: by the interface's contract an entry's name is a C string, part of the program.
                let name = unsafe { CStr::from_ptr(entry.name) };
                name.to_str()
                    .map_err(|_| device.bad_argument("load an image", "name of an entry"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let addresses = device.load(image, &names)?;
        let table: Vec<OffloadEntry> = entries
            .iter()
            .zip(addresses)
            .map(|(entry, address)| OffloadEntry {
                // A null address is what libomptarget takes for "not on this device".
                address: pointer(address.unwrap_or(0)),
                ..*entry
            })
            .collect();
        let table = table.leak().as_mut_ptr_range();
        Ok(Box::into_raw(Box::new(TargetTable {
            begin: table.start,
            end: table.end,
        })))
    })
}

/// A device address in the type that the interface has for it. It is never dereferenced here.
fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

fn address(pointer: *const c_void) -> u64 {
    pointer.addr() as u64
}

/// Gives the device address of new memory, or null. `host` is what it will be mapped to; null if the program itself asked for it.
#[unsafe(no_mangle)]
extern "C" fn __tgt_rtl_data_alloc(
    device: i32,
    size: i64,
    host: *const c_void,
    kind: i32,
) -> *mut c_void {
    with_device("data_alloc", device, std::ptr::null_mut(), |device| {
        match device.allocate(size, kind) {
            // A program that asks for memory by itself learns from the null pointer that there is none.
            Err(PluginError::Offload {
                source: snapify_offload::OffloadError::OutOfMemory { .. },
                ..
            }) if host.is_null() => Ok(std::ptr::null_mut()),
            result => result.map(pointer),
        }
    })
}

/// Version 16 has a third argument, the kind of memory; 14 and 15 do not. All memory here is of one kind.
#[unsafe(no_mangle)]
extern "C" fn __tgt_rtl_data_delete(device: i32, target: *mut c_void) -> i32 {
    with_device("data_delete", device, FAILURE, |device| {
        device.free(address(target)).map(|()| SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __tgt_rtl_data_submit(
    device: i32,
    target: *mut c_void,
    host: *const c_void,
    size: i64,
) -> i32 {
    with_device("data_submit", device, FAILURE, |device| {
        let bytes = length(device, "write to the card", host, size)?;
        // SAFETY: by the interface's contract the host memory is readable; it is not null, or of no size.
        unsafe { device.process()?.write(address(target), host.cast(), bytes) }
            .map_err(|source| failed("write to the card", source))?;
        Ok(SUCCESS)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __tgt_rtl_data_retrieve(
    device: i32,
    host: *mut c_void,
    target: *const c_void,
    size: i64,
) -> i32 {
    with_device("data_retrieve", device, FAILURE, |device| {
        let bytes = length(device, "read from the card", host, size)?;
        // SAFETY: by the interface's contract the host memory is writable; it is not null, or of no size.
        unsafe { device.process()?.read(host.cast(), address(target), bytes) }
            .map_err(|source| failed("read from the card", source))?;
        Ok(SUCCESS)
    })
}

/// The size of a transfer from or to host memory, checked.
fn length(
    device: &Device,
    operation: &'static str,
    host: *const c_void,
    size: i64,
) -> Result<usize, PluginError> {
    let bytes = usize::try_from(size).map_err(|_| device.bad_argument(operation, "size"))?;
    if host.is_null() && bytes > 0 {
        return Err(device.bad_argument(operation, "host address"));
    }
    Ok(bytes)
}

/// Any card can send to any other.
#[unsafe(no_mangle)]
extern "C" fn __tgt_rtl_is_data_exchangable(_from: i32, _to: i32) -> i32 {
    1
}

#[unsafe(no_mangle)]
extern "C" fn __tgt_rtl_data_exchange(
    from_device: i32,
    from: *const c_void,
    to_device: i32,
    to: *mut c_void,
    size: i64,
) -> i32 {
    with_device("data_exchange", from_device, FAILURE, |device| {
        let other = plugin().device(to_device)?;
        device.copy_to(other, address(to), address(from), size)?;
        Ok(SUCCESS)
    })
}

/// Arguments that are passed without allocating memory; more are rare.
const FEW: usize = 32;

/// Runs a target region: argument i is `arguments[i] + offsets[i]`, after `leading` zeros.
///
/// # Safety
/// Both arrays hold `count` elements; `offsets` may be null.
unsafe fn launch(
    device: i32,
    function: *mut c_void,
    arguments: *const *mut c_void,
    offsets: *const isize,
    count: usize,
    leading: usize,
) -> i32 {
    with_device("launch_kernel", device, FAILURE, |device| {
        if arguments.is_null() && count > 0 {
            return Err(device.bad_argument("run a target region", "arguments"));
        }
        let (mut few, mut many);
        let all: &mut [u64] = if leading + count <= FEW {
            few = [0; FEW];
            &mut few[..leading + count]
        } else {
            many = vec![0; leading + count];
            &mut many
        };
        for (i, value) in all[leading..].iter_mut().enumerate() {
            // SAFETY: by the caller's contract; i < count.
            let (argument, offset) = unsafe {
                let offset = if offsets.is_null() {
                    0
                } else {
                    *offsets.add(i)
                };
                (*arguments.add(i), offset)
            };
            *value = address(argument).wrapping_add_signed(offset as i64);
        }
        device.run(address(function), all).map(|()| SUCCESS)
    })
}

/// Version 16 launches all target regions by this.
#[unsafe(no_mangle)]
unsafe extern "C" fn __tgt_rtl_launch_kernel(
    device: i32,
    function: *mut c_void,
    arguments: *const *mut c_void,
    offsets: *const isize,
    description: *const KernelArgs,
    _async_info: *mut c_void,
) -> i32 {
    // SAFETY: by the interface's contract.
    let (count, leading) = unsafe { description.as_ref() }.map_or((0, 0), |description| {
        let environment = description.version >= VERSION_WITH_ENVIRONMENT;
        (description.count as usize, usize::from(environment))
    });
    // SAFETY: by the interface's contract the arrays are of the size that the description tells.
    unsafe { launch(device, function, arguments, offsets, count, leading) }
}

/// Versions 14 and 15.
#[unsafe(no_mangle)]
unsafe extern "C" fn __tgt_rtl_run_target_region(
    device: i32,
    function: *mut c_void,
    arguments: *const *mut c_void,
    offsets: *const isize,
    count: i32,
) -> i32 {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: by the interface's contract.
    unsafe { launch(device, function, arguments, offsets, count, 0) }
}

/// Versions 14 and 15. The numbers of teams and threads are for devices that cannot be asked from within a region: the function's own
/// code sets them on a CPU.
#[unsafe(no_mangle)]
unsafe extern "C" fn __tgt_rtl_run_target_team_region(
    device: i32,
    function: *mut c_void,
    arguments: *const *mut c_void,
    offsets: *const isize,
    count: i32,
    _teams: i32,
    _threads: i32,
    _iterations: u64,
) -> i32 {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: by the interface's contract.
    unsafe { launch(device, function, arguments, offsets, count, 0) }
}

#[unsafe(no_mangle)]
extern "C" fn __tgt_rtl_print_device_info(device: i32) {
    guarded("print_device_info", (), || {
        println!("    Snapify card {device} of {}", plugin().devices());
    });
}
