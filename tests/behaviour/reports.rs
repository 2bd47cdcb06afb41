//! Checkpoints, restarts, swaps and migrations record what they took, and `snapify report` draws it.

use roxmltree::{Document, Node, ParsingOptions};
use snapify_tests::{OffloadApp, Session, Shape, User, poll_until};

/// Bars of the first drawing of each operation, newest operation first: (start, end) in nanoseconds.
fn bars(page: &str) -> Vec<Vec<(u64, u64)>> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(page, options).expect("the page is well-formed");
    let number = |bar: &Node<'_, '_>, name| {
        let text = bar.attribute(name).expect("a bar has its numbers");
        text.parse::<u64>().expect("a number")
    };
    document
        .descendants()
        .filter(|node| node.attribute("class") == Some("timeline"))
        .map(|drawing| {
            let mut bars: Vec<_> = drawing
                .descendants()
                .filter(|node| node.has_attribute("data-start-ns"))
                .map(|bar| (number(&bar, "data-start-ns"), number(&bar, "data-end-ns")))
                .collect();
            bars.sort_unstable();
            bars
        })
        .collect()
}

fn json(session: &Session, args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&session.succeed(args)).expect("JSON")
}

/// The phases of a timeline: who, what, from when, until when.
fn phases(timeline: &serde_json::Value) -> Vec<(String, String, u64, u64)> {
    let phases = timeline["phases"].as_array().expect("phases");
    let told = phases.iter().map(|phase| {
        let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
        (
            text(&phase["actor"]["kind"]),
            text(&phase["name"]),
            phase["start_ns"].as_u64().expect("a number"),
            phase["end_ns"].as_u64().expect("a number"),
        )
    });
    told.collect()
}

fn recorded_and_drawn(user: User) {
    let session = Session::of(user);
    let mut run = session.start(&mut session.offload(2, "kmeans"));
    run.wait_for("iteration ");
    let host = session.host_of(&mut run).expect("it runs").to_string();
    let first = json(&session, &["checkpoint", &host, "snap", "--json"]);
    json(&session, &["checkpoint", &host, "snap", "--stop", "--json"]);
    drop(run.finish());
    let restarted = session.start(&mut session.snapify(["restart", "snap"]));
    // It is recorded when the program runs already.
    poll_until("the restart is recorded", || {
        let told = json(&session, &["report", "snap", "--json"]);
        told["timelines"].as_array().map(Vec::len) == Some(3)
    });
    drop(restarted);

    let told = json(&session, &["report", "snap", "--json", "-o", "page.html"]);
    let timelines = told["timelines"].as_array().expect("timelines");
    let operations: Vec<_> = timelines
        .iter()
        .map(|t| (&t["operation"], &t["point"]))
        .collect();
    assert_eq!(
        operations,
        [
            (&"checkpoint".into(), &1.into()),
            (&"checkpoint".into(), &2.into()),
            (&"restart".into(), &2.into()),
        ]
    );
    let expected: [&[(&str, &str)]; 2] = [
        &[
            ("coordinator", "pause"),
            ("coordinator", "capture"),
            ("coordinator", "resume"),
            ("coordinator", "commit"),
            ("host", "drain commands"),
            ("host", "freeze"),
            ("host", "save pages"),
            ("host", "stands still"),
            ("card", "save process"),
            ("card", "save local store"),
            ("offload-process", "hold results back"),
            ("offload-process", "stands still"),
        ],
        &[
            ("coordinator", "check"),
            ("coordinator", "start cards"),
            ("coordinator", "restore offload processes"),
            ("coordinator", "restore host process"),
            ("coordinator", "release"),
            ("card", "restore process"),
            ("card", "fill local store"),
        ],
    ];
    for (timeline, expected) in [(&timelines[0], expected[0]), (&timelines[2], expected[1])] {
        let took = timeline["took_ns"].as_u64().expect("a number");
        let phases = phases(timeline);
        for (who, what) in expected {
            let times = phases
                .iter()
                .filter(|(w, n, _, _)| w == who && n == what)
                .count();
            // One for each card, where there is one for each card.
            let wanted = if ["card", "offload-process"].contains(who) || *what == "drain commands" {
                2
            } else {
                1
            };
            assert_eq!(times, wanted, "{who}: {what} in {phases:?}");
        }
        for (who, what, start, end) in &phases {
            assert!(
                start <= end && *end <= took,
                "{who}: {what} from {start} to {end}"
            );
        }
        // What others do for a phase of the coordinator they do while it lasts.
        let within = |inner: (&str, &str), outer: &str| {
            let all = phases.iter().filter(|p| p.0 == inner.0 && p.1 == inner.1);
            for (_, what, start, end) in all {
                let (_, _, from, to) = phases.iter().find(|p| p.1 == outer).expect(outer);
                assert!(from <= start && end <= to, "{what} outside of {outer}");
            }
        };
        within(("offload-process", "hold results back"), "pause");
        within(("card", "save local store"), "capture");
        within(("card", "fill local store"), "restore offload processes");
    }
    // The same pause as the checkpoint's own report tells, which counts from the request on.
    let pause = phases(&timelines[0])
        .into_iter()
        .find(|p| p.1 == "pause")
        .expect("a pause");
    let told = first["pause_seconds"].as_f64().expect("a number");
    assert!(pause.3 as f64 / 1e9 <= told + 1e-3);

    let page = std::fs::read_to_string(session.path("page.html")).expect("read the page");
    let drawn = bars(&page);
    let told: Vec<Vec<(u64, u64)>> = timelines
        .iter()
        .rev()
        .map(|timeline| {
            let mut bars: Vec<_> = phases(timeline).iter().map(|p| (p.2, p.3)).collect();
            bars.sort_unstable();
            bars
        })
        .collect();
    assert_eq!(drawn, told, "the page shows the numbers of the JSON");

    // Readers of snapshots pass the reports over.
    session.succeed(["verify", "snap"]);
    session.expect_no_process();
}

#[test]
fn operations_are_recorded_and_drawn() {
    recorded_and_drawn(User::Ordinary);
}

#[test]
fn operations_are_recorded_and_drawn_as_root() {
    recorded_and_drawn(User::Myself);
}

/// Checks that a timeline holds each of these phases once and in order, none of them outside of the operation.
fn expect_phases(timeline: &serde_json::Value, expected: &[(&str, &str)]) {
    let took = timeline["took_ns"].as_u64().expect("a number");
    let phases = phases(timeline);
    for (who, what, start, end) in &phases {
        assert!(
            start <= end && *end <= took,
            "{who}: {what} from {start} to {end}"
        );
    }
    let mut last = 0;
    for (who, what) in expected {
        let found: Vec<_> = phases
            .iter()
            .filter(|(w, n, ..)| w == who && n == what)
            .collect();
        let [(.., start, _)] = found[..] else {
            panic!("{who}: {what} in {phases:?}")
        };
        if *who == "coordinator" {
            assert!(*start >= last, "{what} comes too early in {phases:?}");
            last = *start;
        }
    }
}

#[test]
fn swaps_and_migrations_are_recorded_and_drawn() {
    let shape = Shape::of("kmeans", "1");
    for user in [User::Ordinary, User::Myself] {
        let app = shape.start(user);
        let session = &app.session;
        app.done("swap-out", &["swap"]);
        let told = json(session, &["report", "swap", "--json", "-o", "out.html"]);
        let out = &told["timelines"][0];
        assert_eq!(out["operation"], "swap-out");
        expect_phases(
            out,
            &[
                ("coordinator", "check"),
                ("coordinator", "pause"),
                ("coordinator", "capture"),
                ("coordinator", "commit"),
                ("coordinator", "release"),
                ("host", "drain commands"),
                ("host", "release the card's memory"),
                ("card", "save process"),
                ("card", "save local store"),
                ("offload-process", "hold results back"),
                ("offload-process", "stands still"),
            ],
        );
        let back = app.done("swap-in", &["1", "--report", "kept"]);
        assert_eq!(back["timeline"]["operation"], "swap-in");
        app.done("migrate", &["0", "--report", "kept"]);
        // The image is gone, and what was recorded beside it; with the application it is kept.
        assert!(!session.path("swap").exists());
        let args = ["report", &app.host, "--json", "-o", "page.html"];
        let told = json(session, &args);
        let timelines = told["timelines"].as_array().expect("timelines");
        let operations: Vec<_> = timelines.iter().map(|told| &told["operation"]).collect();
        assert_eq!(operations, ["swap-out", "swap-in", "migrate"]);
        assert_eq!((&timelines[0], &timelines[1]), (out, &back["timeline"]));
        expect_phases(
            &timelines[1],
            &[
                ("coordinator", "check"),
                ("coordinator", "check the image"),
                ("coordinator", "restore and resume"),
                ("coordinator", "remove the image"),
                ("host", "wait for the card to restore it"),
                ("host", "take over the local store"),
                ("host", "resume"),
                ("card", "restore process"),
                ("card", "fill local store"),
            ],
        );
        expect_phases(
            &timelines[2],
            &[
                ("coordinator", "check"),
                ("coordinator", "pause"),
                ("coordinator", "capture"),
                ("coordinator", "restore"),
                ("coordinator", "resume"),
                ("coordinator", "release"),
                ("host", "drain commands"),
                ("host", "wait for the card to save it"),
                ("host", "resume"),
                ("card", "save process"),
                ("card", "restore process"),
                ("card", "fill local store"),
                ("offload-process", "hold results back"),
                ("offload-process", "stands still"),
            ],
        );
        let card_of = |timeline: &serde_json::Value, name: &str| {
            let phases = timeline["phases"].as_array().expect("phases");
            let phase = phases.iter().find(|phase| phase["name"] == name);
            phase.expect(name)["actor"]["card"].clone()
        };
        assert_eq!(card_of(&timelines[2], "save process"), 1);
        assert_eq!(card_of(&timelines[2], "fill local store"), 0);
        let page = std::fs::read_to_string(session.path("page.html")).expect("read the page");
        let told: Vec<Vec<(u64, u64)>> = timelines
            .iter()
            .rev()
            .map(|timeline| {
                let mut bars: Vec<_> = phases(timeline).iter().map(|p| (p.2, p.3)).collect();
                bars.sort_unstable();
                bars
            })
            .collect();
        assert_eq!(bars(&page), told, "the page shows the numbers of the JSON");
        let kept = json(session, &["report", "kept", "--json"]);
        assert_eq!(kept["timelines"].as_array().map(Vec::len), Some(2));
        let ended = session.run(["report", "1", "-o", "other.html"]);
        assert_eq!(ended.code(), Some(1), "{ended:?}");
        let OffloadApp { session, run, .. } = app;
        drop(run);
        session.expect_no_process();
    }
}

#[test]
fn what_cannot_be_recorded_does_no_harm() {
    let session = Session::new();
    let mut run = session.start(&mut session.offload(1, "kmeans"));
    run.wait_for("iteration ");
    let host = session.host_of(&mut run).expect("it runs").to_string();
    session.succeed(["checkpoint", &host, "snap"]);
    let reports = session.path("snap/reports");
    std::fs::remove_dir_all(&reports).expect("remove the reports");
    std::fs::write(&reports, "in the way").expect("write a file");
    session.succeed(["checkpoint", &host, "snap"]);
    session.succeed(["verify", "snap"]);
    let none = session.run(["report", "snap", "-o", "page.html"]);
    assert_eq!(none.code(), Some(1), "{none:?}");
    assert!(none.stderr.contains("snap/reports"), "{none:?}");
    std::fs::remove_file(&reports).expect("remove the file");
    session.succeed(["report", "snap", "-o", "page.html"]);
    assert!(bars(&std::fs::read_to_string(session.path("page.html")).expect("read")).is_empty());
    drop(run);
    session.expect_no_process();
}

#[test]
fn what_is_no_snapshot_directory_is_refused() {
    let session = Session::new();
    std::fs::create_dir(session.path("empty")).expect("make a directory");
    for (dir, word) in [("empty", "empty"), ("missing", "missing")] {
        let refused = session.run(["report", dir, "-o", "page.html"]);
        assert_eq!(refused.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains(word), "{refused:?}");
    }
    assert!(!session.path("page.html").exists());
}
