//! What fuzz targets give to the parsers of this crate.

use crate::control::{CardToSupervisor, HostToSupervisor, SupervisorToCard, SupervisorToHost};
use crate::sink::image::ImageLayout;
use crate::wire::{
    CallHead, CallPlace, CardToHost, CardToSink, HostToCard, LoadReply, LoadRequest, Segment,
    SinkToCard, SymbolsRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes as every message between supervisor, host library, card daemons and offload processes, and as requests of COI calls.
pub fn message(bytes: &[u8]) {
    read::<HostToSupervisor>(bytes);
    read::<SupervisorToHost>(bytes);
    read::<SupervisorToCard>(bytes);
    read::<CardToSupervisor>(bytes);
    read::<HostToCard>(bytes);
    read::<CardToHost>(bytes);
    read::<CardToSink>(bytes);
    read::<SinkToCard>(bytes);
    read::<LoadRequest>(bytes);
    read::<LoadReply>(bytes);
    read::<Vec<Segment>>(bytes);
    read::<SymbolsRequest>(bytes);
    if let Some(head) = CallHead::parse(bytes) {
        let rest = bytes.len() as u64 - CallHead::BYTES as u64;
        assert_eq!(rest, head.rest_bytes(), "it tells its own length");
    }
    let _ = CallPlace::parse(bytes);
}

/// Bytes as a device image.
pub fn device_image(bytes: &[u8]) {
    if let Ok(layout) = ImageLayout::parse(bytes) {
        for (start, length) in layout.writable.iter().chain(&layout.entries) {
            assert!(
                start.checked_add(*length).is_some(),
                "an end beyond all addresses"
            );
        }
    }
}

/// What can be read can be written and read again.
fn read<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<T>(bytes) {
        let text = serde_json::to_vec(&value).expect("it can be written");
        assert!(serde_json::from_slice::<T>(&text).is_ok(), "and read again");
    }
}
