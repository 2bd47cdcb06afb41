//! `snapify report`: what operations took, as a page or as JSON.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use snapify_report::{MemberSize, Page, PointSize, REPORTS_DIR};
use snapify_store::{FileReport, InspectReport, MemberReport};
use std::path::PathBuf;
use std::process::ExitCode;

/// The local store's file in a member.
const STORE_FILE: &str = "store.snap";

/// Draw what checkpoints and restarts took, as a page for a browser.
///
/// For each operation a timeline of all that took part, as in figures 5 to 7 of the Snapify paper, and times and sizes side by
/// side, as in its figure 10. The page is one file and needs no other.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify report /scratch/sim -o sim.html\n  \
    snapify report /scratch/sim --last 1 --json | jq '.timelines[].phases[]'")]
pub struct ReportArgs {
    /// The directory that `checkpoint` wrote
    dir: PathBuf,
    /// Where the page goes
    #[arg(short, long, value_name = "FILE", required_unless_present = "json")]
    output: Option<PathBuf>,
    /// How many operations to show, counted from the newest
    #[arg(long, value_name = "N", default_value_t = 10)]
    last: usize,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Reads what was recorded and what the snapshots hold, and draws or prints it.
pub fn execute(options: &ReportArgs) -> Result<ExitCode> {
    let dir = &options.dir;
    let snapshots = match snapify_store::inspect(dir) {
        Ok(snapshots) => Some(snapshots),
        // Operations are recorded in directories without snapshots, too: an offload process that was swapped out.
        Err(_) if dir.join(REPORTS_DIR).is_dir() => None,
        Err(error) => return Err(error.into()),
    };
    let (timelines, unreadable) = snapify_report::kept(dir, options.last)?;
    for unreadable in &unreadable {
        let path = unreadable.path.display();
        eprintln!("snapify: warning: {path} is left out: {}", unreadable.why);
    }
    if options.json {
        let told = json!({ "dir": dir, "timelines": timelines, "snapshots": snapshots });
        println!("{told}");
    }
    if let Some(output) = &options.output {
        let program = snapshots
            .as_ref()
            .map_or("a program", |snapshots| &snapshots.program.command);
        let points = snapshots.as_ref().map(points).unwrap_or_default();
        let page = snapify_report::page(&Page {
            dir: &dir.display().to_string(),
            program,
            timelines: &timelines,
            points: &points,
            unreadable: &unreadable,
        });
        std::fs::write(output, page)
            .with_context(|| format!("cannot write {}", output.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn points(snapshots: &InspectReport) -> Vec<PointSize> {
    let points = snapshots.points.iter().map(|point| PointSize {
        number: point.number,
        created_unix_ms: point.header.as_ref().map_or(0, |h| h.created_unix_ms),
        members: point.members.iter().map(member).collect(),
    });
    points.collect()
}

fn member(member: &MemberReport) -> MemberSize {
    let is_store = |file: &&FileReport| file.name == STORE_FILE;
    let store_bytes = member.files.iter().filter(is_store).map(|f| f.bytes).sum();
    MemberSize {
        name: member.name.clone(),
        process_bytes: member.bytes - store_bytes,
        store_bytes,
    }
}
