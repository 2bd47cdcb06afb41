use super::*;
use std::io::Read;

#[test]
fn messages_arrive_whole_and_in_order_with_their_descriptors() {
    let (a, b) = Channel::pair().unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    a.send(&serde_json::json!({"n": 1}), &[write.as_fd()])
        .unwrap();
    a.send(&serde_json::json!({"n": 2}), &[]).unwrap();
    drop(write);
    let (first, fds): (serde_json::Value, _) = b.recv().unwrap();
    assert_eq!(first["n"], 1);
    assert_eq!(fds.len(), 1);
    File::from(fds.into_iter().next().unwrap())
        .write_all(b"x")
        .unwrap();
    let mut got = String::new();
    File::from(read).read_to_string(&mut got).unwrap();
    assert_eq!(got, "x");
    let (second, fds): (serde_json::Value, _) = b.recv().unwrap();
    assert_eq!((second["n"].as_i64(), fds.len()), (Some(2), 0));
}

#[test]
fn a_large_message_and_one_that_is_no_object_arrive() {
    let (a, b) = Channel::pair().unwrap();
    let long = "é".repeat(3 << 20);
    let (read, _write) = rustix::pipe::pipe().unwrap();
    a.send(&serde_json::json!({ "env": long }), &[read.as_fd()])
        .unwrap();
    a.send(&"text", &[]).unwrap();
    let (message, fds): (serde_json::Value, _) = b.recv().unwrap();
    assert_eq!(message["env"].as_str().unwrap(), long);
    assert_eq!(fds.len(), 1);
    assert_eq!(b.recv::<String>().unwrap().0, "text");
    let huge = "x".repeat(17 << 20);
    assert!(matches!(
        a.send(&huge, &[]),
        Err(ChannelError::TooLarge { .. })
    ));
}

#[test]
fn a_dead_peer_is_an_error_and_no_signal() {
    let (a, b) = Channel::pair().unwrap();
    b.send(&"last words", &[]).unwrap();
    drop(b);
    assert_eq!(a.recv::<String>().unwrap().0, "last words");
    assert!(matches!(a.recv::<String>(), Err(ChannelError::Closed)));
    assert!(matches!(a.send(&"hello?", &[]), Err(ChannelError::Closed)));
}

#[test]
fn nonsense_is_refused() {
    let (a, b) = Channel::pair().unwrap();
    for packet in [&b"{\"n\":"[..], b"F", b"\xff\xff", b"FF"] {
        rustix::net::send(a.as_fd(), packet, SendFlags::empty()).unwrap();
        assert!(matches!(
            b.recv::<serde_json::Value>(),
            Err(ChannelError::Malformed(_))
        ));
    }
    // A body in a file that its sender could still change.
    let file = memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
    a.send_packet(&[BODY_IN_FILE], &[file.as_fd()], SendFlags::empty())
        .unwrap();
    assert!(matches!(
        b.recv::<serde_json::Value>(),
        Err(ChannelError::Malformed(_))
    ));
}

#[test]
fn a_peer_that_does_not_read_does_not_block_send_now() {
    let (a, _b) = Channel::pair().unwrap();
    let full = (0..1_000_000).find_map(|_| a.send_now(&"x", &[]).err());
    assert!(matches!(full, Some(ChannelError::Full)));
}

#[test]
fn connecting_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    assert!(matches!(
        Channel::connect(&path),
        Err(ChannelError::Path { .. })
    ));
    let listener = Listener::bind(&path).unwrap();
    assert!(Listener::bind(&path).is_err());
    let client = Channel::connect(&path).unwrap();
    let server = listener.accept().unwrap();
    client.send(&1, &[]).unwrap();
    assert_eq!(server.recv::<i32>().unwrap().0, 1);
    assert_eq!(
        server.peer_credentials().unwrap().pid,
        std::process::id() as i32
    );
    drop(listener);
    assert!(!path.exists());
}
