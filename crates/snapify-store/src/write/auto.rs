//! Which codec shortens a checkpoint, found out while it is written.
//!
//! By the model of Shen et al. (section II.C) the stages of a pipeline take together what the slowest of them takes:
//! `max(collect, compress, store)`, where storing takes less by the ratio of compression. Here collecting and
//! compressing share the processors, so that their times add up, divided by the number of processors:
//!
//! ```text
//! T(codec) = max((collect + compress(codec)) / processors, ratio(codec) * store)      per byte of memory
//! ```
//!
//! The times are measured: of collecting and storing as they happen, of compressing on a sample of one block in
//! every [`SEGMENT`], with each codec that comes into question. The codec with the least time is used until the next
//! sample; of two that take the same time (a twentieth more or less) the one that has less to do.

use crate::Compression;
use crate::codec::{Encoder, room};
use crate::cpu_time::cpu_time;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Blocks for which a decision holds.
const SEGMENT: u64 = 16;

/// Blocks at the beginning that are stored as they are, so that the storage shows what it can do.
const OPENING: u64 = 8;

/// Bytes of a block that are compressed to see how that goes.
const SAMPLE: usize = 64 << 10;

/// What comes into question, by what there is to do.
const CANDIDATES: [Compression; 3] = [
    Compression::Lz4,
    Compression::Zstd { level: 1 },
    Compression::Zstd { level: 3 },
];

/// A codec may take this much more time than one that has less to do before that one is chosen.
const TIE: f64 = 1.05;

/// How fast the stages are. Shared by their workers.
pub(super) struct Rates {
    processors: f64,
    state: Mutex<State>,
}

struct State {
    /// Seconds of one processor to collect a byte.
    collect: Mean,
    /// Seconds to store a byte.
    store: Mean,
    writes: u32,
    busy_since: Option<Instant>,
    chosen: Compression,
    decided: Option<u64>,
}

/// A mean in which old values count less and less.
#[derive(Clone, Copy, Default)]
struct Mean {
    time: f64,
    bytes: f64,
}

impl Mean {
    /// Bytes after which an old value counts half.
    const MEMORY: f64 = (64 << 20) as f64;

    fn add(&mut self, time: Duration, bytes: usize) {
        let bytes = bytes as f64;
        let keep = 0.5f64.powf(bytes / Self::MEMORY);
        self.time = self.time * keep + time.as_secs_f64();
        self.bytes = self.bytes * keep + bytes;
    }

    fn per_byte(&self) -> f64 {
        if self.bytes > 0.0 {
            self.time / self.bytes
        } else {
            0.0
        }
    }
}

/// What a codec does to a sample.
#[derive(Clone, Copy, Debug)]
struct Trial {
    compression: Compression,
    /// Seconds a byte.
    time: f64,
    ratio: f64,
}

impl Rates {
    pub(super) fn new(processors: usize) -> Self {
        Self {
            processors: processors as f64,
            state: Mutex::new(State {
                collect: Mean::default(),
                store: Mean::default(),
                writes: 0,
                busy_since: None,
                chosen: Compression::None,
                decided: None,
            }),
        }
    }

    /// A worker took `time` to collect `bytes`.
    pub(super) fn collected(&self, time: Duration, bytes: usize) {
        self.lock().collect.add(time, bytes);
    }

    /// A write begins. Several may be under way.
    pub(super) fn write_begins(&self) {
        let mut state = self.lock();
        state.writes += 1;
        state.busy_since.get_or_insert_with(Instant::now);
    }

    /// A write of `bytes` has ended.
    pub(super) fn write_ends(&self, bytes: usize) {
        let mut state = self.lock();
        let now = Instant::now();
        let since = state.busy_since.take().unwrap_or(now);
        state.store.add(now - since, bytes);
        state.writes = state.writes.saturating_sub(1);
        if state.writes > 0 {
            // The time from now on is that of the others.
            state.busy_since = Some(now);
        }
    }

    /// What to do with block `number`, which holds `raw`.
    pub(super) fn choose(&self, number: u64, raw: &[u8], encoders: &mut Encoders) -> Compression {
        if number < OPENING {
            return Compression::None;
        }
        let segment = number / SEGMENT;
        {
            let mut state = self.lock();
            if state.decided.is_some_and(|decided| decided >= segment) {
                return state.chosen;
            }
            state.decided = Some(segment);
        }
        let begin = raw.len().saturating_sub(SAMPLE) / 2;
        let sample = &raw[begin..(begin + SAMPLE).min(raw.len())];
        let trials = CANDIDATES.map(|compression| encoders.trial(compression, sample));
        let mut state = self.lock();
        state.chosen = best(
            state.collect.per_byte(),
            state.store.per_byte(),
            self.processors,
            &trials,
        );
        state.chosen
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The codec with the least time by the model above.
fn best(collect: f64, store: f64, processors: f64, trials: &[Trial]) -> Compression {
    let time = |compress: f64, ratio: f64| ((collect + compress) / processors).max(ratio * store);
    let mut best = (Compression::None, time(0.0, 1.0));
    for trial in trials {
        let takes = time(trial.time, trial.ratio);
        if takes * TIE < best.1 {
            best = (trial.compression, takes);
        }
    }
    best.0
}

/// The encoders of a worker, one for each codec that it has used.
#[derive(Default)]
pub(super) struct Encoders {
    known: Vec<(Compression, Box<dyn Encoder>)>,
    scratch: Vec<u8>,
}

impl Encoders {
    /// The encoder for `compression`; `None` if there is nothing to be done.
    pub(super) fn get(&mut self, compression: Compression) -> Option<&mut Box<dyn Encoder>> {
        let at = match self
            .known
            .iter()
            .position(|(known, _)| *known == compression)
        {
            Some(at) => at,
            None => {
                self.known.push((compression, compression.encoder()?));
                self.known.len() - 1
            }
        };
        Some(&mut self.known[at].1)
    }

    fn trial(&mut self, compression: Compression, sample: &[u8]) -> Trial {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(room(sample.len()), 0);
        let begin = cpu_time();
        let bytes = self
            .get(compression)
            .and_then(|encoder| encoder.encode(sample, &mut scratch, sample.len()));
        let time = cpu_time().saturating_sub(begin).as_secs_f64();
        self.scratch = scratch;
        Trial {
            compression,
            time: time / sample.len().max(1) as f64,
            ratio: bytes.unwrap_or(sample.len()) as f64 / sample.len().max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LZ4: Trial = Trial {
        compression: Compression::Lz4,
        time: 2e-9,
        ratio: 0.6,
    };
    const ZSTD: Trial = Trial {
        compression: Compression::Zstd { level: 1 },
        time: 4e-9,
        ratio: 0.4,
    };

    #[test]
    fn compression_is_chosen_where_storing_is_the_slowest() {
        let choose = |store: f64| best(0.2e-9, store, 2.0, &[LZ4, ZSTD]);
        // 2 GB/s: compressing would take longer than storing does.
        assert_eq!(choose(0.5e-9), Compression::None);
        // 600 MB/s and 100 MB/s.
        assert_eq!(choose(1.7e-9), Compression::Lz4);
        assert_eq!(choose(10e-9), Compression::Zstd { level: 1 });
    }

    #[test]
    fn what_does_not_become_smaller_is_left_alone() {
        let flat = [LZ4, ZSTD].map(|trial| Trial {
            ratio: 1.0,
            ..trial
        });
        assert_eq!(best(0.2e-9, 10e-9, 2.0, &flat), Compression::None);
    }

    #[test]
    fn samples_tell_chance_from_text() {
        let mut encoders = Encoders::default();
        let text: Vec<u8> = (0..SAMPLE).map(|n| b"abcdefgh"[n % 8]).collect();
        let mut seed = 1u64;
        let chance: Vec<u8> = (0..SAMPLE)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        for compression in CANDIDATES {
            assert!(encoders.trial(compression, &text).ratio < 0.1);
            assert!(encoders.trial(compression, &chance).ratio > 0.99);
        }
    }
}
