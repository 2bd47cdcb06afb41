//! The C interfaces of Snapify's host library: COI (`include/coi`), for programs that use cards by its functions, and
//! `snapify.h`, for programs that take snapshots of their offload processes.
//!
//! Handles are numbers that tables lead to objects, so that one that is invalid is refused and never followed.
//!
//! - `ffi`: the exported functions; they check arguments and call the rest.
//! - `host`: the connection to the cards, and the tables of handles.
//! - `process`, `pipeline`, `buffer`: what the handles stand for.
//! - `snapshot`: the operations of `snapify.h`.
//! - `event`, `work`: what completes later, and who does it.
//! - `image`: what the headers of executables and libraries tell.
#![deny(unsafe_code)]

mod abi;
mod buffer;
mod error;
mod event;
#[allow(unsafe_code)]
mod ffi;
mod handles;
mod host;
mod image;
mod library;
#[allow(unsafe_code)]
mod memory;
mod pipeline;
mod process;
mod snapshot;
mod work;
