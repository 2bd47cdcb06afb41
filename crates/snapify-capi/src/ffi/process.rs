//! Processes and their libraries.

use super::engine::card_of;
use super::{Completion, guarded, matching, named, operate, put, required, slice, text};
use crate::abi::{CoiEvent, MAX_FILE_NAME, MAX_FUNCTION_NAME};
use crate::error::{Code, Failure, Result};
use crate::host::host;
use crate::image::Image;
use crate::library::{self, Registered, check_origin, read_file};
use crate::process::Process;
use snapify_offload::OffloadError;
use snapify_offload::host::Program;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How a process is to be started.
struct Start {
    engine: u64,
    args: Vec<String>,
    inherit: bool,
    env: Vec<(String, String)>,
    proxy: bool,
    buffer_space: u64,
    search: Option<String>,
}

impl Start {
    /// # Safety
    /// By the interface's contract: `argv` holds `argc` C strings, and `env` C strings and a null pointer.
    #[allow(clippy::too_many_arguments, reason = "as many as the interface has")]
    unsafe fn new(
        engine: u64,
        argc: c_int,
        argv: *const *const c_char,
        inherit: u8,
        env: *const *const c_char,
        proxy: u8,
        buffer_space: u64,
        search: *const c_char,
    ) -> Result<Self> {
        let count = usize::try_from(argc).map_err(|_| Code::OutOfRange)?;
        // SAFETY: by the caller's promise.
        let argv = unsafe { matching(argv, count) }?;
        let mut args = Vec::new();
        for arg in argv {
            // SAFETY: by the caller's promise.
            args.push(unsafe { text(*arg) }.ok_or(Code::InvalidPointer)?);
        }
        let mut variables = Vec::new();
        if !env.is_null() {
            for index in 0.. {
                // SAFETY: by the caller's promise: up to the null pointer.
                let Some(variable) = (unsafe { text(*env.add(index)) }) else {
                    break;
                };
                let (name, value) = variable.split_once('=').unwrap_or((&variable, ""));
                variables.push((name.to_owned(), value.to_owned()));
            }
        }
        Ok(Self {
            engine,
            args,
            inherit: inherit != 0,
            env: variables,
            proxy: proxy != 0,
            buffer_space,
            // SAFETY: by the caller's promise.
            search: unsafe { text(search) },
        })
    }

    /// Starts it under this name. The image is only looked for when there is a card for it.
    fn run<I: AsRef<[u8]>>(mut self, name: &str, image: impl FnOnce() -> Result<I>) -> Result<u64> {
        let host = host()?;
        let card = card_of(host, self.engine)?;
        check_name(name)?;
        let image = image()?;
        let image = image.as_ref();
        Image::parse(image)?;
        let runtime = host.runtime()?;
        if self.buffer_space > runtime.card_memory(card).unwrap_or(0) {
            return Err(Failure::new(
                Code::ResourceExhausted,
                "the card has not so much memory for buffers",
            ));
        }
        let search = self.search.take();
        let search = search.or_else(|| std::env::var("SINK_LD_LIBRARY_PATH").ok());
        if let Some(search) = search.filter(|search| !search.is_empty()) {
            self.env.push(("LD_LIBRARY_PATH".into(), search));
        }
        let program = Program {
            name: name.rsplit('/').next().unwrap_or(name),
            image,
            args: &self.args,
            inherit: self.inherit,
            env: &self.env,
            outputs: self.proxy,
        };
        let started = runtime.create_process_of(card, &program);
        let process = Process::new(started.map_err(did_not_start)?)?;
        Ok(host.processes.add(process))
    }
}

fn did_not_start(error: OffloadError) -> Failure {
    let mut failure = Failure::from(error);
    if failure.code == Code::Error && failure.text.contains("did not start") {
        // The dynamic loader's exit status, when it does not find a library; it has named it on standard error.
        failure.code = if failure.text.contains("exited with status 127") {
            Code::MissingDependency
        } else {
            Code::ProcessDied
        };
    }
    failure
}

fn check_name(name: &str) -> Result<()> {
    if name.len() >= MAX_FILE_NAME {
        return Err(Code::OutOfRange.into());
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessCreateFromFile(
    engine: u64,
    file: *const c_char,
    argc: c_int,
    argv: *const *const c_char,
    inherit: u8,
    env: *const *const c_char,
    proxy: u8,
    _reserved: *const c_char,
    buffer_space: u64,
    search: *const c_char,
    process: *mut u64,
) -> i32 {
    guarded("COIProcessCreateFromFile", || {
        required(process)?;
        // SAFETY: by the interface's contract.
        let (name, start) = unsafe {
            (
                text(file).ok_or(Code::InvalidPointer)?,
                Start::new(
                    engine,
                    argc,
                    argv,
                    inherit,
                    env,
                    proxy,
                    buffer_space,
                    search,
                )?,
            )
        };
        let base = name.rsplit('/').next().unwrap_or(&name);
        let handle = start.run(base, || read_file(&name, Some("")))?;
        // SAFETY: by the interface's contract.
        unsafe { put(process, handle) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessCreateFromMemory(
    engine: u64,
    name: *const c_char,
    image: *const c_void,
    length: u64,
    argc: c_int,
    argv: *const *const c_char,
    inherit: u8,
    env: *const *const c_char,
    proxy: u8,
    _reserved: *const c_char,
    buffer_space: u64,
    search: *const c_char,
    origin: *const c_char,
    offset: u64,
    process: *mut u64,
) -> i32 {
    guarded("COIProcessCreateFromMemory", || {
        required(process)?;
        required(image)?;
        // SAFETY: by the interface's contract.
        let (name, origin, start) = unsafe {
            (
                text(name).ok_or(Code::InvalidPointer)?,
                text(origin),
                Start::new(
                    engine,
                    argc,
                    argv,
                    inherit,
                    env,
                    proxy,
                    buffer_space,
                    search,
                )?,
            )
        };
        let image = || {
            // SAFETY: by the interface's contract.
            let image = unsafe { bytes(image, length) }?;
            check_origin(origin.as_deref(), offset, length)?;
            Ok(image)
        };
        let handle = start.run(&name, image)?;
        // SAFETY: by the interface's contract.
        unsafe { put(process, handle) };
        Ok(())
    })
}

/// The bytes of an image.
///
/// # Safety
/// As for [`slice`].
unsafe fn bytes<'a>(image: *const c_void, length: u64) -> Result<&'a [u8]> {
    let length = usize::try_from(length).ok();
    let length = length.filter(|length| (1..=isize::MAX as usize).contains(length));
    // SAFETY: by the caller's promise.
    unsafe { slice(image.cast(), length.ok_or(Code::OutOfRange)?) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessDestroy(
    process: u64,
    timeout: i32,
    force: u8,
    status: *mut i8,
    termination: *mut u32,
) -> i32 {
    guarded("COIProcessDestroy", || {
        let host = host()?;
        let found = host.processes.get(process)?;
        let force = force != 0;
        let most = match timeout {
            -1 if force => return Err(Code::ArgumentMismatch.into()),
            -1 => None,
            0.. => Some(Duration::from_millis(timeout.unsigned_abs().into())),
            _ => return Err(Code::OutOfRange.into()),
        };
        let Some(ended) = found.end(most, force)? else {
            return Err(Failure::new(
                Code::TimeOutReached,
                "the process is still running",
            ));
        };
        // Of two threads that destroy it one does the rest.
        if host.processes.remove(process).is_ok() {
            let theirs = (host.pipelines).remove_all(|pipeline| pipeline.process_handle == process);
            for pipeline in theirs {
                pipeline.close();
            }
            (host.functions).remove_all(|function| function.process == process);
            (host.libraries).remove_all(|library| library.process == process);
        }
        // SAFETY: by the interface's contract.
        unsafe {
            put(status, ended.status);
            put(termination, ended.signal);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessGetFunctionHandles(
    process: u64,
    count: u32,
    names: *const *const c_char,
    functions: *mut u64,
) -> i32 {
    guarded("COIProcessGetFunctionHandles", || {
        required(names)?;
        required(functions)?;
        let host = host()?;
        let found = host.processes.get(process)?;
        if count == 0 {
            return Err(Code::OutOfRange.into());
        }
        // SAFETY: by the interface's contract.
        let pointers = unsafe { slice(names, count as usize) }?;
        let mut names = Vec::new();
        for pointer in pointers {
            // SAFETY: by the interface's contract.
            names.push(unsafe { text(*pointer) }.ok_or(Code::InvalidPointer)?);
        }
        if names.iter().any(|name| name.len() >= MAX_FUNCTION_NAME) {
            return Err(Code::OutOfRange.into());
        }
        let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
        let handles = found.functions(host, process, &wanted)?;
        for (index, handle) in handles.iter().enumerate() {
            // SAFETY: by the interface's contract there is room for as many as there are names.
            unsafe { put(functions.add(index), *handle) };
        }
        let missing = wanted
            .iter()
            .zip(&handles)
            .find(|(_, handle)| **handle == 0);
        match missing {
            None => Ok(()),
            Some((name, _)) => {
                let text = format!("no function {name} is exported (is -rdynamic missing?)");
                Err(Failure::new(Code::DoesNotExist, text))
            }
        }
    })
}

/// Flags of dlopen(3), as the interface allows them.
fn check_flags(flags: u32) -> Result<i32> {
    const KNOWN: i32 = libc::RTLD_LAZY
        | libc::RTLD_NOW
        | libc::RTLD_NOLOAD
        | libc::RTLD_DEEPBIND
        | libc::RTLD_GLOBAL
        | libc::RTLD_NODELETE;
    let flags = flags.cast_signed();
    if flags & !KNOWN != 0 {
        return Err(Code::OutOfRange.into());
    }
    // One of the two is needed.
    Ok(if flags & (libc::RTLD_LAZY | libc::RTLD_NOW) == 0 {
        flags | libc::RTLD_NOW
    } else {
        flags
    })
}

fn load(
    process: u64,
    image: &[u8],
    name: Option<&str>,
    flags: u32,
    library: *mut u64,
) -> Result<()> {
    let flags = check_flags(flags)?;
    let host = host()?;
    let found = host.processes.get(process)?;
    let (handle, known) = library::load(host, process, &found, image, name, flags)?;
    // SAFETY: by the interface's contract.
    unsafe { put(library, handle) };
    if known {
        return Err(Code::AlreadyExists.into());
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessLoadLibraryFromMemory(
    process: u64,
    image: *const c_void,
    length: u64,
    name: *const c_char,
    _search: *const c_char,
    origin: *const c_char,
    offset: u64,
    flags: u32,
    library: *mut u64,
) -> i32 {
    guarded("COIProcessLoadLibraryFromMemory", || {
        required(library)?;
        required(image)?;
        // SAFETY: by the interface's contract.
        let (image, name, origin) = unsafe { (bytes(image, length)?, text(name), text(origin)) };
        check_origin(origin.as_deref(), offset, length)?;
        load(process, image, name.as_deref(), flags, library)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessLoadLibraryFromFile(
    process: u64,
    file: *const c_char,
    name: *const c_char,
    search: *const c_char,
    flags: u32,
    library: *mut u64,
) -> i32 {
    guarded("COIProcessLoadLibraryFromFile", || {
        required(library)?;
        // SAFETY: by the interface's contract.
        let (file, name, search) = unsafe { (text(file), text(name), text(search)) };
        let file = file.ok_or(Code::InvalidPointer)?;
        let image = read_file(&file, search.as_deref())?;
        load(process, &image, name.as_deref(), flags, library)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn COIProcessUnloadLibrary(process: u64, library: u64) -> i32 {
    guarded("COIProcessUnloadLibrary", || {
        let host = host()?;
        let found = host.processes.get(process)?;
        if host.libraries.get(library)?.process != process {
            return Err(Code::InvalidHandle.into());
        }
        let library = host.libraries.remove(library)?;
        found.forget_functions();
        Ok(found.offload.close_library(library.loaded)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessRegisterLibraries(
    count: u32,
    images: *const *const c_void,
    lengths: *const u64,
    _origins: *const *const c_char,
    _offsets: *const u64,
) -> i32 {
    guarded("COIProcessRegisterLibraries", || {
        if count == 0 {
            return Err(Code::OutOfRange.into());
        }
        let host = host()?;
        // SAFETY: by the interface's contract.
        let (images, lengths) = unsafe {
            (
                slice(images, count as usize)?,
                slice(lengths, count as usize)?,
            )
        };
        let mut libraries = Vec::new();
        for (image, length) in images.iter().zip(lengths) {
            required(*image)?;
            // SAFETY: by the interface's contract.
            let image = unsafe { bytes(*image, *length) }?;
            libraries.push(Arc::new(Registered::new(image)?));
        }
        let mut registered = host
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        registered.extend(libraries);
        Ok(())
    })
}

/// Memory of cards is taken as it is needed and kept for the next buffer: there is nothing to be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIProcessSetCacheSize(
    process: u64,
    _huge_pool: u64,
    _huge_flags: u32,
    _small_pool: u64,
    _small_flags: u32,
    count: u32,
    events: *const CoiEvent,
    completion: *mut CoiEvent,
) -> i32 {
    guarded("COIProcessSetCacheSize", || {
        let host = host()?;
        let found = host.processes.get(process)?;
        found.offload.status()?;
        let body = Box::new(|| Ok(()));
        // SAFETY: by the interface's contract.
        unsafe {
            let named = named(host, count, events)?;
            let completion = Completion::parse(completion);
            operate(host, named, completion, |_| Ok(Vec::new()), body)
        }
    })
}

/// Transfers are copies by processors: there are no channels.
#[unsafe(no_mangle)]
pub extern "C" fn COIProcessConfigureDMA(_channels: u64, mode: i32) -> i32 {
    guarded("COIProcessConfigureDMA", || match mode {
        0..=2 => Ok(()),
        _ => Err(Code::OutOfRange.into()),
    })
}
