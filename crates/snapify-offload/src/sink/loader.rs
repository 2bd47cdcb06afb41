//! Loading device images into this process and moving their writable memory into the local store.
#![allow(unsafe_code)]

use super::image::ImageLayout;
use crate::layout::STORE_FD;
use crate::wire::Segment;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags};
use snapify_fabric::Mapping;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A record of an image's list of offload entries (clang 14 to 21): 32 bytes.
const ENTRY_BYTES: u64 = 32;
/// A record as clang 22 writes it: the first word is 0, and there are 56 bytes.
const ENTRY_BYTES_22: u64 = 56;

/// A loaded device image. Dropping it does not unload it.
#[derive(Debug)]
pub struct Library {
    handle: Handle,
    /// Offload entries by name: not all of them are exported symbols.
    entries: HashMap<CString, u64>,
    /// Writable memory by absolute address, whole pages.
    pub segments: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct Handle(*mut libc::c_void);

// SAFETY: a handle of dlopen(3) can be used from any thread.
unsafe impl Send for Handle {}

impl Library {
    /// Loads an image with flags of dlopen(3). `serial` must differ from that of all images loaded before.
    ///
    /// # Errors
    /// In the words of the dynamic loader.
    pub fn load(image: &[u8], name: &str, serial: usize, flags: i32) -> Result<Self, String> {
        let layout =
            ImageLayout::parse(image).map_err(|why| format!("{name} is no device image: {why}"))?;
        let file_name = CString::new(name.replace('\0', "")).unwrap_or_default();
        let memory = memfd_create(file_name.as_c_str(), MemfdFlags::CLOEXEC)
            .map_err(|errno| format!("cannot make a memory file for {name}: {errno}"))?;
        let mut file = File::from(memory);
        file.write_all(image)
            .map_err(|error| format!("cannot store {name}: {error}"))?;
        // The dynamic loader takes an equal path for the same library, and descriptor numbers come back.
        let path = format!("/proc/self/fd/{}{}", "./".repeat(serial), file.as_raw_fd());
        let path = CString::new(path).map_err(|error| error.to_string())?;
        // SAFETY: loading runs the image's constructors, which is what the host process asks for.
        let handle = unsafe { libc::dlopen(path.as_ptr(), flags) };
        if handle.is_null() {
            return Err(last_error());
        }
        let base = load_address(handle)?;
        let entries = layout.entries.map_or_else(HashMap::new, |(start, bytes)| {
            // SAFETY: the section is part of the image just loaded at `base`.
            unsafe { read_entries(base.wrapping_add(start), bytes) }
        });
        let absolute = |&(start, bytes): &(u64, u64)| (base.wrapping_add(start), bytes);
        Ok(Self {
            handle: Handle(handle),
            entries,
            segments: layout.writable.iter().map(absolute).collect(),
        })
    }

    /// Address of a function or object.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        let name = CString::new(name).ok()?;
        if let Some(&address) = self.entries.get(&name) {
            return Some(address);
        }
        // SAFETY: the handle is open as long as there is this object.
        let found = unsafe { libc::dlsym(self.handle.0, name.as_ptr()) };
        (!found.is_null()).then_some(found as u64)
    }

    /// Loads a library by its file name. Its memory stays private to this process.
    ///
    /// # Errors
    /// In the words of the dynamic loader.
    pub fn open(file: &CStr, flags: i32) -> Result<Self, String> {
        // SAFETY: loading runs the library's constructors, which is what the caller asks for.
        let handle = unsafe { libc::dlopen(file.as_ptr(), flags) };
        if handle.is_null() {
            return Err(last_error());
        }
        Ok(Self {
            handle: Handle(handle),
            entries: HashMap::new(),
            segments: Vec::new(),
        })
    }

    /// Unloads it, unless others still need it (dlclose(3)).
    ///
    /// # Errors
    /// In the words of the dynamic loader.
    pub fn close(self) -> Result<(), String> {
        // SAFETY: the handle is open, and nobody has it any more; that no function of the library runs or is called
        // is for the host process to see to, as with dlclose.
        match unsafe { libc::dlclose(self.handle.0) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }
}

/// Address of a function or object that the program, or a library that all may use, exports.
pub fn global_symbol(name: &str) -> Option<u64> {
    let name = CString::new(name).ok()?;
    // SAFETY: only looks it up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found as u64)
}

/// What dlopen(3) and its kin complain about.
fn last_error() -> String {
    // SAFETY: the text is this thread's and stays until its next call.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "the dynamic loader refuses it and does not say why".into();
        }
        CStr::from_ptr(text)
    };
    text.to_string_lossy().into_owned()
}

/// Where a library was loaded: what its own addresses are relative to.
fn load_address(handle: *mut libc::c_void) -> Result<u64, String> {
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: RTLD_DI_LINKMAP (dlinfo(3)) stores one pointer, to a structure that lives as long as the library.
    unsafe {
        if libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) != 0 || map.is_null()
        {
            return Err(last_error());
        }
        Ok((*map).l_addr)
    }
}

/// First member of `struct link_map` (<link.h>).
#[repr(C)]
struct LinkMap {
    l_addr: u64,
}

/// Reads the list of entries: address and name of each.
///
/// # Safety
/// `start` and `bytes` must be the entries section of a loaded and relocated image.
unsafe fn read_entries(start: u64, bytes: u64) -> HashMap<CString, u64> {
    let word = |at: u64| {
        // SAFETY: within the section, by the caller's promise and the loops' bounds.
        unsafe { (at as *const u64).read_unaligned() }
    };
    let mut entries = HashMap::new();
    let end = start.wrapping_add(bytes);
    let newer = bytes >= ENTRY_BYTES_22 && word(start) == 0;
    let (size, address, name) = if newer {
        (ENTRY_BYTES_22, 16, 24)
    } else {
        (ENTRY_BYTES, 0, 8)
    };
    let mut at = start;
    while at + size <= end {
        let (value, text) = (word(at + address), word(at + name));
        if value != 0 && text != 0 {
            // SAFETY: the relocated pointer to the entry's name.
            let text = unsafe { CStr::from_ptr(text as *const _) };
            entries.insert(text.to_owned(), value);
        }
        at += size;
    }
    entries
}

/// Moves a segment of this process's memory into the local store: the same bytes at the same address, but seen
/// by the host process, too. The host has set memory aside at the segment's offset.
///
/// # Errors
/// In words.
///
/// # Safety
/// The segment must be writable private memory of a loaded image, whole pages. No thread may write to it meanwhile.
pub unsafe fn share_segment(store: &Mapping, segment: Segment) -> Result<(), String> {
    let to = store
        .range(segment.offset, segment.bytes)
        .map_err(|error| error.to_string())?;
    // SAFETY: STORE_FD is open as long as the process lives.
    let file = unsafe { BorrowedFd::borrow_raw(STORE_FD) };
    // SAFETY: source and destination are different memory of `bytes` bytes; then the same bytes are mapped in
    // place of the segment, so nothing changes for who uses it.
    unsafe {
        std::ptr::copy_nonoverlapping(segment.address as *const u8, to, segment.bytes as usize);
        rustix::mm::mmap(
            segment.address as *mut _,
            segment.bytes as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::FIXED,
            file,
            segment.offset,
        )
    }
    .map(|_| ())
    .map_err(|errno| {
        format!(
            "cannot map {} bytes at {:#x} into the local store: {errno}",
            segment.bytes, segment.address
        )
    })
}
