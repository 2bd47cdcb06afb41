//! Results of swaps and moves, and the list of cards.

use crate::report::print_json;
use crate::units::{bytes, seconds};
use anyhow::{Context, Result};
use serde_json::json;
use snapify_job::{ApplicationStatus, CardStatus, SwapReport};
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

/// A card, with the applications that may use it.
struct Card<'a> {
    status: &'a CardStatus,
    applications: Vec<&'a ApplicationStatus>,
}

impl Card<'_> {
    /// The offload processes on it: ids, and whose they are.
    fn processes(&self) -> impl Iterator<Item = (&str, i32)> {
        self.applications.iter().flat_map(|application| {
            let on = application.processes.iter().filter(|process| {
                process.card == self.status.index && process.state != "swapped-out"
            });
            on.map(|process| (process.id.as_str(), application.pid))
        })
    }
}

/// Each card once: those that applications share have one daemon.
fn distinct(applications: &[ApplicationStatus]) -> Vec<Card<'_>> {
    let mut cards: Vec<Card<'_>> = Vec::new();
    for application in applications {
        for status in &application.cards {
            let known = |card: &&mut Card<'_>| status.shared && card.status.pid == status.pid;
            match cards.iter_mut().find(known) {
                Some(card) => card.applications.push(application),
                None => cards.push(Card {
                    status,
                    applications: vec![application],
                }),
            }
        }
    }
    cards
}

/// The cards of running applications.
pub fn cards(applications: &[ApplicationStatus], as_json: bool) -> Result<ExitCode> {
    let all = distinct(applications);
    if as_json {
        let cards: Vec<_> = all
            .iter()
            .map(|card| {
                let status = card.status;
                let pids = card.applications.iter().map(|application| application.pid);
                json!({
                    "applications": pids.collect::<Vec<_>>(),
                    "card": status.index,
                    "pid": status.pid,
                    "state": status.state,
                    "memory": status.memory,
                    "used": status.used,
                    "free": status.free,
                    "shared": status.shared,
                    "processes": card.processes().map(|(id, _)| id).collect::<Vec<_>>(),
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
    for card in all {
        let status = card.status;
        let owner = match card.applications[..] {
            [one] if !status.shared => one.pid.to_string(),
            _ => "shared".into(),
        };
        let processes = card.processes().map(|(id, pid)| {
            if status.shared {
                format!("{id} of {pid}")
            } else {
                id.to_owned()
            }
        });
        println!(
            "{owner:>11}  {:>4}  {:<5}  {:>10}  {:>10}  {:>10}  {}",
            status.index,
            status.state,
            bytes(status.memory),
            bytes(status.used),
            bytes(status.free),
            processes.collect::<Vec<_>>().join(", "),
        );
    }
    Ok(ExitCode::SUCCESS)
}
