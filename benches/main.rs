//! What `make bench` runs: this tool and the limits of the machine it runs on, side by side.
//!
//! Every figure is a median of interleaved runs, and every ratio is taken within one run of this program: figures of
//! different machines, or of one noisy machine on different days, say little. `snapify-bench NAME…` runs only the
//! tables named. Some are drawn as well, into the directory that `SNAPIFY_BENCH_PLOTS` names.

mod application;
mod checkpoint;
mod figures;
mod hybrid;
mod incremental;
mod kernel;
mod live;
mod machine;
mod micro;
mod overhead;
mod pipeline;
mod place;
mod program;
mod store;
mod swap;
mod table;
mod tree;

use anyhow::{Result, bail};

type Bench = fn(&place::Place) -> Result<()>;

const ALL: [(&str, Bench); 11] = [
    ("micro", micro::run),
    ("checkpoint", checkpoint::run),
    ("overhead", overhead::run),
    ("tree", tree::run),
    ("live", live::run),
    ("store", store::run),
    ("swap", swap::run),
    ("figures", figures::run),
    ("incremental", incremental::run),
    ("pipeline", pipeline::run),
    ("hybrid", hybrid::run),
];

fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted
        .iter()
        .find(|name| ALL.iter().all(|(known, _)| known != name))
    {
        bail!(
            "no bench is called '{unknown}'; there are: {}",
            ALL.map(|(name, _)| name).join(", ")
        );
    }
    let place = place::Place::new()?;
    for (name, bench) in ALL {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            bench(&place)?;
        }
    }
    Ok(())
}
