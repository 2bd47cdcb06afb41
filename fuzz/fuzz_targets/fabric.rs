//! Packets of a channel, and records of a ring in memory that the other side can write to at any time.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rustix::net::{SendFlags, send};
use snapify_fabric::ring::{MIN_BYTES, RingClient, RingServer, Spin};
use snapify_fabric::{Channel, Mapping, SharedFile};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

const REQUESTS: u64 = 6;
/// Where records begin.
const RECORDS: u64 = 4096;

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    if kind & 1 == 0 {
        packet(data);
    } else {
        ring(data);
    }
});

fn packet(data: &[u8]) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let pair = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let (here, there): (OwnedFd, OwnedFd) = pair.expect("sockets");
    if send(&here, data, SendFlags::NOSIGNAL).is_ok() {
        drop(here);
        let _ = Channel::from_fd(there).recv::<serde_json::Value>();
    }
}

fn ring(data: &[u8]) {
    let file = SharedFile::create_private(MIN_BYTES).expect("a window");
    let window: Arc<Mapping> = Arc::new(file.map(None).expect("a mapping"));
    let spin = Spin {
        busy: Duration::ZERO,
        yielding: Duration::ZERO,
    };
    let client = RingClient::new(window.clone(), 0, MIN_BYTES, spin).expect("a client");
    let mut server = RingServer::new(window.clone(), 0, MIN_BYTES, spin).expect("a server");
    for n in 0..REQUESTS {
        let _ = client.submit(1, n, &[7; 40], 16, "request");
    }
    // The client has written other things than it should.
    let data = &data[..data.len().min((MIN_BYTES - RECORDS) as usize)];
    window.write(RECORDS, data).expect("in bounds");
    for _ in 0..REQUESTS {
        let Ok(request) = server.receive() else { break };
        let _ = (request.kind, request.argument, request.payload.len());
        if server.complete(0, &[1; 8]).is_err() && server.complete(1, &[]).is_err() {
            break;
        }
    }
}
