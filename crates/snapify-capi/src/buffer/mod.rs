//! Buffers: one object each, with a copy on the host and one in each process.

pub mod section;
mod state;

use crate::error::{Code, Failure, Result};
use crate::event::Event;
use crate::memory::{self, Lent, Pages};
use crate::process::Process;
use snapify_offload::OffloadError;
use state::{HOST, Piece, Place, Validity};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A buffer.
pub struct Buffer {
    /// Its bytes.
    pub size: u64,
    /// Whether operations on it come one after the other: those that read after the last that writes, and those that write
    /// after all before.
    ordered: bool,
    memory: HostCopy,
    copies: Vec<SinkCopy>,
    state: Mutex<Validity>,
    /// Held while copies are made valid, so that no two operations bring the same bytes.
    moving: Mutex<()>,
    uses: Mutex<Uses>,
}

/// The copy on the host.
enum HostCopy {
    Own(Pages),
    Program(Lent),
}

/// The copy in a process.
struct SinkCopy {
    /// The process's handle, and the process.
    handle: u64,
    process: Arc<Process>,
    address: u64,
    /// The program has made the memory, and frees it.
    foreign: bool,
}

#[derive(Default)]
struct Uses {
    last_write: Option<Arc<Event>>,
    /// Since the last write.
    reads: Vec<Arc<Event>>,
    /// How often it is mapped.
    maps: usize,
    /// No more operations begin.
    closing: bool,
}

/// Where the memory of a new buffer comes from.
pub enum Memory {
    /// New memory, on the host and in the processes.
    New,
    /// The copy on the host is the program's.
    Host(Lent),
    /// The copy in the process is the program's.
    Sink(u64),
}

/// What a buffer is mapped by.
pub struct MapInstance {
    /// The buffer.
    pub buffer: Arc<Buffer>,
}

impl Buffer {
    /// A new buffer, with a copy in each of the processes.
    pub fn new(
        size: u64,
        ordered: bool,
        memory: Memory,
        processes: &[(u64, Arc<Process>)],
    ) -> Result<Arc<Self>> {
        // Pages of their own: functions may rely on buffers being aligned to them.
        let rounded = size.checked_next_multiple_of(4096);
        let rounded = rounded.ok_or(Code::OutOfMemory)?;
        let mut buffer = Self {
            size,
            ordered,
            memory: match memory {
                Memory::Host(lent) => HostCopy::Program(lent),
                Memory::New | Memory::Sink(_) => HostCopy::Own(Pages::new(size)?),
            },
            copies: Vec::new(),
            state: Mutex::new(Validity::new(processes.len() + 1, HOST, size)),
            moving: Mutex::default(),
            uses: Mutex::default(),
        };
        for (handle, process) in processes {
            let (address, foreign) = match memory {
                Memory::Sink(address) => (address, true),
                Memory::New | Memory::Host(_) => match process.allocate(rounded) {
                    Ok(address) => (address, false),
                    Err(failure) => {
                        // Those that were made before.
                        let _ = buffer.release();
                        return Err(failure);
                    }
                },
            };
            buffer.copies.push(SinkCopy {
                handle: *handle,
                process: process.clone(),
                address,
                foreign,
            });
        }
        if matches!(memory, Memory::Sink(_)) {
            buffer.state = Mutex::new(Validity::new(processes.len() + 1, 1, size));
        }
        Ok(Arc::new(buffer))
    }

    /// Sets its content on the host, before anybody else has it.
    pub fn initialize(&self, content: Lent) {
        content.copy_to(self.host());
    }

    /// The place of a process, by its handle.
    ///
    /// # Errors
    /// `MissingDependency` if the buffer was not made for it.
    pub fn place_of(&self, process: u64) -> Result<Place> {
        let found = self.copies.iter().position(|copy| copy.handle == process);
        found.map(|index| index + 1).ok_or_else(|| {
            Failure::new(
                Code::MissingDependency,
                "the buffer was not created for this process",
            )
        })
    }

    /// The address of a copy in a process.
    pub fn address(&self, place: Place) -> Result<u64> {
        let copy = place
            .checked_sub(1)
            .and_then(|index| self.copies.get(index));
        copy.map(|copy| copy.address)
            .ok_or_else(|| Code::OutOfRange.into())
    }

    /// Checks that a range lies in the buffer, and is not empty.
    pub fn check(&self, offset: u64, bytes: u64) -> Result<()> {
        let end = offset.checked_add(bytes);
        if bytes == 0 || end.is_none_or(|end| end > self.size) {
            let text = format!(
                "{bytes} bytes at offset {offset} are not in a buffer of {} bytes",
                self.size
            );
            return Err(Failure::new(Code::OutOfRange, text));
        }
        Ok(())
    }

    /// Takes a place in the order of the operations on the buffer, and tells which ones come before. The caller holds the
    /// host's `ordering`.
    pub fn enter(&self, done: &Arc<Event>, writes: bool) -> Result<Vec<Arc<Event>>> {
        let mut uses = self.uses();
        if uses.closing {
            return Err(Code::InvalidHandle.into());
        }
        uses.reads.retain(|event| event.outcome().is_none());
        let mut before: Vec<_> = uses.last_write.iter().cloned().collect();
        if writes {
            if !self.ordered {
                // Not to be waited for by others, but by the buffer's end.
                let last = uses.last_write.take();
                uses.reads.extend(last);
            } else {
                before.append(&mut uses.reads);
            }
            uses.last_write = Some(done.clone());
        } else {
            uses.reads.push(done.clone());
        }
        if !self.ordered {
            before.clear();
        }
        // An operation may use a buffer twice.
        before.retain(|event| !Arc::ptr_eq(event, done) && event.outcome().is_none());
        Ok(before)
    }

    /// Whether it is mapped.
    pub fn is_mapped(&self) -> bool {
        self.uses().maps > 0
    }

    /// It is mapped once more.
    pub fn map(&self) {
        self.uses().maps += 1;
    }

    /// One mapping less.
    pub fn unmap(&self) {
        let mut uses = self.uses();
        uses.maps = uses.maps.saturating_sub(1);
    }

    /// Lets no more operations begin.
    ///
    /// # Errors
    /// `Retry` while it is mapped.
    pub fn close(&self) -> Result<()> {
        let mut uses = self.uses();
        if uses.maps > 0 {
            return Err(Failure::new(Code::Retry, "the buffer is mapped"));
        }
        uses.closing = true;
        Ok(())
    }

    /// Waits for all operations, and gives the memory back.
    pub fn release(&self) -> Result<()> {
        let pending = {
            let mut uses = self.uses();
            let mut pending = std::mem::take(&mut uses.reads);
            pending.extend(uses.last_write.take());
            pending
        };
        for event in pending {
            let _ = event.wait();
        }
        for copy in self.copies.iter().filter(|copy| !copy.foreign) {
            match copy.process.free(copy.address) {
                // The memory of a process that has ended is free.
                Ok(()) => {}
                Err(failure) if failure.code == Code::ProcessDied => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// The copy on the host.
    pub fn host(&self) -> Lent {
        match &self.memory {
            HostCopy::Own(pages) => pages.lend(),
            HostCopy::Program(lent) => *lent,
        }
    }

    /// Makes a range valid in a place.
    pub fn bring(&self, place: Place, start: u64, end: u64) -> Result<()> {
        let _moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = self.state().missing(place, start, end);
        for piece in missing {
            self.transfer(place, piece)?;
            self.state().add(place, piece.start, piece.end);
        }
        self.state().add(place, start, end);
        Ok(())
    }

    /// A range was changed, or will be, in a place.
    pub fn written(&self, place: Place, start: u64, end: u64) {
        self.state().write(place, start, end);
    }

    /// Changes what is known of a place, without moving anything.
    pub fn set_valid(&self, place: Place, valid: bool) {
        let mut state = self.state();
        if valid {
            state.add(place, 0, self.size);
        } else {
            state.drop_from(place, 0, self.size);
        }
    }

    /// Whether something of the buffer is valid elsewhere than in a place.
    pub fn is_elsewhere(&self, place: Place) -> bool {
        self.state().is_elsewhere(place, 0, self.size)
    }

    /// All processes in which something of the buffer is valid.
    pub fn owners(&self) -> Vec<Place> {
        let state = self.state();
        let places = 1..=self.copies.len();
        places.filter(|&place| state.is_in(place)).collect()
    }

    /// Writes a range: in a certain place, or in those where it is valid.
    pub fn write(&self, place: Option<Place>, offset: u64, from: Lent) -> Result<()> {
        let end = offset + from.bytes() as u64;
        let pieces = match place {
            Some(place) => vec![Piece {
                place,
                start: offset,
                end,
            }],
            None => self.state().sources(offset, end),
        };
        for piece in pieces {
            let part = from.part(piece.start - offset, piece.end - piece.start)?;
            if piece.place == HOST {
                part.copy_to(self.host().part(piece.start, piece.end - piece.start)?);
            } else {
                let copy = &self.copies[piece.place - 1];
                memory::write(&copy.process.offload, copy.address + piece.start, part)?;
            }
            self.state().write(piece.place, piece.start, piece.end);
        }
        Ok(())
    }

    /// Reads a range from where it is valid.
    pub fn read(&self, offset: u64, to: Lent) -> Result<()> {
        let pieces = self.state().sources(offset, offset + to.bytes() as u64);
        for piece in pieces {
            let part = to.part(piece.start - offset, piece.end - piece.start)?;
            self.read_from(piece.place, piece.start, part)?;
        }
        Ok(())
    }

    /// Copies a range of another buffer, or of this one, to where it is valid or to a certain place.
    pub fn copy_from(
        &self,
        place: Option<Place>,
        offset: u64,
        source: &Self,
        from: u64,
        bytes: u64,
    ) -> Result<()> {
        let pieces = source.state().sources(from, from + bytes);
        for piece in pieces {
            let to = offset + (piece.start - from);
            let bytes = piece.end - piece.start;
            let targets = match place {
                Some(place) => vec![Piece {
                    place,
                    start: to,
                    end: to + bytes,
                }],
                None => self.state().sources(to, to + bytes),
            };
            for target in targets {
                let at = piece.start + (target.start - to);
                let bytes = target.end - target.start;
                match (target.place, piece.place) {
                    (HOST, place) => {
                        source.read_from(place, at, self.host().part(target.start, bytes)?)?;
                    }
                    (place, HOST) => {
                        let copy = &self.copies[place - 1];
                        let part = source.host().part(at, bytes)?;
                        memory::write(&copy.process.offload, copy.address + target.start, part)?;
                    }
                    (place, other) => {
                        let (to, from) = (&self.copies[place - 1], &source.copies[other - 1]);
                        let count = usize::try_from(bytes).map_err(|_| Code::OutOfRange)?;
                        from.process.offload.copy_to(
                            &to.process.offload,
                            to.address + target.start,
                            from.address + at,
                            count,
                        )?;
                    }
                }
                self.state().write(target.place, target.start, target.end);
            }
        }
        Ok(())
    }

    /// Copies what is valid in one place to another.
    fn transfer(&self, to: Place, piece: Piece) -> Result<()> {
        let bytes = piece.end - piece.start;
        if to == HOST {
            return self.read_from(
                piece.place,
                piece.start,
                self.host().part(piece.start, bytes)?,
            );
        }
        let target = &self.copies[to - 1];
        if piece.place == HOST {
            let part = self.host().part(piece.start, bytes)?;
            return memory::write(&target.process.offload, target.address + piece.start, part);
        }
        let source = &self.copies[piece.place - 1];
        let count = usize::try_from(bytes).map_err(|_| Code::OutOfRange)?;
        let copied: Result<(), OffloadError> = source.process.offload.copy_to(
            &target.process.offload,
            target.address + piece.start,
            source.address + piece.start,
            count,
        );
        Ok(copied?)
    }

    fn read_from(&self, place: Place, offset: u64, to: Lent) -> Result<()> {
        if place == HOST {
            self.host().part(offset, to.bytes() as u64)?.copy_to(to);
            return Ok(());
        }
        let copy = &self.copies[place - 1];
        memory::read(&copy.process.offload, to, copy.address + offset)
    }

    fn state(&self) -> MutexGuard<'_, Validity> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
