//! Connections to somebody who is not saved: refused by address, or closed if that is asked for.

use snapify_tests::{Session, User};
use std::io::{Read, Write};
use std::net::TcpListener;

/// Connects to a port, says that it works, and tells what comes over the connection, to its end.
const CLIENT: &str = "import socket, sys
peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
peer.sendall(b'hello')
print('connected', flush=True)
heard = b''
while part := peer.recv(100):
    heard += part
try:
    for _ in range(9):
        peer.sendall(b'more')
    end = 'open'
except (BrokenPipeError, ConnectionResetError):
    end = 'closed'
print('heard', heard.decode(), end, flush=True)
";

fn is_refused_or_closed(user: User) {
    let session = Session::of(user);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    let mut command = session.command("/usr/bin/python3");
    command.args(["-c", CLIENT, &address.port().to_string()]);
    let mut running = session.start(&mut command);
    let (mut peer, _) = listener.accept().expect("accept");
    running.wait_for("connected");
    let pid = running.pid().to_string();

    let refused = session.run(["checkpoint", &pid, "refused"]);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    let foretold = session.run(["check", &pid]);
    for said in [
        &refused.stderr,
        &format!("{}{}", foretold.stdout, foretold.stderr),
    ] {
        assert!(said.contains(&address.to_string()), "{said}");
    }
    // The connection is none the worse for it.
    let mut hello = [0; 5];
    peer.read_exact(&mut hello).expect("read what was sent");
    assert_eq!(&hello, b"hello");
    peer.write_all(b"unread ").expect("write");

    session.succeed(["checkpoint", &pid, "snap", "--tcp=close", "--stop"]);
    assert_eq!(running.finish().killed_by(), Some(9));
    let restarted = session.run(["restart", "snap"]);
    assert!(restarted.status.success(), "{restarted:?}");
    // Whether it had read what the peer wrote by then or not, it hears of it once, and then of the end.
    assert_eq!(
        restarted.stdout.lines().last(),
        Some("heard unread  closed"),
        "{restarted:?}"
    );
    session.expect_no_process();
}

#[test]
fn of_an_ordinary_user() {
    is_refused_or_closed(User::Ordinary);
}

#[test]
fn of_whoever_runs_the_tests() {
    is_refused_or_closed(User::Myself);
}
