//! The command line: argument parsing, progress, reports. What is done, is done by `snapify-job` and `snapify-store`.
#![deny(unsafe_code)]

mod args;
mod cleaning;
mod drawing;
mod exit;
mod plan;
mod progress;
mod report;
mod units;

use anyhow::Result;
use args::{Cli, Command, Tcp};
use clap::{CommandFactory, Parser};
use progress::Progress;
use snapify_job::{
    CardDaemonOptions, CheckpointOptions, Files, Live, Outside, RestartOptions, RunOptions,
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
                program: run.program,
            };
            Ok(exit::like(snapify_job::run(&options)?))
        }
        Command::Checkpoint(checkpoint) => {
            if checkpoint.stop && checkpoint.live == args::Live::Always {
                let why = "--live lets the program go on, --stop does not: give one of them";
                let kind = clap::error::ErrorKind::ArgumentConflict;
                Cli::command().error(kind, why).exit();
            }
            let options = CheckpointOptions {
                pid: checkpoint.pid,
                dir: checkpoint.dir,
                stop: checkpoint.stop,
                outside: match checkpoint.tcp {
                    Some(Tcp::Close) => Outside::CloseTcp,
                    None => Outside::Refuse,
                },
                live: match checkpoint.live {
                    args::Live::Never => Live::Never,
                    args::Live::Auto => Live::Auto,
                    args::Live::Always => Live::Always,
                },
            };
            let mut progress = Progress::new();
            let done = snapify_job::checkpoint(&options, &mut progress);
            progress.finish();
            report::checkpoint(&done?, checkpoint.json)
        }
        Command::Restart(restart) => {
            let options = RestartOptions {
                dir: restart.dir,
                at: restart.at,
                detach: restart.detach,
                pid_file: restart.pid_file,
                cards: restart.cards,
                card_memory: restart.card_memory,
                card_count: restart.card_count,
                roots: restart.roots,
                files: match restart.files {
                    args::Files::Keep => Files::Keep,
                    args::Files::Truncate => Files::Truncate,
                },
            };
            // No display: standard error is the program's as well.
            Ok(snapify_job::restart(&options, &mut ())?.map_or(ExitCode::SUCCESS, exit::like))
        }
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
        Command::Plan(arguments) => plan::execute(&arguments),
        Command::Report(arguments) => drawing::execute(&arguments),
        Command::CardDaemon(card) => {
            let options = CardDaemonOptions {
                index: card.index,
                memory: card.memory,
                service_fd: card.service_fd,
            };
            snapify_job::card_daemon(options)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
