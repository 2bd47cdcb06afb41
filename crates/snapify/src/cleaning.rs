//! `snapify clean`: gives back the room that old snapshots take.

use crate::units::bytes;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// Give back the room that old snapshots take.
///
/// The newest ones stay, and stand without the others afterwards. The program and its checkpoints may go on meanwhile.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    snapify clean /scratch/sim             the newest two snapshots stay\n  \
    snapify clean /scratch/sim --keep 10   the newest ten\n\n\
    It may be interrupted at any moment. What is being restarted from stays, and is named.")]
pub struct CleanArgs {
    /// The directory that `checkpoint` wrote
    pub dir: PathBuf,
    /// How many snapshots stay, of those that can be restarted from
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: u32,
    /// Only tell what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// Cleans, and tells what has been done.
pub fn execute(args: &CleanArgs) -> Result<ExitCode> {
    if args.dry_run {
        let plan = snapify_store::clean_plan(&args.dir, args.keep)?;
        if args.json {
            println!("{}", serde_json::to_string(&plan)?);
        } else {
            println!(
                "would free {}, writing {}",
                bytes(plan.bytes_freed),
                bytes(plan.bytes_to_write)
            );
            list("would be removed", &plan.removed);
            list("would be made to stand alone", &plan.rewritten);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let report = snapify_store::clean(&args.dir, args.keep, &())?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!(
            "{} before, {} now",
            bytes(report.bytes_before),
            bytes(report.bytes_after)
        );
        list("removed", &report.removed);
        list("made to stand alone", &report.rewritten);
        list("left alone, being read", &report.in_use);
    }
    Ok(ExitCode::SUCCESS)
}

fn list(what: &str, numbers: &[u32]) {
    if !numbers.is_empty() {
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        println!("  {what}: {}", numbers.join(", "));
    }
}
