//! Swapping an offload process off its card and back onto any, and moving it from card to card (paper 1, section 5), while
//! the application runs on.
//!
//! The host library does it, asked by a worker of the supervisor over the same connection as for a snapshot; the program is
//! not asked. Requests for one application come one after the other.

mod client;
mod image;
mod inward;
mod migrate;
mod outward;
mod registry;
mod run;
mod select;

pub use client::{migrate, swap_in, swap_out};
pub(crate) use registry::Registry;

use crate::checkpoint::Application;
use crate::error::JobError;
use crate::link::Link;
use serde::{Deserialize, Serialize};
use snapify_report::Timeline;
use std::path::{Path, PathBuf};

/// Which of an application's offload processes is meant.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Which {
    /// By its lasting name, or the beginning of that; any if none is given.
    pub process: Option<String>,
    /// By the card that it is on; any if none is given.
    pub card: Option<u32>,
    /// By the process that it works for; any of the application if none is given.
    #[serde(default)]
    pub host: Option<i32>,
}

/// What is to be done with one offload process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "kebab-case")]
pub(crate) enum Order {
    /// Save it and take it off its card.
    SwapOut {
        /// Absolute path of the directory for its image.
        dir: PathBuf,
        /// The process.
        which: Which,
    },
    /// Bring it back.
    SwapIn {
        /// To which card.
        card: u32,
        /// The process.
        which: Which,
    },
    /// Move it.
    Migrate {
        /// To which card.
        card: u32,
        /// The process.
        which: Which,
    },
}

impl Order {
    /// The process that is meant.
    fn which_mut(&mut self) -> &mut Which {
        match self {
            Self::SwapOut { which, .. }
            | Self::SwapIn { which, .. }
            | Self::Migrate { which, .. } => which,
        }
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::SwapOut { .. } => "swap-out",
            Self::SwapIn { .. } => "swap-in",
            Self::Migrate { .. } => "migrate",
        }
    }
}

/// What became of an offload process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SwapReport {
    /// `swap-out`, `swap-in` or `migrate`.
    pub operation: String,
    /// The host process.
    pub pid: i32,
    /// The offload process.
    pub process: String,
    /// The card that it was on; for `swap-in` the last one.
    pub from: u32,
    /// The card that it is on now, if it is on one.
    pub card: Option<u32>,
    /// The directory that was named, and holds the image of a process that was swapped out.
    pub dir: Option<PathBuf>,
    /// Bytes of its local store.
    pub store_bytes: u64,
    /// Bytes of its image on disk.
    pub file_bytes: u64,
    /// Seconds that it took to empty its channels.
    pub pause_seconds: f64,
    /// Seconds until it was saved, from there.
    pub capture_seconds: f64,
    /// Seconds until it was rebuilt.
    pub restore_seconds: f64,
    /// Seconds in all.
    pub total_seconds: f64,
    /// Who did what when, for `snapify report`.
    #[serde(default)]
    pub timeline: Option<Timeline>,
}

/// The cards of an application, by their own numbers.
#[derive(Clone, Debug)]
pub(crate) struct Cards {
    /// Which card serves each number that the program knows.
    pub card_of: Vec<u32>,
    /// How many there are.
    pub count: u32,
    /// Those that have died.
    pub lost: Vec<u32>,
}

impl Cards {
    /// The card behind a number that the program knows.
    fn real(&self, number: u32) -> u32 {
        let card = self.card_of.get(number as usize);
        card.copied().unwrap_or(number)
    }

    /// A number by which the program knows a card.
    fn number(&self, card: u32) -> Result<u32, JobError> {
        if card >= self.count {
            let cards = self.count;
            return Err(JobError::Refused(format!(
                "there is no card {card}: the application has {cards}, numbered from 0"
            )));
        }
        if self.lost.contains(&card) {
            return Err(JobError::Refused(format!("card {card} has died")));
        }
        (0..)
            .zip(&self.card_of)
            .find(|(_, real)| **real == card)
            .map(|(number, _)| number)
            .ok_or_else(|| {
                JobError::Refused(format!(
                    "the program has no connection with card {card}: it was restarted on other ones"
                ))
            })
    }
}

/// The notes of an application on its swapped-out processes.
fn registry_of(application: &Application<'_>) -> Result<Registry, JobError> {
    folder_of(application)
        .map(Registry::of)
        .ok_or_else(no_cards)
}

/// The folder in which a running application is found.
fn folder_of<'a>(application: &'a Application<'_>) -> Option<&'a Path> {
    application.folder.as_deref()
}

/// The error of an application without cards.
pub(crate) fn no_cards() -> JobError {
    JobError::Refused("the program uses no cards".into())
}

/// Does what was asked.
///
/// # Errors
/// On any failure the process is where it was.
pub(crate) fn carry_out(
    application: &Application<'_>,
    cards: &Cards,
    order: &Order,
    link: &Link,
) -> Result<SwapReport, JobError> {
    match order {
        Order::SwapOut { dir, which } => outward::swap_out(application, cards, which, dir, link),
        Order::SwapIn { card, which } => inward::swap_in(application, cards, which, *card, link),
        Order::Migrate { card, which } => migrate::migrate(application, cards, which, *card, link),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_behind_the_programs_numbers() {
        let cards = Cards {
            card_of: vec![1, 1, 0],
            count: 4,
            lost: vec![0],
        };
        assert_eq!(cards.real(2), 0);
        assert_eq!(cards.number(1).ok(), Some(0));
        let refused = |card| cards.number(card).unwrap_err().to_string();
        assert!(refused(0).contains("has died"));
        assert!(refused(3).contains("no connection"));
        assert!(refused(4).contains("there is no card 4"));
    }
}
