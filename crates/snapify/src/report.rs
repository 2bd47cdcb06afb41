//! Results on standard output: for people, or as one JSON object.

use crate::units::{bytes, seconds};
use anyhow::Result;
use serde::Serialize;
use serde_json::json;
use snapify_job::{ApplicationStatus, CheckpointReport, OffloadProcessStatus};
use snapify_proc::Obstacle;
use snapify_store::{InspectReport, VerifyReport};
use std::process::ExitCode;
use std::time::Duration;

pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

/// What a checkpoint did.
pub fn checkpoint(report: &CheckpointReport, as_json: bool) -> Result<ExitCode> {
    if as_json {
        print_json(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let time = |value: f64| seconds(Duration::from_secs_f64(value));
    println!(
        "snapshot {}{} of process {} in {}: {} in {}{}",
        report.point,
        report.parent.map_or_else(String::new, |parent| format!(
            " (what has changed since {parent})"
        )),
        report.pid,
        report.dir.display(),
        bytes(report.file_bytes),
        time(report.total_seconds),
        if report.stopped {
            "; the program has ended"
        } else {
            ""
        },
    );
    println!(
        "  pause {}, host process stood still for {}{}, capture {}, commit {}",
        time(report.pause_seconds),
        time(report.frozen_seconds),
        if report.live {
            " (its memory was saved while it went on)"
        } else {
            ""
        },
        time(report.capture_seconds),
        time(report.commit_seconds),
    );
    for member in &report.members {
        let place = member
            .card
            .map_or_else(String::new, |card| format!(" on card {card}"));
        let store = if member.store_bytes > 0 {
            format!(", of these {} local store", bytes(member.store_bytes))
        } else {
            String::new()
        };
        println!(
            "  {}{place}: {}{store}",
            member.name,
            bytes(member.stored_bytes)
        );
        for function in &member.in_flight {
            println!("    inside run function {function}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Running applications.
pub fn applications(applications: &[ApplicationStatus], as_json: bool) -> Result<ExitCode> {
    if as_json {
        print_json(&json!({ "applications": applications }))?;
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{:>8}  {:<10}  {:>5}  {:>10}  PROGRAM",
        "PID", "STATE", "CARDS", "IN BUFFERS"
    );
    for application in applications {
        let mine = application.processes.iter();
        let used = mine
            .filter(|process| process.state != "swapped-out")
            .map(|process| process.store_bytes)
            .sum();
        println!(
            "{:>8}  {:<10}  {:>5}  {:>10}  {}",
            application.pid,
            application.state,
            application.cards.len(),
            bytes(used),
            application.program.join(" "),
        );
        let is_away = |process: &OffloadProcessStatus| process.state == "swapped-out";
        for card in &application.cards {
            if card.state != "up" {
                println!("          card {}: {}", card.index, card.state);
                continue;
            }
            println!(
                "          card {}: {} of {} in buffers, {} free{}",
                card.index,
                bytes(card.used),
                bytes(card.memory),
                bytes(card.free),
                if card.shared { ", shared" } else { "" },
            );
            for process in application
                .processes
                .iter()
                .filter(|process| process.card == card.index && !is_away(process))
            {
                println!(
                    "            offload process {} (process {}){}, {}, {} in buffers",
                    process.id,
                    process.pid,
                    owner(application, process),
                    process.state,
                    bytes(process.store_bytes)
                );
            }
        }
        for process in application
            .processes
            .iter()
            .filter(|process| is_away(process))
        {
            let place = match &process.swapped_to {
                Some(dir) => format!("to {}", dir.display()),
                None => "by the program itself".into(),
            };
            println!(
                "          offload process {}{}, swapped out from card {} {place}, {} in buffers",
                process.id,
                owner(application, process),
                process.card,
                bytes(process.store_bytes)
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Which process an offload process works for, where that is not the program itself.
fn owner(application: &ApplicationStatus, process: &OffloadProcessStatus) -> String {
    match process.host {
        Some(host) if host != application.pid => format!(" of process {host}"),
        _ => String::new(),
    }
}

/// What stands in the way of a snapshot; the exit status tells whether anything does.
pub fn check(pid: i32, obstacles: &[Obstacle], as_json: bool) -> Result<ExitCode> {
    if as_json {
        print_json(
            &json!({ "pid": pid, "supported": obstacles.is_empty(), "obstacles": obstacles }),
        )?;
    } else if obstacles.is_empty() {
        println!("process {pid} can be saved");
    } else {
        println!("process {pid} cannot be saved:");
        for obstacle in obstacles {
            println!("  {obstacle}");
        }
    }
    Ok(if obstacles.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What a snapshot directory holds.
pub fn inspect(report: &InspectReport, as_json: bool) -> Result<ExitCode> {
    if as_json {
        print_json(report)?;
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{}: snapshots of {}",
        report.dir.display(),
        report.program.command
    );
    for point in &report.points {
        let age = point
            .header
            .as_ref()
            .map_or_else(String::new, |header| age(header.created_unix_ms));
        let kind =
            (point.parent).map_or_else(String::new, |parent| format!(", builds on {parent}"));
        println!(
            "  snapshot {}: {}{kind}{age}",
            point.number,
            bytes(point.bytes)
        );
        if let Some(problem) = &point.problem {
            println!("    cannot be read: {problem}");
        }
        for member in &point.members {
            println!("    {}: {}", member.name, bytes(member.bytes));
            for file in &member.files {
                let pages = file.pages.as_ref().map_or_else(String::new, |pages| {
                    format!(
                        " ({} pages stored, {} were zero)",
                        pages.pages_stored, pages.pages_zero
                    )
                });
                println!("      {}: {}{pages}", file.name, bytes(file.bytes));
            }
        }
    }
    for name in &report.unfinished {
        println!("  {name}: being written, or left by a writer that died");
    }
    println!("  in all {}", bytes(report.bytes));
    Ok(ExitCode::SUCCESS)
}

fn age(created_unix_ms: u64) -> String {
    let created = std::time::UNIX_EPOCH + Duration::from_millis(created_unix_ms);
    std::time::SystemTime::now()
        .duration_since(created)
        .map_or_else(
            |_| String::new(),
            |age| format!(", taken {} ago", seconds(age)),
        )
}

/// What came out of reading a snapshot whole; the exit status tells whether it is sound.
pub fn verify(report: &VerifyReport, as_json: bool) -> Result<ExitCode> {
    if as_json {
        print_json(report)?;
    } else {
        for point in &report.points {
            let verdict = if point.sound { "sound" } else { "DAMAGED" };
            println!(
                "snapshot {}: {verdict} ({} members, {})",
                point.number,
                point.members,
                bytes(point.bytes)
            );
        }
    }
    for problem in &report.problems {
        let place = problem
            .offset
            .map_or_else(String::new, |offset| format!(" at byte {offset}"));
        eprintln!(
            "snapify: {}{place}: {}",
            problem.path.display(),
            problem.what
        );
    }
    if let (false, Some(sound)) = (report.is_sound(), report.newest_sound) {
        eprintln!("snapify: the newest sound snapshot is {sound} (restart --at {sound})");
    }
    Ok(if report.is_sound() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
