//! Libraries in processes on cards, and those that are registered because others may need them.

use crate::error::{Code, Failure, Result};
use crate::host::Host;
use crate::image::Image;
use crate::process::Process;
use snapify_offload::OffloadError;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

/// A library in a process.
pub struct Library {
    /// The handle of the process.
    pub process: u64,
    /// Its name, unique in the process.
    pub name: String,
    /// As the process knows it.
    pub loaded: snapify_offload::host::Library,
}

/// A library in this process's memory.
pub struct Registered {
    name: String,
    needed: Vec<String>,
    image: Vec<u8>,
}

impl Registered {
    /// Takes a copy of an image: the program may unload it.
    pub fn new(image: &[u8]) -> Result<Self> {
        let Image { soname, needed } = Image::parse(image)?;
        let name = soname.ok_or_else(|| no_name("a library"))?;
        Ok(Self {
            name,
            needed,
            image: image.to_vec(),
        })
    }
}

fn no_name(what: &str) -> Failure {
    let text = format!("{what} has no soname, and no name was given for it");
    Failure::new(Code::ArgumentMismatch, text)
}

/// Loads a library; gives its handle, and whether it was there already.
pub fn load(
    host: &Host,
    handle: u64,
    process: &Arc<Process>,
    image: &[u8],
    name: Option<&str>,
    flags: i32,
) -> Result<(u64, bool)> {
    let Image { soname, needed } = Image::parse(image)?;
    let name = name.map(str::to_owned).or(soname);
    let name = name.ok_or_else(|| no_name("the library"))?;
    // Held until the library is on the list: no other thread loads the same one meanwhile.
    let mut resident = process
        .resident
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let known = host.libraries.all().into_iter();
    let known = known
        .filter(|(_, library)| library.process == handle)
        .find(|(_, library)| library.name == name);
    if let Some((known, _)) = known {
        return Ok((known, true));
    }
    let registered = host
        .registered
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    for dependency in in_order(&registered, &needed) {
        if dependency.name == name {
            let text = format!("{name} is also the name of a library that it needs");
            return Err(Failure::new(Code::ArgumentMismatch, text));
        }
        if resident.insert(dependency.name.clone()) {
            let flags = libc::RTLD_NOW | libc::RTLD_GLOBAL;
            let loaded = process
                .offload
                .open_library(&dependency.image, &dependency.name, flags);
            if let Err(error) = loaded {
                resident.remove(&dependency.name);
                return Err(refusal(error));
            }
        }
    }
    let loaded = process
        .offload
        .open_library(image, &name, flags)
        .map_err(refusal)?;
    let library = Library {
        process: handle,
        name,
        loaded,
    };
    Ok((host.libraries.add(Arc::new(library)), false))
}

/// The registered libraries that are needed, each after those that it needs itself.
fn in_order(registered: &[Arc<Registered>], needed: &[String]) -> Vec<Arc<Registered>> {
    fn visit(
        registered: &[Arc<Registered>],
        names: &[String],
        seen: &mut Vec<String>,
        order: &mut Vec<Arc<Registered>>,
    ) {
        for name in names {
            let found = registered.iter().find(|library| library.name == *name);
            if let Some(library) = found
                && !seen.contains(name)
            {
                seen.push(name.clone());
                visit(registered, &library.needed, seen, order);
                order.push(library.clone());
            }
        }
    }
    let mut order = Vec::new();
    visit(registered, needed, &mut Vec::new(), &mut order);
    order
}

/// Why the dynamic loader refuses a library, by its words (dlerror(3) has nothing else).
fn refusal(error: OffloadError) -> Failure {
    let mut failure = Failure::from(error);
    if failure.code == Code::Error {
        failure.code = if failure.text.contains("undefined symbol") {
            Code::UndefinedSymbol
        } else if failure.text.contains("cannot open shared object file") {
            Code::MissingDependency
        } else {
            Code::InvalidFile
        };
    }
    failure
}

/// Reads a file that is looked for as libraries are: as it is named; a name without a directory also in those of `search`,
/// or of `SINK_LD_LIBRARY_PATH`.
pub fn read_file(name: &str, search: Option<&str>) -> Result<Vec<u8>> {
    let mut places = vec![PathBuf::from(name)];
    if !name.starts_with('/') {
        let listed = search.map(str::to_owned);
        let listed = listed.or_else(|| std::env::var("SINK_LD_LIBRARY_PATH").ok());
        let listed = listed.unwrap_or_default();
        let directories = listed.split(':').filter(|dir| !dir.is_empty());
        places.extend(directories.map(|directory| Path::new(directory).join(name)));
    }
    let Some(path) = places.iter().find(|path| path.exists()) else {
        let text = format!("there is no file {name}");
        return Err(Failure::new(Code::DoesNotExist, text));
    };
    let fail = |what: &dyn std::fmt::Display| {
        let text = format!("cannot use {}: {what}", path.display());
        Failure::new(Code::InvalidFile, text)
    };
    let seen = std::fs::metadata(path).map_err(|error| fail(&error))?;
    if !seen.is_file() || seen.len() == 0 {
        return Err(fail(&"it is no regular file, or empty"));
    }
    std::fs::read(path).map_err(|error| fail(&error))
}

/// Checks the file that bytes were taken from, which is all that is done with it.
pub fn check_origin(file: Option<&str>, offset: u64, bytes: u64) -> Result<()> {
    let Some(file) = file else {
        return if offset == 0 {
            Ok(())
        } else {
            Err(Code::ArgumentMismatch.into())
        };
    };
    let seen = std::fs::metadata(file).map_err(|error| {
        Failure::new(Code::DoesNotExist, format!("cannot find {file}: {error}"))
    })?;
    if !seen.is_file() || seen.len() == 0 {
        return Err(Code::InvalidFile.into());
    }
    match offset.checked_add(bytes) {
        Some(end) if end <= seen.len() => Ok(()),
        _ => Err(Code::OutOfRange.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(name: &str, needed: &[&str]) -> Arc<Registered> {
        Arc::new(Registered {
            name: name.into(),
            needed: needed.iter().map(|name| (*name).to_owned()).collect(),
            image: Vec::new(),
        })
    }

    #[test]
    fn what_is_needed_comes_first_even_in_circles() {
        let registered = [
            library("a", &["b", "c"]),
            library("b", &["c"]),
            library("c", &["b", "libc.so.6"]),
            library("d", &[]),
        ];
        let order = in_order(&registered, &["a".into(), "libm.so.6".into()]);
        let names: Vec<_> = order.iter().map(|library| &*library.name).collect();
        assert_eq!(names, ["c", "b", "a"]);
    }
}
