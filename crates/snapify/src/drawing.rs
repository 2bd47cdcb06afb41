//! `snapify report`: what operations took, as a page or as JSON.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;
use snapify_report::{MemberSize, Page, PointSize, REPORTS_DIR, Timeline, Unreadable};
use snapify_store::{FileReport, InspectReport, MemberReport};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The local store's file in a member.
const STORE_FILE: &str = "store.snap";

/// Draw what checkpoints, restarts, swaps and migrations took, as a page for a browser.
///
/// For each operation a timeline of all that took part, as in figures 5 to 7 of the Snapify paper, and times and sizes side by
/// side, as in its figure 10. The page is one file and needs no other.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify report /scratch/sim -o sim.html     checkpoints and restarts\n  \
    snapify report 4711 -o moves.html           swaps and migrations of a running application\n  \
    snapify report /scratch/sim --last 1 --json | jq '.timelines[].phases[]'")]
pub struct ReportArgs {
    /// The directory that `checkpoint`, `swap-out` or an option `--report` wrote; or the host process of a running
    /// application, for its swaps and migrations
    #[arg(value_name = "DIR|PID")]
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
    let Found {
        program,
        snapshots,
        timelines,
        unreadable,
    } = find(dir, options.last)?;
    for unreadable in &unreadable {
        let path = unreadable.path.display();
        eprintln!("snapify: warning: {path} is left out: {}", unreadable.why);
    }
    if options.json {
        let told = json!({ "dir": dir, "timelines": timelines, "snapshots": snapshots });
        println!("{told}");
    }
    if let Some(output) = &options.output {
        let points = snapshots.as_ref().map(points).unwrap_or_default();
        let page = snapify_report::page(&Page {
            dir: &dir.display().to_string(),
            program: &program,
            timelines: &timelines,
            points: &points,
            unreadable: &unreadable,
        });
        std::fs::write(output, page)
            .with_context(|| format!("cannot write {}", output.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What there is to tell.
struct Found {
    program: String,
    snapshots: Option<InspectReport>,
    timelines: Vec<Timeline>,
    unreadable: Vec<Unreadable>,
}

fn find(dir: &Path, last: usize) -> Result<Found> {
    let pid = dir.to_str().and_then(|name| name.parse::<i32>().ok());
    if let (Some(pid), false) = (pid, dir.exists()) {
        let (status, folder) = snapify_job::application_of(pid)?;
        let (timelines, unreadable) = snapify_report::kept(&folder, last)?;
        return Ok(Found {
            program: status.program.join(" "),
            snapshots: None,
            timelines,
            unreadable,
        });
    }
    let (snapshots, places) = match snapify_store::inspect(dir) {
        Ok(snapshots) => (Some(snapshots), vec![dir.to_owned()]),
        Err(error) => {
            let places = places_in(dir);
            if places.is_empty() {
                return Err(error.into());
            }
            (None, places)
        }
    };
    let (mut timelines, mut unreadable) = (Vec::new(), Vec::new());
    for place in places {
        let (told, untold) = snapify_report::kept(&place, last)?;
        timelines.extend(told);
        unreadable.extend(untold);
    }
    timelines.sort_by_key(|timeline| timeline.started_unix_ms);
    timelines.drain(..timelines.len().saturating_sub(last));
    let program = snapshots.as_ref();
    let program = program.map_or("a program", |snapshots| &snapshots.program.command);
    Ok(Found {
        program: program.to_owned(),
        snapshots,
        timelines,
        unreadable,
    })
}

/// Where operations are recorded in a directory without snapshots: in itself, and beside each image of an offload process that
/// was swapped out to it.
fn places_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let images = entries.filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().starts_with(b"offload-")
    });
    let mut places: Vec<PathBuf> = images.map(|entry| entry.path()).collect();
    places.push(dir.to_owned());
    places.retain(|place| place.join(REPORTS_DIR).is_dir());
    places
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
