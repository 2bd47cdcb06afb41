//! Device images in an offload process.

use super::{Process, Result};
use crate::layout::STORE_BASE;
use crate::wire::{LoadReply, LoadRequest, Segment, SymbolsRequest, command};
use snapify_fabric::ring::MAX_PAYLOAD;
use std::sync::PoisonError;

/// A device image loaded into an offload process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Library {
    number: u32,
}

/// Names are looked up in groups of so many bytes: request and answer must fit a ring's record.
const GROUP: usize = 16 << 10;

impl Process {
    /// Loads a device image (a shared library). `name` is for messages.
    ///
    /// Its writable memory moves into the local store, so that globals are transferred like buffers.
    ///
    /// # Errors
    /// If the dynamic loader refuses it, in its words.
    pub fn load_library(&self, image: &[u8], name: &str) -> Result<Library> {
        let runtime = self.runtime.upgrade();
        let _lifecycle = runtime.as_ref().map(|runtime| self.lifecycle(runtime));
        let operation = || format!("load {name}");
        let LoadReply { library, segments } =
            self.load(image, name, libc::RTLD_NOW | libc::RTLD_LOCAL)?;
        let mut placed = Vec::new();
        for (address, bytes) in segments {
            let offset = self.allocate(bytes)?;
            placed.push(Segment {
                address,
                bytes,
                offset,
            });
        }
        let request = self.to_json(&placed)?;
        self.command(command::MAP, 0, &request, 4096, &operation)?;
        self.segments
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(placed);
        Ok(Library { number: library })
    }

    /// Loads a shared library with flags of dlopen(3); its memory stays private to the process. `name` is for messages.
    ///
    /// # Errors
    /// If the dynamic loader refuses it, in its words.
    pub fn open_library(&self, image: &[u8], name: &str, flags: i32) -> Result<Library> {
        let runtime = self.runtime.upgrade();
        let _lifecycle = runtime.as_ref().map(|runtime| self.lifecycle(runtime));
        let LoadReply { library, .. } = self.load(image, name, flags)?;
        Ok(Library { number: library })
    }

    /// Unloads what [`open_library`](Self::open_library) has loaded.
    ///
    /// # Errors
    /// If it is unloaded already, or the process died.
    pub fn close_library(&self, library: Library) -> Result<()> {
        let runtime = self.runtime.upgrade();
        let _lifecycle = runtime.as_ref().map(|runtime| self.lifecycle(runtime));
        let number = u64::from(library.number);
        self.command(command::UNLOAD, number, &[], 1024, &|| {
            "unload a library".into()
        })
        .map(|_| ())
    }

    /// Has the process load an image that passes through the store.
    fn load(&self, image: &[u8], name: &str, flags: i32) -> Result<LoadReply> {
        let offset = self.allocate(image.len() as u64)?;
        let loaded = self.load_from(image, name, flags, offset);
        self.free(STORE_BASE + offset)?;
        loaded
    }

    fn load_from(&self, image: &[u8], name: &str, flags: i32, offset: u64) -> Result<LoadReply> {
        self.copy_in(offset, image)?;
        let request = LoadRequest {
            offset,
            bytes: image.len() as u64,
            name: name.to_owned(),
            flags,
        };
        let request = self.to_json(&request)?;
        let answer = self.command(command::LOAD, 0, &request, 16 << 10, &|| {
            format!("load {name}")
        })?;
        self.parse(&answer)
    }

    /// Device addresses of functions and objects of a library by name; nothing for those it lacks.
    ///
    /// # Errors
    /// If the process died.
    pub fn function_addresses(
        &self,
        library: &Library,
        names: &[&str],
    ) -> Result<Vec<Option<u64>>> {
        self.symbols(Some(library.number), names)
    }

    /// Device addresses of what the process's program and all its libraries export, by name.
    ///
    /// # Errors
    /// If the process died.
    pub fn exported(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
        self.symbols(None, names)
    }

    /// Which of these addresses functions of the process have said they go on using.
    ///
    /// # Errors
    /// If the process died.
    pub fn referred(&self, addresses: &[u64]) -> Result<Vec<u64>> {
        // An address takes at most 21 bytes, in the request and in the answer.
        let mut referred = Vec::new();
        for group in addresses.chunks(GROUP / 21) {
            let request = self.to_json(&group)?;
            let answer = self.command(command::REFERRED, 0, &request, GROUP, &|| {
                "ask what is in use".into()
            })?;
            referred.extend(self.parse::<Vec<u64>>(&answer)?);
        }
        Ok(referred)
    }

    /// Says in the place of a function that the memory at an address is used.
    ///
    /// # Errors
    /// If the process died.
    pub fn refer(&self, address: u64) -> Result<()> {
        self.command(command::REFER, address, &[], 1024, &|| {
            "refer to a buffer".into()
        })
        .map(|_| ())
    }

    fn symbols(&self, library: Option<u32>, names: &[&str]) -> Result<Vec<Option<u64>>> {
        let mut addresses = Vec::with_capacity(names.len());
        let mut rest = names;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |name: &&&str| {
                // JSON writes a byte of a name with at most six, and an address with at most 21.
                bytes += name.len() * 6 + 24;
                bytes <= GROUP
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (group, later) = rest.split_at(count);
            rest = later;
            let request = SymbolsRequest {
                library,
                names: group.iter().map(|&name| name.to_owned()).collect(),
            };
            let request = self.to_json(&request)?;
            let answer = self.command(command::SYMBOLS, 0, &request, MAX_PAYLOAD, &|| {
                "look up symbols".into()
            })?;
            let found: Vec<Option<u64>> = self.parse(&answer)?;
            addresses.extend(found);
        }
        if addresses.len() == names.len() {
            Ok(addresses)
        } else {
            Err(self.refused(
                "look up symbols".into(),
                "it answered for others than were asked".into(),
            ))
        }
    }

    fn to_json<T: serde::Serialize>(&self, message: &T) -> Result<Vec<u8>> {
        serde_json::to_vec(message)
            .map_err(|error| self.refused("write a command".into(), error.to_string()))
    }

    fn parse<T: serde::de::DeserializeOwned>(&self, answer: &[u8]) -> Result<T> {
        serde_json::from_slice(answer)
            .map_err(|error| self.refused("read an answer".into(), error.to_string()))
    }
}
