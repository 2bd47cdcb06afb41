//! Compressing and storing as stages behind the collecting one, with a ring before each (Shen et al., section III).
//!
//! ```text
//! memory -> collect -> [ring of blocks] -> compress -> [ring of what is left of them] -> store -> file
//! ```
//!
//! Blocks are numbered as they are collected, and are stored in that order whoever compresses them: the same
//! memory gives the same file, however many workers there are. Compressed blocks are gathered into large writes.

use super::auto::{Encoders, Rates};
use super::block::Filling;
use super::job::Job;
use super::options::WriteOptions;
use super::ring::Ring;
use crate::aligned::AlignedBuf;
use crate::checksum::xxh3_64;
use crate::codec::{Codec, room};
use crate::format::BLOCK_BYTES;
use crate::types::PAGE;
use crate::{Compression, StoreError};
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

/// Writes that are in flight at a time where they need not follow each other.
const WRITES: usize = 4;

/// The rings, and the blocks that go round.
pub(super) struct Stages<'a> {
    options: &'a WriteOptions,
    pub(super) rates: Rates,
    collected: Ring<Filling>,
    compressed: Ring<Ready>,
    /// What was taken from the second ring and did not fit a write; whoever holds it stores next.
    storing: Mutex<Option<Ready>>,
    fillings: Pool<Filling>,
    bufs: Pool<AlignedBuf>,
}

/// A block as it is to be stored.
pub(super) struct Ready {
    number: u32,
    data: Data,
    /// What it is called in the index.
    pub(super) codec: Codec,
    /// Bytes without the fill to the next page.
    pub(super) bytes: u32,
    pub(super) checksum: u64,
}

enum Data {
    Plain(Box<Filling>),
    Packed(AlignedBuf),
}

impl Ready {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// What is written: whole pages.
    fn pages(&self) -> &[u8] {
        let bytes = (self.bytes as usize).next_multiple_of(PAGE);
        match &self.data {
            Data::Plain(block) => block.bytes(),
            Data::Packed(buf) => &buf[..bytes],
        }
    }
}

/// Things that are used again.
struct Pool<T>(Mutex<Vec<T>>);

impl<T> Pool<T> {
    fn get(&self, new: impl FnOnce() -> T) -> T {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spare.pop().unwrap_or_else(new)
    }

    fn give(&self, thing: T) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        spare.push(thing);
    }
}

impl<'a> Stages<'a> {
    pub(super) fn new(options: &'a WriteOptions) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            options,
            rates: Rates::new(processors.min(options.workers())),
            collected: Ring::new(options.queue()),
            compressed: Ring::new(options.queue()),
            storing: Mutex::new(None),
            fillings: Pool(Mutex::default()),
            bufs: Pool(Mutex::default()),
        }
    }

    /// Threads that compress.
    pub(super) fn compressors(&self) -> usize {
        self.options.workers()
    }

    /// Threads that collect: reading memory takes little beside compressing it.
    pub(super) fn collectors(&self) -> usize {
        self.options.workers().min(4)
    }

    /// Threads that store.
    pub(super) fn storers(&self, in_order: bool) -> usize {
        if in_order { 1 } else { WRITES }
    }

    /// Takes block `number`, which has been collected; leaves an empty one. `false` if all has been stopped.
    pub(super) fn collected(&self, number: u32, block: &mut Filling) -> bool {
        let mut next = self.fillings.get(Filling::new);
        next.clear();
        let full = std::mem::replace(block, next);
        self.collected.put(u64::from(number), full).is_ok()
    }

    /// Tells that `end` blocks were collected in all.
    pub(super) fn all_collected(&self, end: u64) {
        self.collected.finish(end);
        self.compressed.finish(end);
    }

    pub(super) fn stop(&self) {
        self.collected.stop();
        self.compressed.stop();
    }

    /// A worker that compresses, until there is nothing more.
    pub(super) fn compress(&self) {
        let mut encoders = Encoders::default();
        while let Some((number, block)) = self.collected.take() {
            let compression = match self.options.compression {
                Compression::Auto => self.rates.choose(number, block.bytes(), &mut encoders),
                other => other,
            };
            let ready = self.pack(number as u32, block, compression, &mut encoders);
            if self.compressed.put(number, ready).is_err() {
                return;
            }
        }
    }

    fn pack(
        &self,
        number: u32,
        block: Filling,
        compression: Compression,
        encoders: &mut Encoders,
    ) -> Ready {
        if let (Some(encoder), Some(codec)) = (encoders.get(compression), compression.codec()) {
            let mut buf = self.bufs.get(|| AlignedBuf::new(room(BLOCK_BYTES)));
            // Less than a page gained is nothing gained.
            let most = block.bytes().len().saturating_sub(PAGE);
            if let Some(bytes) = encoder.encode(block.bytes(), &mut buf, most) {
                buf[bytes..bytes.next_multiple_of(PAGE)].fill(0);
                let checksum = xxh3_64(&buf[..bytes]);
                self.fillings.give(block);
                return Ready {
                    number,
                    data: Data::Packed(buf),
                    codec,
                    bytes: bytes as u32,
                    checksum,
                };
            }
            self.bufs.give(buf);
        }
        Ready {
            number,
            codec: Codec::None,
            bytes: block.bytes().len() as u32,
            checksum: xxh3_64(block.bytes()),
            data: Data::Plain(Box::new(block)),
        }
    }

    /// A worker that stores, until there is nothing more.
    pub(super) fn store(&self, job: &Job<'_>) -> Result<(), StoreError> {
        let most = self.options.write_bytes().max(BLOCK_BYTES);
        let mut gathered = AlignedBuf::new(most.next_multiple_of(PAGE));
        loop {
            // Whoever holds this takes blocks in their order; the others write meanwhile.
            let mut left = self.storing.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((write, offset)) = self.gather(&mut left, &mut gathered, job)? else {
                return Ok(());
            };
            let held = job.output().in_order().then_some(left);
            let bytes = write.len();
            self.rates.write_begins();
            let result = job.output().write(&write, offset);
            self.rates.write_ends(bytes);
            if let Write::One(ready) = write {
                self.recycle(ready);
            }
            result?;
            drop(held);
        }
    }

    /// Gives the next blocks their places in the file, and puts them together as far as they fit.
    fn gather<'b>(
        &self,
        left: &mut Option<Ready>,
        gathered: &'b mut AlignedBuf,
        job: &Job<'_>,
    ) -> Result<Option<(Write<'b>, u64)>, StoreError> {
        let mut used = 0;
        let mut begin = None;
        loop {
            let next = left.take().or_else(|| Some(self.compressed.take()?.1));
            let Some(ready) = next else { break };
            let bytes = ready.pages().len();
            // What is not compressed is large and lies in the right kind of memory already.
            let alone = matches!(ready.data, Data::Plain(_));
            if used > 0 && (alone || used + bytes > gathered.len()) {
                *left = Some(ready);
                break;
            }
            let offset = job.settle(&ready)?;
            if alone {
                return Ok(Some((Write::One(ready), offset)));
            }
            gathered[used..used + bytes].copy_from_slice(ready.pages());
            self.recycle(ready);
            begin.get_or_insert(offset);
            used += bytes;
        }
        Ok(begin.map(|begin| (Write::Many(&gathered[..used]), begin)))
    }

    fn recycle(&self, ready: Ready) {
        match ready.data {
            Data::Plain(block) => self.fillings.give(*block),
            Data::Packed(buf) => self.bufs.give(buf),
        }
    }
}

/// What is written at a time.
enum Write<'b> {
    One(Ready),
    Many(&'b [u8]),
}

impl Deref for Write<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::One(ready) => ready.pages(),
            Self::Many(bytes) => bytes,
        }
    }
}
