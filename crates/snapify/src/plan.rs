//! `snapify plan`: from what snapshots have cost, and from given numbers, to what to do.

use crate::args::parse_size;
use crate::units::{bytes, long_time, parse_duration};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use snapify_plan::{Codec, Inputs, Plan, Recommendation, decades, learn, plan, plot};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Recommend how often to take snapshots, how many incremental ones between full ones, and whether to compress.
///
/// What is not given is taken from the snapshots in DIR; what these do not tell is assumed, and marked so.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify plan /scratch/sim --shared-rate 200G --nodes 1,1000,10000\n  \
    snapify plan --memory 64G --node-rate 2G --shared-rate 200G --node-mtbf 5y --dirty 5%\n  \
    snapify plan /scratch/sim --codec lz4:0.6:2G --plot plan.svg\n\n\
    Rates are bytes a second. The models are those of Liu and others (parallel compression), Wang and others \
    (full and incremental checkpoints), Young and Daly (interval).")]
pub struct PlanArgs {
    /// A directory that `checkpoint` wrote: memory, rates and changes are taken from its snapshots, and codecs are tried on it
    pub dir: Option<PathBuf>,
    /// Memory that a full snapshot saves on each node
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Share of the memory that changes from one snapshot to the next: 0.05 or 5%
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub dirty: Option<f64>,
    /// Bytes a second at which a node can collect its memory
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub collect_rate: Option<u64>,
    /// Bytes a second that a node can store
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub node_rate: Option<u64>,
    /// Bytes a second that all nodes together can store
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub shared_rate: Option<u64>,
    /// Average time between failures of one node
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub node_mtbf: Option<Duration>,
    /// A codec to choose from: bytes after for each before, bytes a second that a node compresses, and expands (several times). Codecs
    /// that are not given are tried on the memory in DIR
    #[arg(long = "codec", value_name = "NAME:RATIO:RATE[:EXPAND]", value_parser = parse_codec)]
    pub codecs: Vec<Codec>,
    /// At most so many incremental snapshots between two full ones
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub most_incrementals: u32,
    /// Numbers of nodes; 1 to 100000 in steps if not given
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub nodes: Vec<u64>,
    /// Draw the plan into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Where a number comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Origin {
    Given,
    Measured,
    Assumed,
}

/// The inputs of a plan, and where each comes from.
struct Sources {
    inputs: Inputs,
    origins: Vec<(&'static str, Origin)>,
}

/// What a node stores in a second, if nobody says: 1 GiB.
const NODE_RATE: f64 = (1u64 << 30) as f64;
/// What storage takes in a second, if nobody says: 100 GiB.
const SHARED_RATE: f64 = (100u64 << 30) as f64;
/// How long a node works without failing, if nobody says: five years.
const NODE_MTBF: f64 = 5.0 * 365.0 * 86400.0;

/// What compresses at all expands so many times as fast, or faster.
const EXPANDS: f64 = 3.0;

/// Makes the plan and prints it.
pub fn execute(arguments: &PlanArgs) -> Result<ExitCode> {
    let sources = sources(arguments)?;
    let nodes = if arguments.nodes.is_empty() {
        decades()
    } else {
        arguments.nodes.clone()
    };
    let plan = plan(&sources.inputs, &nodes)?;
    if let Some(path) = &arguments.plot {
        std::fs::write(path, plot::svg(&plan))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.json {
        let origins: serde_json::Map<_, _> = sources
            .origins
            .iter()
            .map(|(name, origin)| Ok(((*name).to_owned(), serde_json::to_value(origin)?)))
            .collect::<Result<_>>()?;
        let mut value = serde_json::to_value(&plan)?;
        value["origins"] = origins.into();
        println!("{}", serde_json::to_string(&value)?);
    } else {
        print(&plan, &sources.origins);
    }
    Ok(ExitCode::SUCCESS)
}

fn sources(arguments: &PlanArgs) -> Result<Sources> {
    let learned = match &arguments.dir {
        Some(dir) => {
            let measured = snapify_job::measurements(dir)?;
            if measured.is_empty() {
                bail!(
                    "the snapshots in {} do not tell what they cost",
                    dir.display()
                );
            }
            learn(&measured)
        }
        None => snapify_plan::Learned::default(),
    };
    let mut origins = Vec::new();
    let mut choose = |name, given: Option<f64>, measured: Option<f64>, assumed: f64| {
        let (value, origin) = match (given, measured) {
            (Some(given), _) => (given, Origin::Given),
            (None, Some(measured)) => (measured, Origin::Measured),
            (None, None) => (assumed, Origin::Assumed),
        };
        origins.push((name, origin));
        value
    };
    let size = |size: Option<u64>| size.map(|size| size as f64);
    let Some(memory) = size(arguments.memory).or(learned.memory) else {
        bail!(
            "how much memory a node has to save is not known: give --memory, or a directory with snapshots"
        );
    };
    let memory = choose("memory", size(arguments.memory), Some(memory), memory);
    let dirty = choose("dirty", arguments.dirty, learned.dirty, 1.0);
    let mut codecs = arguments.codecs.clone();
    if let (Some(dir), true) = (&arguments.dir, codecs.is_empty()) {
        // Pages that cannot be read are no obstacle: what snapshots have cost stands elsewhere.
        match snapify_job::codecs(dir) {
            Ok(tried) => codecs = tried,
            Err(error) => eprintln!("snapify: warning: no codec was tried: {error}"),
        }
    }
    if let (Some(ratio), Some(rate)) = (learned.ratio, learned.codec_rate)
        && codecs.is_empty()
    {
        codecs.push(Codec {
            name: "as used".into(),
            ratio,
            rate,
            expand_rate: EXPANDS * rate,
        });
    }
    let node_rate = choose(
        "node_rate",
        size(arguments.node_rate),
        learned.rate,
        NODE_RATE,
    );
    // What was measured is the slowest stage of the pipeline: the others are at least as quick.
    let collect_rate = choose(
        "collect_rate",
        size(arguments.collect_rate),
        learned.codec_rate.or(learned.rate),
        4.0 * node_rate,
    );
    let shared_rate = choose(
        "shared_rate",
        size(arguments.shared_rate),
        None,
        SHARED_RATE,
    );
    let node_mtbf = arguments.node_mtbf.map(|time| time.as_secs_f64());
    let node_mtbf = choose("node_mtbf", node_mtbf, None, NODE_MTBF);
    let fixed = choose("fixed", None, learned.fixed, 0.0);
    let stop_share = choose("stop_share", None, learned.stop_share, 1.0);
    if !arguments.codecs.is_empty() {
        origins.push(("codecs", Origin::Given));
    } else if !codecs.is_empty() {
        origins.push(("codecs", Origin::Measured));
    }
    Ok(Sources {
        inputs: Inputs {
            memory,
            dirty,
            collect_rate,
            node_rate,
            shared_rate,
            node_mtbf,
            fixed,
            stop_share,
            codecs,
            most_incrementals: arguments.most_incrementals,
        },
        origins,
    })
}

fn print(plan: &Plan, origins: &[(&'static str, Origin)]) {
    let inputs = &plan.inputs;
    let rate = |value: f64| format!("{}/s", size(value));
    let percent = |value: f64| format!("{:.1} %", 100.0 * value);
    let of = |name: &str| match origins.iter().find(|(found, _)| *found == name) {
        Some((_, Origin::Measured)) => "measured",
        Some((_, Origin::Given)) => "given",
        _ => "assumed",
    };
    for (name, text, value) in [
        ("memory", "memory of a node", size(inputs.memory)),
        ("dirty", "changed between snapshots", percent(inputs.dirty)),
        ("collect_rate", "a node collects", rate(inputs.collect_rate)),
        ("node_rate", "a node stores", rate(inputs.node_rate)),
        ("shared_rate", "all nodes store", rate(inputs.shared_rate)),
        (
            "node_mtbf",
            "a node fails every",
            long_time(inputs.node_mtbf),
        ),
        (
            "fixed",
            "each snapshot costs beside",
            long_time(inputs.fixed),
        ),
        (
            "stop_share",
            "of saving, the program stands",
            percent(inputs.stop_share),
        ),
    ] {
        println!("{text:>30}  {value:<14} ({})", of(name));
    }
    println!();
    for points in &plan.thresholds {
        let nodes = |value: Option<f64>| {
            value.map_or_else(|| "never".into(), |value| format!("{value:.0}"))
        };
        println!(
            "{}{}: storage is saturated by {} nodes uncompressed, {} compressed, {} compressed while storing;\n  \
             quicker than uncompressed from {} nodes on, while storing from {}",
            points.codec,
            inputs
                .codecs
                .iter()
                .find(|codec| codec.name == points.codec)
                .map_or_else(String::new, |codec| format!(
                    " ({} left, at {})",
                    percent(codec.ratio),
                    rate(codec.rate)
                ),),
            nodes(Some(points.saturation_uncompressed)),
            nodes(Some(points.saturation_serial)),
            nodes(Some(points.saturation_pipelined)),
            nodes(points.beneficial_serial),
            nodes(points.beneficial_pipelined),
        );
    }
    if !plan.thresholds.is_empty() {
        println!();
    }
    println!(
        "{:>7}  {:>9}  {:<9}  {:>9}  {:>6}  {:>9}  {:>9}  {:>9}  {:>7}  {:>7}",
        "NODES",
        "FAILURE",
        "CODEC",
        "INTERVAL",
        "FULL:",
        "FULL",
        "INCR.",
        "RESTART",
        "USEFUL",
        "PLAIN"
    );
    for row in &plan.recommendations {
        print_row(row);
    }
    println!(
        "\nUSEFUL is the share of time that is work which lasts, PLAIN the same with full, uncompressed snapshots only."
    );
}

fn print_row(row: &Recommendation) {
    println!(
        "{:>7}  {:>9}  {:<9}  {:>9}  {:>6}  {:>9}  {:>9}  {:>9}  {:>5.1} %  {:>5.1} %",
        row.nodes,
        long_time(row.mtbf),
        row.codec,
        long_time(row.interval),
        format!("1:{}", row.incrementals),
        long_time(row.full_seconds),
        if row.incrementals == 0 {
            "-".into()
        } else {
            long_time(row.incremental_seconds)
        },
        long_time(row.restart_seconds),
        100.0 * row.useful,
        100.0 * row.useful_full_uncompressed,
    );
}

fn size(value: f64) -> String {
    // Inputs are positive; what does not fit is as good as the greatest.
    bytes(value as u64)
}

/// Parses `0.05` or `5%`.
fn parse_share(text: &str) -> Result<f64, String> {
    let wrong = || format!("'{text}' is no share: give a number from 0 to 1, or a percentage");
    let (number, unit) = match text.trim().strip_suffix('%') {
        Some(number) => (number.trim(), 100.0),
        None => (text.trim(), 1.0),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let share = number / unit;
    if (0.0..=1.0).contains(&share) {
        Ok(share)
    } else {
        Err(wrong())
    }
}

/// Parses `NAME:RATIO:RATE[:EXPAND]`.
fn parse_codec(text: &str) -> Result<Codec, String> {
    let wrong = || format!("'{text}' is not NAME:RATIO:RATE, such as lz4:0.6:2G");
    let parts: Vec<&str> = text.split(':').collect();
    let (name, ratio, rate, expand) = match parts[..] {
        [name, ratio, rate] => (name, ratio, rate, None),
        [name, ratio, rate, expand] => (name, ratio, rate, Some(expand)),
        _ => return Err(wrong()),
    };
    let rate = parse_size(rate)? as f64;
    if name.is_empty() || name == "none" {
        return Err(wrong());
    }
    Ok(Codec {
        name: name.into(),
        ratio: parse_share(ratio)?,
        rate,
        expand_rate: match expand {
            Some(expand) => parse_size(expand)? as f64,
            None => EXPANDS * rate,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        assert_eq!(parse_share("0.05"), Ok(0.05));
        assert_eq!(parse_share("5%"), Ok(0.05));
        assert_eq!(parse_share("1"), Ok(1.0));
        for wrong in ["", "%", "1.5", "-1%", "101%", "NaN", "inf"] {
            assert!(parse_share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn codecs() {
        let codec = parse_codec("lz4:0.6:2G").unwrap();
        assert_eq!((codec.name.as_str(), codec.ratio), ("lz4", 0.6));
        assert!((codec.expand_rate - 3.0 * codec.rate).abs() < 1.0);
        assert!(parse_codec("zstd:50%:500M:1G").is_ok());
        for wrong in [
            "",
            "lz4",
            "lz4:0.6",
            ":0.6:2G",
            "none:1:2G",
            "a:2:1G",
            "a:0.5:x",
            "a:0.5:1G:2G:3G",
        ] {
            assert!(parse_codec(wrong).is_err(), "{wrong}");
        }
    }
}
