//! Questions about devices and interoperability objects.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

/// `omp_irc_no_value`: there is no such property (OpenMP 5.1, section 3.12).
const NO_VALUE: c_int = 1;

/// No device can be reached from here.
#[unsafe(no_mangle)]
extern "C" fn omp_get_num_devices() -> c_int {
    0
}

/// The initial device has the number that follows those of all others.
#[unsafe(no_mangle)]
extern "C" fn omp_get_initial_device() -> c_int {
    0
}

/// The only device that this code knows is the one that it runs on.
#[unsafe(no_mangle)]
extern "C" fn omp_get_device_num() -> c_int {
    0
}

fn no_value(status: *mut c_int) {
    if !status.is_null() {
        // SAFETY: by the routine's contract a pointer that is not null points to an int of the caller's.
        unsafe { status.write(NO_VALUE) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn omp_get_interop_int(
    _interop: *mut c_void,
    _property: c_int,
    status: *mut c_int,
) -> isize {
    no_value(status);
    0
}

#[unsafe(no_mangle)]
extern "C" fn omp_get_interop_ptr(
    _interop: *mut c_void,
    _property: c_int,
    status: *mut c_int,
) -> *mut c_void {
    no_value(status);
    ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn omp_get_interop_str(
    _interop: *mut c_void,
    _property: c_int,
    status: *mut c_int,
) -> *const c_char {
    no_value(status);
    ptr::null()
}

#[unsafe(no_mangle)]
extern "C" fn omp_get_interop_name(_interop: *mut c_void, _property: c_int) -> *const c_char {
    ptr::null()
}

#[unsafe(no_mangle)]
extern "C" fn omp_get_interop_type_desc(_interop: *mut c_void, _property: c_int) -> *const c_char {
    ptr::null()
}
