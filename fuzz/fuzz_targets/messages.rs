//! Messages of the control channels: command line and supervisor, supervisor and host library, card daemons, offload processes;
//! and of COI calls.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    snapify_job::fuzzing::message(data);
    snapify_offload::fuzzing::message(data);
});
