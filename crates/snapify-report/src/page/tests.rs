use super::*;
use crate::timeline::{Operation, Recorder};
use roxmltree::{Document, Node, ParsingOptions};

fn offload(card: u32) -> Actor {
    let id = format!("{card:016x}");
    Actor::OffloadProcess { card, id }
}

fn checkpoint() -> Timeline {
    let recorder = Recorder::begin(Operation::Checkpoint);
    let at = |ms: f64| recorder.began().plus((ms * 1e6) as u64);
    let note =
        |actor, name: &str, from, to, bytes| recorder.note(actor, name, at(from), at(to), bytes);
    note(Actor::Coordinator, "pause", 0.0, 0.75, None);
    note(Actor::Host, "drain commands", 0.1, 0.3, None);
    note(offload(0), "close the gate", 0.3, 0.5, None);
    note(offload(1), "close the gate", 0.5, 0.7, None);
    note(Actor::Coordinator, "capture", 0.75, 900.0, None);
    note(
        Actor::Card { card: 0 },
        "save process",
        1.0,
        200.0,
        Some(100 << 20),
    );
    note(
        Actor::Card { card: 0 },
        "save local store",
        200.0,
        890.0,
        Some(1 << 30),
    );
    note(offload(0), "stands still", 1.0, 890.0, None);
    note(Actor::Host, "describe", 1.0, 40.0, None);
    note(Actor::Host, "save pages", 30.0, 400.0, Some(300 << 20));
    note(Actor::Coordinator, "commit", 900.0, 1500.0, None);
    recorder.point(1);
    let mut timeline = recorder.finish();
    timeline.took_ns = 1_500_000_000;
    timeline
}

fn draw(timelines: &[Timeline]) -> String {
    let points = [PointSize {
        number: 1,
        created_unix_ms: 1_700_000_000_000,
        members: vec![MemberSize {
            name: "host".into(),
            process_bytes: 12_345,
            store_bytes: 678,
        }],
    }];
    let unreadable = [Unreadable {
        path: "/x/reports/<1>.json".into(),
        why: "it's \"no\" report & \u{1}".into(),
    }];
    page(&Page {
        dir: "/scratch/<sim> & co",
        program: "./a.out <script>alert('1')</script> \u{0}",
        timelines,
        points: &points,
        unreadable: &unreadable,
    })
}

fn parse(text: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(text, options).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn with_class<'a>(root: Node<'a, 'a>, class: &str) -> Vec<Node<'a, 'a>> {
    root.descendants()
        .filter(|node| {
            let classes = node.attribute("class").unwrap_or_default();
            classes.split(' ').any(|word| word == class)
        })
        .collect()
}

#[test]
fn the_page_is_well_formed_whatever_the_names_are() {
    let text = draw(&[checkpoint()]);
    let document = parse(&text);
    let scripts = document
        .descendants()
        .filter(|node| node.has_tag_name("script") || node.has_tag_name("link"));
    assert_eq!(scripts.count(), 0, "self-contained, without scripts");
    assert!(!text.contains("http"), "nothing is fetched from elsewhere");
    parse(&draw(&[]));
}

#[test]
fn bars_have_the_numbers_of_the_timeline() {
    let timeline = checkpoint();
    let text = draw(std::slice::from_ref(&timeline));
    let document = parse(&text);
    let drawing = with_class(document.root(), "timeline");
    assert_eq!(drawing.len(), 1);
    let number = |node: &Node<'_, '_>, name| node.attribute(name).unwrap().parse::<u64>().unwrap();
    let mut drawn: Vec<_> = with_class(drawing[0], "bar")
        .iter()
        .map(|bar| (number(bar, "data-start-ns"), number(bar, "data-end-ns")))
        .collect();
    let mut told: Vec<_> = timeline
        .phases
        .iter()
        .map(|p| (p.start_ns, p.end_ns))
        .collect();
    drawn.sort_unstable();
    told.sort_unstable();
    assert_eq!(drawn, told, "to the last digit");
    let lanes = with_class(drawing[0], "who");
    let lanes: Vec<_> = lanes.iter().filter_map(Node::text).collect();
    assert_eq!(
        lanes,
        [
            "coordinator",
            "host process",
            "daemon of card 0",
            "offload process 0000000000000000 on card 0",
            "offload process 0000000000000001 on card 1",
        ]
    );
    // What the host process did at the same time is in two rows.
    let host = with_class(drawing[0], "lane")[1];
    assert_eq!(with_class(host, "track").len(), 2);
    assert_eq!(with_class(document.root(), "enlarged").len(), 1);
}

#[test]
fn times_and_sizes_stand_side_by_side() {
    let text = draw(&[checkpoint()]);
    let document = parse(&text);
    let shares = with_class(document.root(), "share");
    let told: Vec<_> = shares
        .iter()
        .map(|share| {
            let label = share.first_element_child().and_then(|node| node.text());
            let bar = with_class(*share, "bar")[0];
            let number = bar.attribute("data-ns").or(bar.attribute("data-bytes"));
            (label.unwrap(), number.unwrap().parse::<u64>().unwrap())
        })
        .collect();
    let expected = [
        ("pause", 750_000),
        ("capture", 899_250_000),
        ("commit", 600_000_000),
        ("host process, meanwhile", 399_000_000),
        ("cards, meanwhile", 889_000_000),
        ("in all", 1_500_000_000),
        ("host", 12_345),
        ("host, local store", 678),
    ];
    assert_eq!(told, expected);
}

#[test]
fn an_operation_without_length_is_drawn_too() {
    let recorder = Recorder::begin(Operation::SwapIn);
    recorder.note(Actor::Host, "x", recorder.began(), recorder.began(), None);
    let mut timeline = recorder.finish();
    timeline.took_ns = 0;
    let text = draw(&[timeline]);
    parse(&text);
    assert!(!text.contains("NaN") && !text.contains("inf%"));
}
