//! Headers of device images: ELF files that the host process hands to a card.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| snapify_offload::fuzzing::device_image(data));
