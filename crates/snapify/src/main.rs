//! The command line: argument parsing, progress, reports. What is done, is done by `snapify-job` and `snapify-store`.
#![deny(unsafe_code)]

mod args;
mod cleaning;
mod drawing;
mod exit;
mod plan;
mod progress;
mod report;
mod schedule;
mod swap;
mod units;

use anyhow::Result;
use args::{Cli, Command, Tcp};
use clap::{CommandFactory, Parser};
use progress::Progress;
use snapify_job::{
    CardDaemonOptions, CheckpointOptions, Files, Outside, RestartOptions, RunOptions, Sequence,
    Which,
};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_tracing();
    match execute(cli.command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("snapify: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What libraries tell beside their results is shown where `SNAPIFY_LOG` asks for it.
fn start_tracing() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("SNAPIFY_LOG") {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .init();
    }
}

fn execute(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run(run) => {
            let options = RunOptions {
                cards: run.cards,
                card_memory: run.card_memory,
                share_cards: run.share_cards,
                program: run.program,
                schedule: run.regular.schedule(),
            };
            Ok(exit::like(snapify_job::run(&options)?))
        }
        Command::Checkpoint(checkpoint) => {
            if checkpoint.stop && checkpoint.live == args::Live::Always {
                let why = "--live lets the program go on, --stop does not: give one of them";
                let kind = clap::error::ErrorKind::ArgumentConflict;
                Cli::command().error(kind, why).exit();
            }
            let sequence = Sequence::after(
                &checkpoint.dir,
                checkpoint.sequence.increments(),
                checkpoint.sequence.full_every,
                None,
            );
            let options = CheckpointOptions {
                pid: checkpoint.pid,
                dir: checkpoint.dir,
                stop: checkpoint.stop,
                outside: checkpoint.tcp.map_or(Outside::Refuse, Tcp::outside),
                live: checkpoint.live.into(),
                after: 0,
                sequence,
                write: checkpoint.pipeline.options(),
            };
            let mut progress = Progress::new();
            let done = snapify_job::checkpoint(&options, &mut progress);
            progress.finish();
            report::checkpoint(&done?, checkpoint.json)
        }
        Command::Restart(restart) => {
            // One of them is given. With the shared one alone, that is all there is.
            let local = restart.dir.or(restart.local);
            let shared = local.as_ref().and(restart.shared.clone());
            let dir = local.or(restart.shared).unwrap_or_default();
            let schedule = restart
                .every
                .map(|every| restart.manner.schedule(dir.clone(), shared.clone(), every));
            let options = RestartOptions {
                dir,
                shared,
                schedule,
                at: restart.at,
                detach: restart.detach,
                pid_file: restart.pid_file,
                cards: restart.cards,
                card_memory: restart.card_memory,
                card_count: restart.card_count,
                share_cards: restart.share_cards,
                roots: restart.roots,
                files: match restart.files {
                    args::Files::Keep => Files::Keep,
                    args::Files::Truncate => Files::Truncate,
                },
            };
            // No display: standard error is the program's as well.
            Ok(snapify_job::restart(&options, &mut ())?.map_or(ExitCode::SUCCESS, exit::like))
        }
        Command::SwapOut(swap) => {
            let which = Which {
                process: swap.process,
                card: swap.card,
                ..Which::default()
            };
            let mut progress = Progress::new();
            let done = snapify_job::swap_out(swap.pid, &swap.dir, &which, &mut progress);
            progress.finish();
            swap::report(&done?, swap.report.as_deref(), swap.json)
        }
        Command::SwapIn(swap) => {
            let which = Which {
                process: swap.process,
                card: None,
                ..Which::default()
            };
            let mut progress = Progress::new();
            let done = snapify_job::swap_in(swap.pid, swap.card, &which, &mut progress);
            progress.finish();
            swap::report(&done?, swap.report.as_deref(), swap.json)
        }
        Command::Migrate(migrate) => {
            let which = Which {
                process: migrate.process,
                card: migrate.from,
                ..Which::default()
            };
            let mut progress = Progress::new();
            let done = snapify_job::migrate(migrate.pid, migrate.card, &which, &mut progress);
            progress.finish();
            swap::report(&done?, migrate.report.as_deref(), migrate.json)
        }
        Command::Cards(cards) => swap::cards(&snapify_job::applications()?, cards.json),
        Command::Check(check) => {
            report::check(check.pid, &snapify_job::check(check.pid)?, check.json)
        }
        Command::Ps(ps) => report::applications(&snapify_job::applications()?, ps.json),
        Command::Inspect(inspect) => {
            report::inspect(&snapify_store::inspect(&inspect.dir)?, inspect.json)
        }
        Command::Verify(verify) => report::verify(
            &snapify_store::verify(&verify.dir, verify.at, &())?,
            verify.json,
        ),
        Command::Clean(arguments) => cleaning::execute(&arguments),
        Command::Watch(watch) => schedule::watch(watch),
        Command::Copy(copy) => schedule::copy(copy),
        Command::Plan(arguments) => plan::execute(&arguments),
        Command::Report(arguments) => drawing::execute(&arguments),
        Command::CardDaemon(card) => {
            let options = CardDaemonOptions {
                index: card.index,
                memory: card.memory,
                service_fd: card.service_fd,
                listen: card.listen,
            };
            snapify_job::card_daemon(options)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
