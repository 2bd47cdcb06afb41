//! Progress on standard error, when that is a terminal: bytes, rate, remaining time.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use snapify_job::{Event, Observer, Phase};
use std::io::IsTerminal;

/// Shows the events of a checkpoint or restart.
pub struct Progress {
    bar: ProgressBar,
    total: u64,
}

impl Progress {
    /// A progress display on standard error; silent, but for warnings, where that is no terminal.
    pub fn new() -> Self {
        let target = if std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let style = "{msg:12} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, total: 0 }
    }

    /// Takes the display away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Progress {
    fn event(&mut self, event: Event) {
        match event {
            Event::Phase(phase) => self.bar.set_message(match phase {
                Phase::Pausing => "pausing",
                Phase::Capturing => "capturing",
                Phase::Committing => "committing",
                Phase::Resuming => "resuming",
                Phase::StartingCards => "starting",
                Phase::Restoring => "restoring",
                Phase::Moving => "moving",
            }),
            Event::Total(bytes) => {
                self.total += bytes;
                self.bar.set_length(self.total);
            }
            Event::Advance(bytes) => self.bar.inc(bytes),
            Event::Warning(text) => {
                self.bar.suspend(|| eprintln!("snapify: warning: {text}"));
            }
        }
    }
}
