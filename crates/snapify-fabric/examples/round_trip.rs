//! Times empty round trips over a command ring between two processes.
//!
//! `round_trip [pause between in microseconds]`
#![allow(unsafe_code)]

use snapify_fabric::ring::{RingClient, RingServer, Spin};
use snapify_fabric::window::SharedFile;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() {
    let pause = std::env::args()
        .nth(1)
        .map_or(0, |text| text.parse().expect("microseconds"));
    let file = SharedFile::create_in(Path::new("/dev/shm"), 1 << 20).expect("window");
    let window = Arc::new(file.map(None).expect("map"));
    let client = RingClient::new(window.clone(), 0, 128 << 10, Spin::default()).expect("ring");
    // SAFETY: single-threaded; the child only serves the ring and exits.
    if unsafe { libc::fork() } == 0 {
        let mut server = RingServer::new(window, 0, 128 << 10, Spin::default()).expect("attach");
        while server.receive().is_ok() {
            server.complete(0, &[]).expect("complete");
        }
        std::process::exit(0);
    }
    let mut times: Vec<u64> = (0..200_000 / (1 + pause))
        .map(|_| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(pause) {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            let ticket = client
                .submit(1, 0, &[0; 32], 0, "empty")
                .expect("submit")
                .expect("room");
            client.take(ticket).expect("take");
            start.elapsed().as_nanos() as u64
        })
        .collect();
    client.close();
    times.sort_unstable();
    for (name, per_mille) in [
        ("median", 500),
        ("90 %", 900),
        ("99 %", 990),
        ("99.9 %", 999),
    ] {
        println!("{name:>7} {:>8} ns", times[times.len() * per_mille / 1000]);
    }
}
