//! The engine: saves running processes from outside through ptrace, and builds them again with the same ids,
//! as an ordinary user, in fresh namespaces.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod abi;
pub mod attributes;
pub mod capture;
pub mod check;
pub mod clocks;
pub mod context;
pub mod error;
pub mod external;
pub mod files;
pub mod freeze;
pub mod identity;
pub mod ids;
pub mod image;
pub mod ipc;
mod ldt;
pub mod memory;
mod parts;
pub mod path;
pub mod privileges;
pub mod procfs;
pub mod ptrace;
pub mod remote;
mod reopen;
pub mod restore;
pub mod scratch;
mod seccomp;
pub mod signals;
pub mod stops;
pub mod threads;
pub mod timers;
pub mod tracking;
pub mod tree;
mod user_ns;

pub use check::{check, check_except};
pub use error::{Obstacle, ProcError};
pub use external::{Declared, External, Outside};
pub use ids::{Pid, RemoteAddr, RemoteFd, Tid};
pub use image::{ProcessImage, TreeImage};
pub use memory::Form;
pub use restore::{LaunchSpec, Orphans, RestorePlan, Restored, launch, preflight, restore};
pub use tracking::{Changed, Changes, Tracking};
pub use tree::{Copies, Frozen, NotCopied, Outline, Rest, reap_copies};
