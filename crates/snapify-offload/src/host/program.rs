//! What offload processes execute: the runtime's own program, or one that the host process brings along.

use super::{Process, Result, Runtime};
use crate::wire::ProgramSpec;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A program that the host process brings along. It must call [`attach`](crate::sink::attach) at its start.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// What it is called in its own arguments.
    pub name: &'a str,
    /// The executable: an ELF file.
    pub image: &'a [u8],
    /// Its arguments, without the name.
    pub args: &'a [String],
    /// Whether it has the environment of this process.
    pub inherit: bool,
    /// What its environment has beside; of several of a name the last one counts. `LD_LIBRARY_PATH` adds to where it looks
    /// for libraries.
    pub env: &'a [(String, String)],
    /// Whether it has this process's standard output and error.
    pub outputs: bool,
}

impl Program<'_> {
    pub(super) fn spec(&self) -> ProgramSpec {
        ProgramSpec {
            name: self.name.to_owned(),
            args: self.args.to_vec(),
        }
    }

    /// The executable in a file that the card's daemon can read, wherever the image came from.
    pub(super) fn file(&self) -> io::Result<OwnedFd> {
        let memory = rustix::fs::memfd_create("snapify-program", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(memory);
        file.write_all(self.image)?;
        // The daemon reads from where this descriptor stands.
        io::Seek::rewind(&mut file)?;
        Ok(file.into())
    }

    pub(super) fn environment(&self, cards: u32) -> Vec<(String, String)> {
        let mut env = if self.inherit {
            environment(cards)
        } else {
            Vec::new()
        };
        let searched = |name: &str| name == "LD_LIBRARY_PATH";
        env.retain(|(name, _)| {
            searched(name) || !self.env.iter().any(|(replaced, _)| replaced == name)
        });
        let (search, others): (Vec<_>, Vec<_>) = self
            .env
            .iter()
            .cloned()
            .partition(|(name, _)| searched(name));
        // The order in which libraries are looked for.
        search.into_iter().chain(env).chain(others).collect()
    }
}

impl Runtime {
    /// Starts an offload process that executes a program of the host's own; returns as soon as it has attached itself,
    /// which is before its `main` runs.
    ///
    /// # Errors
    /// If there is no such card, or the program cannot be executed or ends before it is attached.
    pub fn create_process_of(
        self: &Arc<Self>,
        card: u32,
        program: &Program<'_>,
    ) -> Result<Arc<Process>> {
        self.create(card, Some(program))
    }
}

/// The environment, but for what is no text.
///
/// Cards share the processors of this machine. With several of them the threads of one card's OpenMP runtime must not
/// spin while they wait for work, because that takes the processors from the others; unless the user wants it so.
pub(super) fn environment(cards: u32) -> Vec<(String, String)> {
    let mut env: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let chosen = |(name, _): &(String, String)| {
        matches!(&**name, "OMP_WAIT_POLICY" | "KMP_BLOCKTIME" | "KMP_LIBRARY")
    };
    if cards > 1 && !env.iter().any(chosen) {
        env.push(("OMP_WAIT_POLICY".into(), "passive".into()));
    }
    env
}
