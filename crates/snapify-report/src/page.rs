//! One page for a snapshot directory: timelines as in paper 1, figures 5 to 7, times and sizes as in figure 10.
//!
//! Bars are positioned in per cent, so that they fit any screen, and text stays text. Each has its numbers in attributes
//! (`data-start-ns` and `data-end-ns`, `data-ns`, `data-bytes`), unrounded.

use crate::files::Unreadable;
use crate::html::Html;
use crate::timeline::{Actor, Phase, Timeline};
use crate::units::{bytes, date, rate, time};
use std::collections::BTreeMap;

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// The snapshot directory.
    pub dir: &'a str,
    /// The program's command line.
    pub program: &'a str,
    /// What was done, oldest first.
    pub timelines: &'a [Timeline],
    /// The snapshots, oldest first.
    pub points: &'a [PointSize],
    /// Files that should have been timelines.
    pub unreadable: &'a [Unreadable],
}

/// A snapshot's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PointSize {
    /// Its number.
    pub number: u32,
    /// When it was taken, in milliseconds since 1970; 0 if unknown.
    pub created_unix_ms: u64,
    /// Its members.
    pub members: Vec<MemberSize>,
}

/// A member's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberSize {
    /// Its name: `host`, `offload-<id>`.
    pub name: String,
    /// Bytes of the files of the process itself.
    pub process_bytes: u64,
    /// Bytes of its local store's file.
    pub store_bytes: u64,
}

/// Draws the page.
#[must_use]
pub fn page(page: &Page<'_>) -> String {
    let title = format!("Snapify: {}", page.program);
    Html::document(&title, include_str!("style.css"), |html| {
        html.line("h1", &[], page.program);
        html.line(
            "p",
            &[("class", &"soft")],
            format_args!("Snapshots in {}", page.dir),
        );
        for unreadable in page.unreadable {
            let file = unreadable.path.display();
            let text = format_args!("{file} is left out: {}", unreadable.why);
            html.line("p", &[("class", &"warning")], text);
        }
        if page.timelines.is_empty() {
            html.line("p", &[], "No operation was recorded.");
        } else {
            breakdowns(html, page.timelines);
        }
        sizes(html, page.points);
        // The newest is what one looks for first.
        for timeline in page.timelines.iter().rev() {
            operation(html, timeline);
        }
    })
}

fn capitalized(name: &str) -> String {
    let mut chars = name.chars();
    chars
        .next()
        .map_or_else(String::new, |c| c.to_uppercase().chain(chars).collect())
}

fn heading(timeline: &Timeline) -> String {
    let point = timeline
        .point
        .map_or_else(String::new, |point| format!(", snapshot {point}"));
    let name = capitalized(timeline.operation.name());
    format!("{name}{point}, {}", date(timeline.started_unix_ms))
}

// ------------------------------------------------------------------ times and sizes side by side

/// Times of all operations of a kind, side by side.
fn breakdowns(html: &mut Html, timelines: &[Timeline]) {
    let mut kinds: Vec<&'static str> = Vec::new();
    for timeline in timelines {
        if !kinds.contains(&timeline.operation.name()) {
            kinds.push(timeline.operation.name());
        }
    }
    for kind in kinds {
        let of_kind = || timelines.iter().filter(|t| t.operation.name() == kind);
        let longest = of_kind().map(|t| t.seconds()).fold(0.0, f64::max);
        html.line("h2", &[], format_args!("Time: {kind}"));
        for timeline in of_kind() {
            html.line("h3", &[], heading(timeline));
            for (label, class, nanos) in breakdown(timeline) {
                let seconds = nanos as f64 / 1e9;
                share(
                    html,
                    &label,
                    class,
                    seconds / longest,
                    &time(seconds),
                    &[("data-ns", &nanos)],
                );
            }
        }
    }
}

/// What took how long: the coordinator's phases, the host process, the cards side by side, all.
fn breakdown(timeline: &Timeline) -> Vec<(String, &'static str, u64)> {
    let mut parts: Vec<(String, &'static str, u64)> = Vec::new();
    for phase in phases_of(timeline, |actor| *actor == Actor::Coordinator) {
        parts.push((
            phase.name.clone(),
            class(phase),
            phase.end_ns - phase.start_ns,
        ));
    }
    let busy = |wanted: &dyn Fn(&Actor) -> bool| {
        let of_memory = |phase: &&Phase| matches!(class(phase), "describe" | "memory" | "store");
        let mut found = phases_of(timeline, wanted).filter(of_memory).peekable();
        found.peek()?;
        let (start, end) = found.fold((u64::MAX, 0), |(start, end), phase| {
            (phase.start_ns.min(start), phase.end_ns.max(end))
        });
        Some(end - start)
    };
    if let Some(nanos) = busy(&|actor| *actor == Actor::Host) {
        parts.push(("host process, meanwhile".into(), "memory", nanos));
    }
    if let Some(nanos) = busy(&|actor| matches!(actor, Actor::Card { .. })) {
        parts.push(("cards, meanwhile".into(), "store", nanos));
    }
    parts.push(("in all".into(), "other", timeline.took_ns));
    parts
}

fn phases_of<'a>(
    timeline: &'a Timeline,
    wanted: impl Fn(&Actor) -> bool + 'a,
) -> impl Iterator<Item = &'a Phase> + 'a {
    timeline
        .phases
        .iter()
        .filter(move |phase| wanted(&phase.actor))
}

fn sizes(html: &mut Html, points: &[PointSize]) {
    let largest = points
        .iter()
        .flat_map(|point| &point.members)
        .map(|member| member.process_bytes.max(member.store_bytes))
        .max();
    let Some(largest) = largest else {
        return;
    };
    html.line("h2", &[], "Size of snapshots");
    for point in points {
        let when = match point.created_unix_ms {
            0 => String::new(),
            at => format!(", {}", date(at)),
        };
        html.line("h3", &[], format_args!("Snapshot {}{when}", point.number));
        for member in &point.members {
            let mut size = |label: &str, class, size: u64| {
                let part = size as f64 / largest.max(1) as f64;
                share(
                    html,
                    label,
                    class,
                    part,
                    &bytes(size),
                    &[("data-bytes", &size)],
                );
            };
            size(&member.name, "memory", member.process_bytes);
            if member.store_bytes > 0 {
                let label = format!("{}, local store", member.name);
                size(&label, "store", member.store_bytes);
            }
        }
    }
}

/// A line with a bar that takes `part` of its room.
fn share(
    html: &mut Html,
    label: &str,
    class: &str,
    part: f64,
    number: &str,
    data: crate::html::Attributes<'_>,
) {
    html.element("div", &[("class", &"share")], |html| {
        html.line("span", &[], label);
        html.element("div", &[("class", &"track")], |html| {
            let width = per_cent(part);
            let class = format!("bar {class}");
            let style = format!("left:0;width:{width}");
            let mut attributes: Vec<(&str, &dyn std::fmt::Display)> =
                vec![("class", &class), ("style", &style)];
            attributes.extend_from_slice(data);
            html.line("div", &attributes, "");
        });
        html.line("span", &[("class", &"number")], number);
    });
}

fn per_cent(part: f64) -> String {
    let part = if part.is_finite() { part } else { 0.0 };
    format!("{:.3}%", part.clamp(0.0, 1.0) * 100.0)
}

// ------------------------------------------------------------------ one operation

fn operation(html: &mut Html, timeline: &Timeline) {
    html.line("h2", &[], heading(timeline));
    let text = format!(
        "Process {}, {} in all.",
        timeline.pid,
        time(timeline.seconds())
    );
    html.line("p", &[("class", &"soft")], text);
    lanes(html, timeline, "timeline", 0.0, timeline.seconds());
    // Draining takes a thousandth of the whole: it gets a drawing of its own.
    let pause = phases_of(timeline, |actor| *actor == Actor::Coordinator)
        .find(|phase| phase.name == "pause");
    if let Some(pause) = pause
        && pause.end_ns > pause.start_ns
        && pause.seconds() < timeline.seconds() / 4.0
    {
        html.line("h3", &[], "The pause, enlarged");
        lanes(html, timeline, "enlarged", pause.start(), pause.end());
    }
    table(html, timeline);
}

/// Phases between two moments, a lane for each who takes part.
fn lanes(html: &mut Html, timeline: &Timeline, class_of_all: &str, from: f64, to: f64) {
    let span = to - from;
    let mut lanes: BTreeMap<_, Vec<(usize, &Phase)>> = BTreeMap::new();
    for (number, phase) in (1..).zip(&timeline.phases) {
        if phase.end() >= from && phase.start() < to {
            lanes
                .entry(order(&phase.actor))
                .or_default()
                .push((number, phase));
        }
    }
    html.element("div", &[("class", &class_of_all)], |html| {
        for phases in lanes.values() {
            html.element("div", &[("class", &"lane")], |html| {
                html.line("div", &[("class", &"who")], who(&phases[0].1.actor));
                for row in rows(phases) {
                    html.element("div", &[("class", &"track")], |html| {
                        for (number, phase) in row {
                            bar(html, number, phase, from, span);
                        }
                    });
                }
            });
        }
        html.element("div", &[("class", &"axis")], |html| {
            for quarter in 0..=4 {
                html.line("span", &[], time(from + span * f64::from(quarter) / 4.0));
            }
        });
    });
}

fn bar(html: &mut Html, number: usize, phase: &Phase, from: f64, span: f64) {
    let begin = (phase.start() - from).max(0.0) / span;
    let end = ((phase.end() - from) / span).min(1.0);
    let class = format!("bar {}", class(phase));
    let style = format!("left:{};width:{}", per_cent(begin), per_cent(end - begin));
    let title = format!("{}: {}", phase.name, time(phase.seconds()));
    let attributes: [(&str, &dyn std::fmt::Display); 5] = [
        ("class", &class),
        ("style", &style),
        ("title", &title),
        ("data-start-ns", &phase.start_ns),
        ("data-end-ns", &phase.end_ns),
    ];
    let label = if end - begin > 0.04 {
        number.to_string()
    } else {
        String::new()
    };
    html.line("div", &attributes, label);
}

/// What happened at the same time goes into rows of its own.
fn rows<'a>(phases: &[(usize, &'a Phase)]) -> Vec<Vec<(usize, &'a Phase)>> {
    let mut rows: Vec<Vec<(usize, &Phase)>> = Vec::new();
    for &(number, phase) in phases {
        let free = rows.iter_mut().find(|row| {
            row.last()
                .is_some_and(|(_, last)| last.end_ns <= phase.start_ns)
        });
        match free {
            Some(row) => row.push((number, phase)),
            None => rows.push(vec![(number, phase)]),
        }
    }
    rows
}

fn table(html: &mut Html, timeline: &Timeline) {
    html.element("table", &[], |html| {
        html.element("thead", &[], |html| {
            html.element("tr", &[], |html| {
                for name in ["", "who", "phase"] {
                    html.line("th", &[], name);
                }
                html.line("th", &[("class", &"number wide")], "begins");
                for name in ["takes", "bytes"] {
                    html.line("th", &[("class", &"number")], name);
                }
                html.line("th", &[("class", &"number wide")], "rate");
            });
        });
        html.element("tbody", &[], |html| {
            for (number, phase) in (1..).zip(&timeline.phases) {
                row(html, number, phase);
            }
        });
    });
}

fn row(html: &mut Html, number: usize, phase: &Phase) {
    html.element("tr", &[], |html| {
        html.element("td", &[], |html| {
            let class = format!("key {}", class(phase));
            html.line("span", &[("class", &class)], number);
        });
        html.line("td", &[], who(&phase.actor));
        html.line("td", &[], &phase.name);
        html.line("td", &[("class", &"number wide")], time(phase.start()));
        let seconds = phase.seconds();
        html.line("td", &[("class", &"number")], time(seconds));
        let size = phase.bytes.map_or_else(String::new, bytes);
        html.line("td", &[("class", &"number")], size);
        let speed = phase.bytes.and_then(|bytes| rate(bytes, seconds));
        html.line(
            "td",
            &[("class", &"number wide")],
            speed.unwrap_or_default(),
        );
    });
}

/// Order of lanes: coordinator, host process, then each card with its offload processes.
fn order(actor: &Actor) -> (u32, u8, String) {
    match actor {
        Actor::Coordinator => (0, 0, String::new()),
        Actor::Host => (0, 1, String::new()),
        Actor::Card { card } => (card.saturating_add(1), 0, String::new()),
        Actor::OffloadProcess { card, id } => (card.saturating_add(1), 1, id.clone()),
    }
}

fn who(actor: &Actor) -> String {
    match actor {
        Actor::Coordinator => "coordinator".into(),
        Actor::Host => "host process".into(),
        Actor::Card { card } => format!("daemon of card {card}"),
        Actor::OffloadProcess { card, id } => format!("offload process {id} on card {card}"),
    }
}

/// Which colour a phase has.
fn class(phase: &Phase) -> &'static str {
    let has = |words: &[&str]| words.iter().any(|word| phase.name.contains(word));
    match () {
        () if has(&["stands still"]) => "still",
        () if has(&["local store"]) => "store",
        () if has(&["save", "restore", "capture", "copy"]) => "memory",
        () if has(&["pause", "drain", "gate", "hold", "resume", "release"]) => "drain",
        () if has(&["commit"]) => "commit",
        () if has(&["freeze", "describe", "check", "start"]) => "describe",
        () => "other",
    }
}

#[cfg(test)]
mod tests;
