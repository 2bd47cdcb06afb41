use super::*;
use crate::window::SharedFile;
use std::path::Path;
use std::thread;

const BYTES: u64 = 128 * 1024;

fn window() -> Arc<Mapping> {
    let file = SharedFile::create_in(Path::new("/dev/shm"), 1 << 20).unwrap();
    Arc::new(file.map(None).unwrap())
}

fn ring() -> (Arc<RingClient>, RingServer) {
    let window = window();
    let client = RingClient::new(window.clone(), 4096, BYTES, Spin::default()).unwrap();
    let server = RingServer::new(window, 4096, BYTES, Spin::default()).unwrap();
    (Arc::new(client), server)
}

/// Answers every request with its own bytes, doubled number first, until closed.
fn echo(mut server: RingServer) -> thread::JoinHandle<u64> {
    thread::spawn(move || {
        let mut served = 0;
        loop {
            let (argument, payload) = match server.receive() {
                Ok(request) => (request.argument, request.payload.to_vec()),
                Err(RingError::Closed) => return served,
                Err(error) => panic!("{error}"),
            };
            served += 1;
            server.complete(argument as u32 * 2, &payload).unwrap();
        }
    })
}

fn submit(client: &RingClient, argument: u64, payload: &[u8]) -> Ticket {
    loop {
        if let Some(ticket) = client
            .submit(1, argument, payload, payload.len(), "echo")
            .unwrap()
        {
            return ticket;
        }
        client.wait_for_room().unwrap();
    }
}

#[test]
fn requests_of_all_sizes_come_back_in_order() {
    let (client, server) = ring();
    let server = echo(server);
    let mut seed = 1_u64;
    let mut pending = std::collections::VecDeque::new();
    for number in 0..20_000_u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let length = match seed >> 61 {
            0 => (seed >> 33) as usize % (MAX_PAYLOAD + 1),
            1..4 => (seed >> 33) as usize % 600,
            _ => 0,
        };
        let payload = vec![number as u8; length];
        pending.push_back((number, length, submit(&client, number, &payload)));
        // Some are taken at once, some late (the ring must move their answers out of the way), some never.
        while pending.len() > (seed >> 40) as usize % 100 {
            let (number, length, ticket) = pending.pop_front().unwrap();
            if number % 7 == 0 {
                client.abandon(ticket);
                continue;
            }
            let reply = client.take(ticket).unwrap();
            assert_eq!(reply.status, number as u32 * 2);
            assert_eq!(reply.payload, vec![number as u8; length]);
        }
    }
    for (_, _, ticket) in pending {
        client.take(ticket).unwrap();
    }
    client.close();
    assert_eq!(server.join().unwrap(), 20_000);
    assert!(client.submit(1, 0, &[], 0, "").is_err());
}

#[test]
fn many_threads_share_a_ring() {
    let (client, server) = ring();
    let server = echo(server);
    let threads: Vec<_> = (0..6_u64)
        .map(|thread| {
            let client = client.clone();
            thread::spawn(move || {
                for number in 0..3000 {
                    let argument = thread * 10_000 + number;
                    let ticket = submit(&client, argument, &argument.to_ne_bytes());
                    let reply = client.take(ticket).unwrap();
                    assert_eq!(reply.status, argument as u32 * 2);
                    assert_eq!(reply.payload, argument.to_ne_bytes());
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(client.is_idle());
    client.close();
    assert_eq!(server.join().unwrap(), 18_000);
}

#[test]
fn closing_wakes_those_who_wait() {
    let (client, mut server) = ring();
    let ticket = submit(&client, 1, b"never answered");
    let waiter = {
        let client = client.clone();
        thread::spawn(move || client.take(ticket))
    };
    assert_eq!(server.receive().unwrap().payload, b"never answered");
    assert_eq!(client.unfinished().as_deref(), Some("echo"));
    client.close();
    assert!(matches!(waiter.join().unwrap(), Err(RingError::Closed)));
    server.complete(0, &[]).unwrap();
    assert!(matches!(server.receive(), Err(RingError::Closed)));
}

#[test]
fn the_count_wraps() {
    assert!(reached(0, 0) && reached(ONE, 1) && !reached(ONE, 2));
    let last = SEQUENCE;
    assert!(reached(0, last) && !reached(last * ONE, 0));
    assert!(reached((last * ONE) | CLOSED | SLEEPER, last));
}

#[test]
fn nonsense_in_the_shared_memory_is_an_error() {
    let nonsense = [
        Head {
            kind: 1,
            length: 0,
            capacity: 0,
            status: 0,
            argument: 0,
        },
        Head {
            kind: 1,
            length: 100,
            capacity: 64,
            status: 0,
            argument: 0,
        },
        Head {
            kind: 1,
            length: 0,
            capacity: u32::MAX,
            status: 0,
            argument: 0,
        },
        Head {
            kind: 1,
            length: u32::MAX,
            capacity: 64,
            status: 0,
            argument: 0,
        },
        Head::wrap(),
    ];
    for head in nonsense {
        let (client, mut server) = ring();
        let ticket = submit(&client, 0, b"");
        client.shared.write_head(0, head).unwrap();
        assert!(
            matches!(server.receive(), Err(RingError::Damaged(_))),
            "{head:?}"
        );
        // The same, seen by the client as an answer.
        client
            .shared
            .write_head(0, Head { length: 33, ..head })
            .unwrap();
        client
            .shared
            .word(place::COMPLETED)
            .fetch_add(ONE, Ordering::SeqCst);
        assert!(matches!(client.take(ticket), Err(RingError::Damaged(_))));
    }
    let window = window();
    assert!(RingServer::new(window.clone(), 8, BYTES, Spin::default()).is_err());
    assert!(RingClient::new(window.clone(), 0, 4096, Spin::default()).is_err());
    assert!(RingClient::new(window, 1 << 20, BYTES, Spin::default()).is_err());
}
