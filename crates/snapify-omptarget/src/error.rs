//! What the plugin refuses, and why.

use snapify_offload::OffloadError;

/// A function of the plugin could not do its work.
#[derive(thiserror::Error, Debug)]
pub enum PluginError {
    /// The offload runtime failed; its error names the card.
    #[error("{operation}: {source}")]
    Offload {
        /// What was tried.
        operation: String,
        /// Why it failed.
        source: OffloadError,
    },
    /// A device number beyond those that this plugin announced.
    #[error("there is no card {device}: this program has {cards}")]
    NoSuchDevice {
        /// The number.
        device: i32,
        /// How many cards there are.
        cards: usize,
    },
    /// The device was used before it was initialized.
    #[error("card {card}: its offload process was not started")]
    NotStarted {
        /// The card.
        card: u32,
    },
    /// The program requires what cards cannot do.
    #[error(
        "the program has '#pragma omp requires {clause}', which cards cannot fulfil: {why}. Map the data instead"
    )]
    Requires {
        /// The clause.
        clause: &'static str,
        /// What stands in the way.
        why: &'static str,
    },
    /// The image has no function for a target region.
    #[error(
        "card {card}: the target region at {address:#x} is in none of the images that were loaded"
    )]
    NoSuchRegion {
        /// The card.
        card: u32,
        /// What should have been its address.
        address: u64,
    },
    /// A request for memory that host and device share.
    #[error("card {card}: cannot allocate memory that the host shares with the card (kind {kind})")]
    SharedMemory {
        /// The card.
        card: u32,
        /// The kind that was asked for.
        kind: i32,
    },
    /// A size below 0, or a null pointer where there must be none.
    #[error("card {card}: cannot {operation}: bad argument ({what})")]
    BadArgument {
        /// The card.
        card: u32,
        /// What was tried.
        operation: &'static str,
        /// Which argument.
        what: &'static str,
    },
    /// The process is a child of fork.
    #[error("a process made by fork cannot use its parent's cards; it can execute a program")]
    Forked,
}
