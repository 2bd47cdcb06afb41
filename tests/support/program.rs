//! Small programs, compiled on first use.

use crate::stage::{programs, stage};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

/// How a program in `tests/programs` is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    /// C with POSIX threads.
    C,
    /// C++ with its standard threads.
    Cxx,
    /// C with MPI.
    Mpi,
    /// C with OpenMP target regions, by stock clang-16.
    OpenMp,
    /// C that uses cards by COI and `snapify.h`.
    CoiHost,
    /// C that runs on cards, started by COI.
    CoiSink,
    /// A library that is loaded on cards.
    CoiLibrary,
}

/// The executable of `tests/programs/<source>`.
pub fn compile(source: &str, language: Language) -> PathBuf {
    type Slot = Arc<OnceLock<PathBuf>>;
    static DONE: OnceLock<Mutex<HashMap<String, Slot>>> = OnceLock::new();
    let slot = {
        let mut done = DONE
            .get_or_init(Mutex::default)
            .lock()
            .expect("no compilation panicked");
        done.entry(source.to_owned()).or_default().clone()
    };
    slot.get_or_init(|| build(source, language)).clone()
}

fn build(source: &str, language: Language) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(source);
    let to = programs().join(from.file_stem().expect("a source file has a name"));
    let mut command = match language {
        Language::C | Language::CoiHost | Language::CoiSink | Language::CoiLibrary => {
            Command::new("cc")
        }
        Language::Cxx => Command::new("c++"),
        Language::Mpi => Command::new("mpicc"),
        Language::OpenMp => Command::new("clang-16"),
    };
    command.args(["-O2", "-pthread", "-o"]).arg(&to).arg(&from);
    if language == Language::OpenMp {
        command.args(["-fopenmp", "-fopenmp-targets=x86_64-pc-linux-gnu"]);
    }
    let libraries: &[&str] = match language {
        Language::CoiHost => &["-lcoi_host"],
        Language::CoiSink => &["-rdynamic", "-lcoi_device"],
        Language::CoiLibrary => &["-shared", "-fPIC"],
        _ => &[],
    };
    if !libraries.is_empty() {
        let include = stage().join("include");
        command
            .args(["-Wall", "-Wextra", "-Werror", "-I"])
            .arg(include.join("coi"))
            .arg("-I")
            .arg(include)
            .arg("-L")
            .arg(stage().join("lib"))
            .args(libraries);
    }
    let done = command.arg("-lm").status().expect("run a compiler");
    assert!(done.success(), "cannot compile {}", from.display());
    to
}

/// The executable of `examples/<name>.c`, built by `make examples`.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    let path = stage().join("examples").join(name);
    assert!(
        path.exists(),
        "{} is missing: run the tests by `make test`",
        path.display()
    );
    path
}
