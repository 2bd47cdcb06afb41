//! Plans from what snapshots have cost, and from given numbers.

use snapify_tests::{Language, Session, compile};
use std::process::Stdio;

#[test]
fn snapshots_tell_what_they_cost() {
    let session = Session::new();
    let mut command = session.command(compile("fill.c", Language::C));
    let mut running = session.start(command.arg("16").stdin(Stdio::piped()));
    let stdin = running.take_stdin();
    running.wait_for("ready");
    let pid = running.pid().to_string();
    session.succeed(["checkpoint", &pid, "snap"]);
    session.succeed(["checkpoint", &pid, "snap", "--full"]);
    drop(stdin);
    running.finish();

    let text = session.succeed(["plan", "snap", "--json", "--plot", "plan.svg"]);
    let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let memory = plan["inputs"]["memory"].as_f64().expect("a size");
    assert!(
        (16.0 * 1048576.0..24.0 * 1048576.0).contains(&memory),
        "{text}"
    );
    for measured in ["memory", "node_rate", "collect_rate", "fixed", "stop_share"] {
        assert_eq!(plan["origins"][measured], "measured", "{text}");
    }
    let rows = plan["recommendations"].as_array().expect("rows");
    assert_eq!(rows.first().map(|row| &row["nodes"]), Some(&1.into()));
    assert_eq!(rows.last().map(|row| &row["nodes"]), Some(&100_000.into()));
    let picture = std::fs::read_to_string(session.path("plan.svg")).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));

    let table = session.succeed(["plan", "snap", "--nodes", "10,1000"]);
    assert!(table.contains("(measured)") && table.contains("(assumed)"));
    assert_eq!(table.matches(" 1:0 ").count(), 2, "{table}");
}

#[test]
fn codecs_are_tried_on_what_was_saved() {
    let session = Session::new();
    // Half chance, half text.
    let mut command = session.command(compile("scribble.c", Language::C));
    let mut running = session.start(command.arg("16").stdin(Stdio::piped()));
    let stdin = running.take_stdin();
    running.wait_for("ready");
    let pid = running.pid().to_string();
    session.succeed(["checkpoint", &pid, "snap"]);
    session.succeed(["checkpoint", &pid, "snap"]);
    drop(stdin);
    running.finish();

    // Where all nodes share a slow storage it is compressed for, and only there.
    let text = session.succeed(["plan", "snap", "--json", "--shared-rate", "10G"]);
    let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let codecs = plan["inputs"]["codecs"].as_array().expect("codecs");
    let names: Vec<&str> = codecs.iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["lz4", "zstd:1", "zstd:3", "deflate:1"], "{text}");
    for codec in codecs {
        let ratio = codec["ratio"].as_f64().expect("a ratio");
        assert!((0.45..0.60).contains(&ratio), "{text}");
        assert!(codec["rate"].as_f64() > Some(1e6), "{text}");
    }
    let rows = plan["recommendations"].as_array().expect("rows");
    assert_ne!(rows.last().expect("a row")["codec"], "none", "{text}");
    assert_eq!(plan["origins"]["codecs"], "measured", "{text}");
    let table = session.succeed(["plan", "snap"]);
    assert!(
        table.contains("lz4 (5") && table.contains("% left"),
        "{table}"
    );

    // Damage is no obstacle to what needs no pages.
    for point in ["000001", "000002"] {
        let pages = session.path("snap").join(point).join("host/pages.snap");
        std::fs::write(pages, "nothing").expect("damage it");
    }
    let finished = session.run(["plan", "snap"]);
    assert!(finished.status.success(), "{finished:?}");
    assert!(
        finished.stderr.contains("no codec was tried"),
        "{finished:?}"
    );
}

#[test]
fn given_numbers_are_enough() {
    let session = Session::new();
    let text = session.succeed([
        "plan",
        "--memory",
        "64G",
        "--dirty",
        "5%",
        "--node-rate",
        "2G",
        "--shared-rate",
        "200G",
        "--codec",
        "lz4:0.6:3G",
        "--json",
        "--nodes",
        "1,100000",
    ]);
    let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(plan["thresholds"][0]["saturation_uncompressed"], 100.0);
    assert_eq!(plan["recommendations"][1]["codec"], "lz4");
    assert!(plan["recommendations"][0]["incrementals"].as_u64() > Some(0));
}

#[test]
fn senseless_numbers_are_refused() {
    let session = Session::new();
    for (arguments, code) in [
        (&["plan"][..], 1),
        (&["plan", "nowhere"], 1),
        (&["plan", "--memory", "0"], 1),
        (&["plan", "--memory", "1G", "--dirty", "2"], 2),
        (&["plan", "--memory", "1G", "--nodes", "0"], 2),
        (&["plan", "--memory", "1G", "--node-mtbf", "often"], 2),
        (&["plan", "--memory", "1G", "--codec", "lz4"], 2),
    ] {
        let finished = session.run(arguments);
        assert_eq!(finished.code(), Some(code), "{arguments:?}: {finished:?}");
        assert!(finished.stdout.is_empty() && !finished.stderr.is_empty());
    }
}
