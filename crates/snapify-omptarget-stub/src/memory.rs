//! The device memory routines (OpenMP 5.1, section 3.8), on the memory of the process that they are called in.

use std::ffi::{c_int, c_void};
use std::ptr;

/// What the routines return on failure; success is 0.
const FAILED: c_int = -1;

fn allocate(size: usize) -> *mut c_void {
    // SAFETY: malloc may be called with any size.
    unsafe { libc::malloc(size) }
}

fn release(memory: *mut c_void) {
    // SAFETY: by the routines' contract the caller got it from `allocate`, or it is null.
    unsafe { libc::free(memory) }
}

#[unsafe(no_mangle)]
extern "C" fn omp_target_alloc(size: usize, _device: c_int) -> *mut c_void {
    allocate(size)
}

#[unsafe(no_mangle)]
extern "C" fn llvm_omp_target_alloc_device(size: usize, _device: c_int) -> *mut c_void {
    allocate(size)
}

#[unsafe(no_mangle)]
extern "C" fn llvm_omp_target_alloc_host(size: usize, _device: c_int) -> *mut c_void {
    allocate(size)
}

#[unsafe(no_mangle)]
extern "C" fn llvm_omp_target_alloc_shared(size: usize, _device: c_int) -> *mut c_void {
    allocate(size)
}

/// Memory of a team, which CPUs do not have.
#[unsafe(no_mangle)]
extern "C" fn llvm_omp_target_dynamic_shared_alloc() -> *mut c_void {
    ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn omp_target_free(memory: *mut c_void, _device: c_int) {
    release(memory);
}

#[unsafe(no_mangle)]
extern "C" fn llvm_omp_target_free_device(memory: *mut c_void, _device: c_int) {
    release(memory);
}

#[unsafe(no_mangle)]
extern "C" fn llvm_omp_target_free_host(memory: *mut c_void, _device: c_int) {
    release(memory);
}

#[unsafe(no_mangle)]
extern "C" fn llvm_omp_target_free_shared(memory: *mut c_void, _device: c_int) {
    release(memory);
}

/// Memory is as good as locked: no device accesses it from outside.
#[unsafe(no_mangle)]
extern "C" fn llvm_omp_target_lock_mem(
    memory: *mut c_void,
    _size: usize,
    _device: c_int,
) -> *mut c_void {
    memory
}

#[unsafe(no_mangle)]
extern "C" fn llvm_omp_target_unlock_mem(_memory: *mut c_void, _device: c_int) {}

/// Memory of the own device is always present.
#[unsafe(no_mangle)]
extern "C" fn omp_target_is_present(memory: *const c_void, _device: c_int) -> c_int {
    c_int::from(!memory.is_null())
}

/// On the own device an address is its own counterpart.
#[unsafe(no_mangle)]
extern "C" fn omp_get_mapped_ptr(memory: *const c_void, _device: c_int) -> *mut c_void {
    memory.cast_mut()
}

#[unsafe(no_mangle)]
extern "C" fn omp_target_memcpy(
    to: *mut c_void,
    from: *const c_void,
    length: usize,
    to_offset: usize,
    from_offset: usize,
    _to_device: c_int,
    _from_device: c_int,
) -> c_int {
    if to.is_null() || from.is_null() {
        return FAILED;
    }
    // SAFETY: by the routine's contract both ranges belong to the caller. They may overlap here, as on any one device.
    unsafe {
        ptr::copy(
            from.cast::<u8>().add(from_offset),
            to.cast::<u8>().add(to_offset),
            length,
        );
    }
    0
}

/// Copies a box of `volume` elements between two arrays. With two null pointers it tells how many dimensions it
/// supports.
#[unsafe(no_mangle)]
extern "C" fn omp_target_memcpy_rect(
    to: *mut c_void,
    from: *const c_void,
    element: usize,
    dimensions: c_int,
    volume: *const usize,
    to_offsets: *const usize,
    from_offsets: *const usize,
    to_sides: *const usize,
    from_sides: *const usize,
    _to_device: c_int,
    _from_device: c_int,
) -> c_int {
    if to.is_null() && from.is_null() {
        return c_int::MAX;
    }
    let arrays = [volume, to_offsets, from_offsets, to_sides, from_sides];
    let rank = usize::try_from(dimensions).unwrap_or(0);
    if to.is_null() || from.is_null() || rank == 0 || arrays.iter().any(|a| a.is_null()) {
        return FAILED;
    }
    // SAFETY: by the routine's contract each array holds `dimensions` numbers.
    let [volume, to_offsets, from_offsets, to_sides, from_sides] =
        arrays.map(|a| unsafe { std::slice::from_raw_parts(a, rank) });
    // SAFETY: by the routine's contract the box lies within both arrays.
    unsafe {
        copy_box(
            element,
            volume,
            Corner {
                at: to.cast(),
                offsets: to_offsets,
                sides: to_sides,
            },
            Corner {
                at: from.cast_mut().cast(),
                offsets: from_offsets,
                sides: from_sides,
            },
        );
    }
    0
}

/// Where a box begins in an array: of one dimension less at every level of the recursion.
#[derive(Clone, Copy)]
struct Corner<'a> {
    at: *mut u8,
    offsets: &'a [usize],
    sides: &'a [usize],
}

impl<'a> Corner<'a> {
    /// The first slice of the box along its outermost dimension, and the bytes from one slice to the next.
    fn slice(self, element: usize) -> Option<(Self, usize)> {
        let (&offset, offsets) = self.offsets.split_first()?;
        let (_, sides) = self.sides.split_first()?;
        let stride = sides
            .iter()
            .fold(element, |bytes, &side| bytes.wrapping_mul(side));
        let at = self.at.wrapping_add(offset.wrapping_mul(stride));
        Some((Corner { at, offsets, sides }, stride))
    }
}

/// # Safety
/// The box must lie within both arrays.
unsafe fn copy_box(element: usize, volume: &[usize], to: Corner, from: Corner) {
    let (Some((&count, inner)), Some((to, to_stride)), Some((from, from_stride))) =
        (volume.split_first(), to.slice(element), from.slice(element))
    else {
        return;
    };
    if inner.is_empty() {
        // SAFETY: this row is part of the box.
        unsafe { ptr::copy(from.at, to.at, count.wrapping_mul(element)) };
        return;
    }
    for i in 0..count {
        let to = Corner {
            at: to.at.wrapping_add(i.wrapping_mul(to_stride)),
            ..to
        };
        let from = Corner {
            at: from.at.wrapping_add(i.wrapping_mul(from_stride)),
            ..from
        };
        // SAFETY: so is every slice of it.
        unsafe { copy_box(element, inner, to, from) };
    }
}
