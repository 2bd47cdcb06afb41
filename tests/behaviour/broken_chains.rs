//! A chain with a link that is damaged or missing: what builds on it is refused before any process is made, the link is named, and
//! so is the newest point that is whole, which can be restarted.

use snapify_tests::{Language, Session, compile};
use std::io::Write;
use std::process::Stdio;

#[test]
fn what_builds_on_a_broken_link_is_refused_and_the_newest_whole_point_offered() {
    let session = Session::new();
    let mut command = session.command(compile("fill.c", Language::C));
    command.arg("4").stdin(Stdio::piped());
    let mut program = session.start(&mut command);
    let stdin = program.take_stdin();
    program.wait_for("ready");
    let pid = program.pid().to_string();
    // Two chains of three: 1, 2, 3 and 4, 5, 6.
    for _ in 0..6 {
        session.succeed(["checkpoint", &pid, "snap", "--full-every", "3"]);
    }
    drop(stdin);
    assert!(program.finish().status.success());

    let link = session.path("snap/000004");
    let pages = link.join("host/pages.snap");
    let whole = std::fs::read(&pages).expect("read a page file");
    let aside = session.path("aside");
    let damages: [(&str, &dyn Fn()); 3] = [
        ("cut", &|| {
            std::fs::write(&pages, &whole[..whole.len() / 2]).expect("cut it");
        }),
        ("gone", &|| std::fs::remove_file(&pages).expect("remove it")),
        ("missing", &|| {
            std::fs::rename(&link, &aside).expect("move the point away");
        }),
    ];
    for (what, damage) in damages {
        damage();
        for args in [&["restart", "snap"][..], &["restart", "snap", "--at", "5"]] {
            let refused = session.run(args);
            assert_eq!(refused.code(), Some(1), "{what}: {refused:?}");
            for word in ["4", "restart --at 3"] {
                assert!(refused.stderr.contains(word), "{what}: {refused:?}");
            }
        }
        let verified = session.run(["verify", "snap"]);
        assert_eq!(verified.code(), Some(1), "{what}: {verified:?}");
        session.expect_no_process();
        if what == "missing" {
            std::fs::rename(&aside, &link).expect("bring the point back");
        } else {
            std::fs::write(&pages, &whole).expect("mend it");
        }
    }

    // A wrong bit shows when the pages are read: that, too, is before the program runs, and the file is named.
    let mut bytes = whole.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&pages, &bytes).expect("damage it");
    let refused = session.run(["restart", "snap"]);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("000004"), "{refused:?}");
    let verified = session.run(["verify", "snap"]);
    for words in ["snap/000004/host/pages.snap", "restart --at 3"] {
        assert!(verified.stderr.contains(words), "{verified:?}");
    }

    let mut restart = session.snapify(["restart", "snap", "--at", "3"]);
    restart.stdin(Stdio::piped());
    let mut again = session.start(&mut restart);
    let mut stdin = again.take_stdin();
    stdin.write_all(b"check\n").expect("ask the program");
    assert_eq!(again.wait_for("e"), "whole");
    drop(stdin);
    assert!(again.finish().status.success());
    session.expect_no_process();
}
