//! Results of swaps and moves, and the list of cards.

use crate::report::print_json;
use crate::units::{bytes, seconds};
use anyhow::{Context, Result};
use serde_json::json;
use snapify_job::{ApplicationStatus, SwapReport};
use snapify_report::Timeline;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// What became of an offload process; and what it took is kept in `dir`.
pub fn report(report: &SwapReport, dir: Option<&Path>, as_json: bool) -> Result<ExitCode> {
    if let (Some(dir), Some(timeline)) = (dir, &report.timeline) {
        let kept = keep(dir, timeline);
        // It is done: that this cannot be written does not undo it.
        if let Err(error) = kept {
            eprintln!("snapify: warning: what it took is not kept: {error:#}");
        }
    }
    if as_json {
        print_json(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let time = |value: f64| seconds(Duration::from_secs_f64(value));
    let (id, store) = (&report.process, bytes(report.store_bytes));
    let total = time(report.total_seconds);
    match (report.card, &report.dir) {
        (None, dir) => println!(
            "offload process {id} is off card {}, in {}: {store} of buffers, image {}, in {total} (pause {}, capture {})",
            report.from,
            dir.as_deref().unwrap_or("".as_ref()).display(),
            bytes(report.file_bytes),
            time(report.pause_seconds),
            time(report.capture_seconds),
        ),
        (Some(card), Some(_)) => {
            println!("offload process {id} is on card {card} again: {store} of buffers in {total}");
        }
        (Some(card), None) => println!(
            "offload process {id} went from card {} to card {card}: {store} of buffers in {total} (pause {}, capture {}, \
             restore {})",
            report.from,
            time(report.pause_seconds),
            time(report.capture_seconds),
            time(report.restore_seconds),
        ),
    }
    Ok(ExitCode::SUCCESS)
}

fn keep(dir: &Path, timeline: &Timeline) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    snapify_report::keep(dir, timeline)?;
    Ok(())
}

/// The cards of running applications.
pub fn cards(applications: &[ApplicationStatus], as_json: bool) -> Result<ExitCode> {
    let on = |application: &ApplicationStatus, card: u32| -> Vec<String> {
        let processes = application.processes.iter();
        processes
            .filter(|process| process.card == card && process.swapped_to.is_none())
            .map(|process| process.id.clone())
            .collect()
    };
    let all = applications.iter().flat_map(|application| {
        application
            .cards
            .iter()
            .map(move |card| (application, card))
    });
    if as_json {
        let cards: Vec<_> = all
            .map(|(application, card)| {
                json!({
                    "application": application.pid,
                    "card": card.index,
                    "pid": card.pid,
                    "state": card.state,
                    "memory": card.memory,
                    "used": card.used,
                    "free": card.free,
                    "processes": on(application, card.index),
                })
            })
            .collect();
        print_json(&json!({ "cards": cards }))?;
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{:>11}  {:>4}  {:<5}  {:>10}  {:>10}  {:>10}  OFFLOAD PROCESSES",
        "APPLICATION", "CARD", "STATE", "MEMORY", "IN BUFFERS", "FREE"
    );
    for (application, card) in all {
        println!(
            "{:>11}  {:>4}  {:<5}  {:>10}  {:>10}  {:>10}  {}",
            application.pid,
            card.index,
            card.state,
            bytes(card.memory),
            bytes(card.used),
            bytes(card.free),
            on(application, card.index).join(", "),
        );
    }
    Ok(ExitCode::SUCCESS)
}
