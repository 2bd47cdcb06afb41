//! A plan as a picture: the time of a checkpoint (figure 4 of paper 4), the interval, and what remains for work.

use crate::pccr::{Law, Protocol};
use crate::planner::Plan;
use crate::svg::{Chart, Scale, Series, document};

/// Draws a plan for all sizes from 1 to 100 000 nodes, as an SVG document.
#[must_use]
pub fn svg(plan: &Plan) -> String {
    let nodes: Vec<u64> = sizes();
    // The inputs are those of a plan, so that they make sense.
    let Ok(fine) = crate::planner::plan(&plan.inputs, &nodes) else {
        return document("", &[]);
    };
    document(
        "Checkpoints by the number of nodes",
        &[times(plan), intervals(&fine), useful(&fine), savings(plan)],
    )
}

/// Twelve sizes in each decade.
fn sizes() -> Vec<u64> {
    let mut sizes: Vec<u64> = (0..=60)
        .map(|step| 10f64.powf(f64::from(step) / 12.0).round() as u64)
        .collect();
    sizes.dedup();
    sizes
}

fn times(plan: &Plan) -> Chart {
    let curve = |name: String, dashed, time: &dyn Fn(f64) -> f64| Series {
        name,
        dashed,
        points: sizes()
            .into_iter()
            .map(|p| (p as f64, time(p as f64)))
            .collect(),
    };
    let none = plan.inputs.scenario(1.0, None);
    let mut series = vec![curve("uncompressed".into(), false, &|p| {
        none.time(Protocol::Uncompressed, Law::Shared, p)
    })];
    for codec in plan.inputs.codecs.iter().take(2) {
        let scenario = plan.inputs.scenario(1.0, Some(codec));
        series.push(curve(format!("{}, serial", codec.name), true, &|p| {
            scenario.time(Protocol::Serial, Law::Shared, p)
        }));
        series.push(curve(format!("{}, pipelined", codec.name), false, &|p| {
            scenario.time(Protocol::Pipelined, Law::Shared, p)
        }));
    }
    Chart {
        title: "Time of a full checkpoint".into(),
        x_label: "nodes".into(),
        y_scale: Scale::Log,
        y_text: time_text,
        series,
    }
}

fn intervals(fine: &Plan) -> Chart {
    let rows = &fine.recommendations;
    Chart {
        title: "Recommended time between checkpoints".into(),
        x_label: "nodes".into(),
        y_scale: Scale::Log,
        y_text: time_text,
        series: vec![
            Series {
                name: "as recommended".into(),
                dashed: false,
                points: rows
                    .iter()
                    .map(|row| (row.nodes as f64, row.interval))
                    .collect(),
            },
            Series {
                name: "time between failures".into(),
                dashed: true,
                points: rows
                    .iter()
                    .map(|row| (row.nodes as f64, row.mtbf))
                    .collect(),
            },
        ],
    }
}

fn useful(fine: &Plan) -> Chart {
    let rows = &fine.recommendations;
    let curve = |name: &str, dashed, share: &dyn Fn(&crate::Recommendation) -> f64| Series {
        name: name.into(),
        dashed,
        points: rows
            .iter()
            .map(|row| (row.nodes as f64, 100.0 * share(row)))
            .collect(),
    };
    Chart {
        title: "Time that is work which lasts".into(),
        x_label: "nodes".into(),
        y_scale: Scale::Linear,
        y_text: |value| format!("{value:.0} %"),
        series: vec![
            curve("as recommended", false, &|row| row.useful),
            curve("full, uncompressed", false, &|row| {
                row.useful_full_uncompressed
            }),
        ],
    }
}

/// Figure 11 of paper 5.
fn savings(plan: &Plan) -> Chart {
    let numbers = [1, 2, 3, 5, 10, 20, 30, 50, 100];
    let curve = |nodes: u64| Series {
        name: format!("{nodes} node{}", if nodes == 1 { "" } else { "s" }),
        dashed: false,
        points: numbers
            .iter()
            .map(|n| (f64::from(*n), plan.inputs.savings(nodes, None, *n)))
            .collect(),
    };
    Chart {
        title: "Time saved by incremental checkpoints between two full ones, uncompressed".into(),
        x_label: "incremental checkpoints".into(),
        y_scale: Scale::Log,
        y_text: time_text,
        series: [1, 100, 10_000].map(curve).into(),
    }
}

/// A time as it is written at an axis.
fn time_text(seconds: f64) -> String {
    let units = [
        (86400.0 * 365.0, "y"),
        (86400.0, "d"),
        (3600.0, "h"),
        (60.0, "min"),
        (1.0, "s"),
    ];
    for (length, unit) in units {
        if seconds >= length {
            let value = seconds / length;
            let digits = if value < 10.0 { 1 } else { 0 };
            return format!("{value:.digits$} {unit}");
        }
    }
    format!("{:.3} ms", seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Codec, Inputs};

    #[test]
    fn a_picture_of_every_curve() {
        let inputs = Inputs {
            memory: 64e9,
            dirty: 0.1,
            collect_rate: 5e9,
            node_rate: 2e9,
            shared_rate: 200e9,
            node_mtbf: 1e8,
            fixed: 0.1,
            stop_share: 1.0,
            codecs: vec![Codec {
                name: "lz4".into(),
                ratio: 0.6,
                rate: 3e9,
                expand_rate: 9e9,
            }],
            most_incrementals: 64,
        };
        let picture = svg(&crate::plan(&inputs, &[1]).unwrap());
        for name in [
            "uncompressed",
            "lz4, serial",
            "lz4, pipelined",
            "as recommended",
            "time between failures",
        ] {
            assert!(picture.contains(name), "{name}");
        }
        assert_eq!(picture.matches("<g ").count(), 4);
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        assert_eq!(sizes().first(), Some(&1));
        assert_eq!(sizes().last(), Some(&100_000));
    }

    #[test]
    fn times_at_an_axis() {
        assert_eq!(time_text(0.01), "10.000 ms");
        assert_eq!(time_text(1.0), "1.0 s");
        assert_eq!(time_text(100.0), "1.7 min");
        assert_eq!(time_text(1e5), "1.2 d");
        assert_eq!(time_text(1e9), "32 y");
    }
}
