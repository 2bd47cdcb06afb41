//! The server threads: one for commands to the process, one for each pipeline.
#![allow(unsafe_code)]

use super::Sink;
use super::call::call;
use super::calls::Call;
use super::loader::{self, Library, share_segment};
use crate::layout::{
    BOUNCE, BOUNCE_BYTES, COMMAND_RING, MAX_PIPELINES, RING_BYTES, SERVER_STACK, pipeline_ring,
};
use crate::wire::{
    LoadReply, LoadRequest, STATUS_DONE, STATUS_REFUSED, Segment, SymbolsRequest, command, pipeline,
};
use rustix::process::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;
use snapify_fabric::ring::{RingError, RingServer, Spin};
use std::io;
use std::sync::{Arc, PoisonError};

/// Starts the thread that serves the command ring.
///
/// # Errors
/// If threads are short.
pub fn start_commands(sink: &Arc<Sink>) -> Result<(), String> {
    let ring = RingServer::new(
        sink.store.clone(),
        COMMAND_RING,
        RING_BYTES,
        Spin::default(),
    )
    .map_err(|error| error.to_string())?;
    let sink = sink.clone();
    start_thread("commands", move || serve_commands(&sink, ring))
}

fn start_thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), String> {
    raise_data_limit();
    std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(SERVER_STACK)
        .spawn(body)
        .map(|_| ())
        .map_err(|error| format!("cannot start a server thread: {error}"))
}

/// Stacks count against the limit of private memory (`RLIMIT_DATA`) with all their length, though only what is
/// touched takes memory. The limit stands for memory, so each stack raises it.
fn raise_data_limit() {
    let mut limit = rustix::process::getrlimit(Resource::Data);
    if let Some(current) = limit.current {
        let raised = current.saturating_add(SERVER_STACK as u64);
        limit.current = Some(limit.maximum.map_or(raised, |maximum| raised.min(maximum)));
        // If it fails the thread may not start, which is reported.
        let _ = rustix::process::setrlimit(Resource::Data, limit);
    }
}

/// Ends the process because its host process's memory, or ours, is damaged.
fn damaged(error: &RingError) -> ! {
    eprintln!("snapify-offload-process: {error}");
    std::process::abort();
}

fn serve_commands(sink: &Arc<Sink>, mut ring: RingServer) {
    loop {
        let (kind, argument, payload) = match ring.receive() {
            Ok(request) => (request.kind, request.argument, request.payload.to_vec()),
            Err(RingError::Closed) => return,
            Err(error) => damaged(&error),
        };
        let answer = execute(sink, kind, argument, &payload);
        let (status, bytes) = match &answer {
            Ok(bytes) => (STATUS_DONE, &bytes[..]),
            Err(why) => (STATUS_REFUSED, why.as_bytes()),
        };
        let _publishing = sink.gate.enter();
        let done = match ring.complete(status, bytes) {
            Err(RingError::TooLarge { .. }) => ring.complete(STATUS_REFUSED, b""),
            other => other,
        };
        if let Err(error) = done {
            damaged(&error);
        }
    }
}

fn execute(sink: &Arc<Sink>, kind: u32, argument: u64, payload: &[u8]) -> Result<Vec<u8>, String> {
    match kind {
        command::MARKER => Ok(Vec::new()),
        command::LOAD => to_json(&load(sink, &from_json(payload)?)?),
        command::MAP => {
            let segments: Vec<Segment> = from_json(payload)?;
            for segment in segments {
                map_segment(sink, segment)?;
            }
            Ok(Vec::new())
        }
        command::SYMBOLS => {
            let request: SymbolsRequest = from_json(payload)?;
            to_json(&symbols(sink, &request)?)
        }
        command::UNLOAD => {
            let mut libraries = sink
                .libraries
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let place = usize::try_from(argument).ok();
            let place = place.and_then(|place| libraries.get_mut(place));
            let library = place.and_then(Option::take).ok_or(NO_LIBRARY)?;
            drop(libraries);
            library.close().map(|()| Vec::new())
        }
        command::REFER => {
            let mut references = sink
                .references
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *references.entry(argument).or_default() += 1;
            Ok(Vec::new())
        }
        command::REFERRED => {
            let asked: Vec<u64> = from_json(payload)?;
            let references = sink
                .references
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let referred: Vec<u64> = asked
                .into_iter()
                .filter(|address| references.contains_key(address))
                .collect();
            to_json(&referred)
        }
        command::PIPELINE => start_pipeline(sink, argument).map(|()| Vec::new()),
        command::COPY => copy(sink, payload).map(|()| Vec::new()),
        kind => Err(format!("there is no command {kind}")),
    }
}

const NO_LIBRARY: &str = "there is no such library";

fn symbols(sink: &Sink, request: &SymbolsRequest) -> Result<Vec<Option<u64>>, String> {
    let libraries = sink
        .libraries
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let names = request.names.iter();
    let Some(number) = request.library else {
        let anywhere = |name: &String| {
            loader::global_symbol(name).or_else(|| {
                let mut loaded = libraries.iter().flatten();
                loaded.find_map(|library| library.symbol(name))
            })
        };
        return Ok(names.map(anywhere).collect());
    };
    let library = libraries.get(number as usize).and_then(Option::as_ref);
    let library = library.ok_or(NO_LIBRARY)?;
    Ok(names.map(|name| library.symbol(name)).collect())
}

fn load(sink: &Sink, request: &LoadRequest) -> Result<LoadReply, String> {
    let bytes = usize::try_from(request.bytes).map_err(|error| error.to_string())?;
    sink.store
        .range(request.offset, request.bytes)
        .map_err(|error| error.to_string())?;
    let mut image = vec![0; bytes];
    sink.store
        .read(request.offset, &mut image)
        .map_err(|error| error.to_string())?;
    // Constructors run here and may take their time; nobody else needs the list meanwhile, because commands
    // are served in order.
    let serial = sink
        .libraries
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .len();
    let library = Library::load(&image, &request.name, serial, request.flags)?;
    let segments = library.segments.clone();
    let mut libraries = sink
        .libraries
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    // The place of the number: an answer that is not of this moment may have pushed another meanwhile.
    let number = libraries.len();
    libraries.push(Some(library));
    Ok(LoadReply {
        library: u32::try_from(number).map_err(|error| error.to_string())?,
        segments,
    })
}

fn map_segment(sink: &Sink, segment: Segment) -> Result<(), String> {
    let libraries = sink
        .libraries
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let known = libraries
        .iter()
        .flatten()
        .any(|library| library.segments.contains(&(segment.address, segment.bytes)));
    if !known {
        return Err(format!("no image has a segment at {:#x}", segment.address));
    }
    // SAFETY: a writable segment of a loaded image. Its functions run only after this command; constructors
    // that have started threads which write to globals at this moment are the exception that we accept.
    unsafe { share_segment(&sink.store, segment) }?;
    let mut segments = sink.segments.lock().unwrap_or_else(PoisonError::into_inner);
    segments.push(segment);
    Ok(())
}

fn start_pipeline(sink: &Arc<Sink>, index: u64) -> Result<(), String> {
    let index = usize::try_from(index)
        .ok()
        .filter(|&index| index < MAX_PIPELINES);
    let index = index.ok_or("there is no such pipeline")?;
    let ring = RingServer::new(
        sink.store.clone(),
        pipeline_ring(index),
        RING_BYTES,
        Spin::default(),
    )
    .map_err(|error| error.to_string())?;
    let sink = sink.clone();
    start_thread(&format!("pipeline {index}"), move || {
        serve_pipeline(&sink, ring)
    })
}

/// What a pipeline is to do.
enum Task {
    /// Call a function with so many 64-bit arguments.
    Run(u64),
    /// Call a function in the way of COI; nothing if the request makes no sense.
    Call(Option<Call>),
}

fn serve_pipeline(sink: &Sink, mut ring: RingServer) {
    // At least six, as `call` wants.
    let mut args = vec![0_u64; 64];
    loop {
        let (function, task) = match ring.receive() {
            Ok(request) if request.kind == pipeline::CALL => {
                (request.argument, Task::Call(Call::read(request.payload)))
            }
            Ok(request) if request.kind == pipeline::CALL_AT => (
                request.argument,
                Task::Call(Call::read_at(&sink.store, request.payload)),
            ),
            Ok(request) if request.kind == pipeline::RUN => {
                let words = request.payload.chunks_exact(8);
                let count = words.len();
                if args.len() < count {
                    args.resize(count, 0);
                }
                for (arg, word) in args.iter_mut().zip(words) {
                    *arg = u64::from_ne_bytes(word.try_into().unwrap_or_default());
                }
                (request.argument, Task::Run(count as u64))
            }
            Ok(request) => damaged(&RingError::Damaged(format!(
                "there is no run command {}",
                request.kind
            ))),
            Err(RingError::Closed) => return,
            Err(error) => damaged(&error),
        };
        sink.executing.wait();
        // SAFETY: the host process names a function of an image it had us load, and its arguments; if it is
        // wrong this process, which is the host's own, is what suffers.
        let called = unsafe {
            match task {
                Task::Run(count) => {
                    call(function, args.as_ptr(), count);
                    None
                }
                Task::Call(Some(mut call)) => {
                    call.run(function);
                    Some(call)
                }
                Task::Call(None) => damaged(&RingError::Damaged("a call makes no sense".into())),
            }
        };
        flush_stdout();
        // Case 4 of paper 1, section 4.1: no result leaves while a snapshot is taken.
        let _publishing = sink.gate.enter();
        let answer = called.map_or_else(Vec::new, |call| call.publish(&sink.store));
        if let Err(error) = ring.complete(STATUS_DONE, &answer) {
            damaged(&error);
        }
    }
}

/// Copies between the bounce area and any memory of this process. The kernel does it, because a bad address is
/// then an error and not the end of the process.
fn copy(sink: &Sink, payload: &[u8]) -> Result<(), String> {
    let mut words = payload
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
    let (Some(address), Some(bytes), Some(inward)) = (words.next(), words.next(), words.next())
    else {
        return Err("a copy command is cut short".into());
    };
    if bytes > BOUNCE_BYTES {
        return Err("a copy command is too long".into());
    }
    let bounce = sink
        .store
        .range(BOUNCE, bytes)
        .map_err(|error| error.to_string())?;
    let local = libc::iovec {
        iov_base: bounce.cast(),
        iov_len: bytes as usize,
    };
    let remote = libc::iovec {
        iov_base: address as *mut _,
        iov_len: bytes as usize,
    };
    // SAFETY: `local` is in the store; `remote` is checked by the kernel.
    let copied = unsafe {
        if inward == 1 {
            libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        } else {
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        }
    };
    match copied {
        copied if copied == bytes as isize => Ok(()),
        -1 => Err(io::Error::last_os_error().to_string()),
        _ => Err("part of it is not memory of the offload process".into()),
    }
}

unsafe extern "C" {
    /// Bytes that wait in a stream's buffer (<stdio_ext.h>).
    fn __fpending(stream: *mut libc::FILE) -> libc::size_t;
    static mut stdout: *mut libc::FILE;
}

/// Sends out what device code has printed without ending the line, so that it is not lost if the process is
/// killed, and comes before what the host prints afterwards.
fn flush_stdout() {
    // SAFETY: the C library's own stream; both calls are thread-safe enough for a look, and fflush locks.
    unsafe {
        if __fpending(stdout) != 0 {
            libc::fflush(stdout);
        }
    }
}

/// Makes standard output line buffered, though it may be a pipe.
pub fn buffer_lines() {
    // SAFETY: called before any other thread exists and before anything was printed.
    unsafe { libc::setvbuf(stdout, std::ptr::null_mut(), libc::_IOLBF, 0) };
}

fn from_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| format!("a command makes no sense: {error}"))
}

fn to_json<T: Serialize>(answer: &T) -> Result<Vec<u8>, String> {
    serde_json::to_vec(answer).map_err(|error| error.to_string())
}
