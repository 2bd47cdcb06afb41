//! The time of a coordinated checkpoint of many processes onto storage that they share (paper 4, section II).
//!
//! Each of `p` processes has `S` bytes, collects them in `T_c(S)`, compresses them in `T_zip(S)` to `δS` bytes, and
//! stores at most `b` bytes a second; the storage takes `B_f` bytes a second from all together.
//!
//! The paper's formulas charge a process within the suitable scale `S / B_f`, as if it had the shared storage's rate
//! for itself, and start counting at the saturation point. [`Law::Paper`] is that, to the letter. [`Law::Shared`] is what
//! storage does: a process is never faster than its own link, and all together never faster than the storage. For
//! the pipelined protocol the two agree but for the link. Plans are made with [`Law::Shared`].

/// How a checkpoint is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Collect, then store: the paper's `T_u`.
    Uncompressed,
    /// Collect, then compress, then store: `T_z`.
    Serial,
    /// Collect, compress and store at the same time, block by block: `T_P`.
    Pipelined,
}

/// What is charged for storing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Law {
    /// As the paper has it.
    Paper,
    /// The slower of a process's own link and its part of the storage.
    Shared,
}

/// An application on a machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scenario {
    /// Bytes to save of one process: `S`.
    pub bytes: f64,
    /// Seconds to collect them: `T_c(S)`.
    pub collect: f64,
    /// Seconds to compress them: `T_zip(S)`.
    pub compress: f64,
    /// Bytes after compression for each byte before: `δ`.
    pub ratio: f64,
    /// Bytes a second that one process can store: `b`.
    pub node_rate: f64,
    /// Bytes a second that the storage takes: `B_f`.
    pub shared_rate: f64,
}

impl Scenario {
    /// The saturation point: with more processes than this, storing is what takes the time. The paper's `k`, `k'` and
    /// `k''`.
    #[must_use]
    pub fn saturation(&self, protocol: Protocol) -> f64 {
        let k = self.shared_rate / self.node_rate;
        match protocol {
            Protocol::Uncompressed => k,
            Protocol::Serial => k / self.ratio,
            Protocol::Pipelined => self.slowest() * self.shared_rate / (self.ratio * self.bytes),
        }
    }

    /// Seconds that a checkpoint of `p` processes takes.
    #[must_use]
    pub fn time(&self, protocol: Protocol, law: Law, p: f64) -> f64 {
        let share = match protocol {
            Protocol::Uncompressed => self.bytes / self.shared_rate,
            Protocol::Serial | Protocol::Pipelined => self.ratio * self.bytes / self.shared_rate,
        };
        let store = match law {
            // For whole numbers the two branches of the paper meet where one process is over the saturation point.
            Law::Paper => (p - self.saturation(protocol)).max(1.0) * share,
            Law::Shared => (self.shared_rate / self.node_rate).max(p) * share,
        };
        match (protocol, law) {
            (Protocol::Uncompressed, _) => self.collect + store,
            (Protocol::Serial, _) => self.collect + self.compress + store,
            (Protocol::Pipelined, Law::Paper) => {
                self.slowest() + (p - self.saturation(protocol)).max(0.0) * share
            }
            (Protocol::Pipelined, Law::Shared) => self.slowest().max(store),
        }
    }

    /// The beneficial point: the number of processes from which on `protocol` takes no longer than an uncompressed
    /// checkpoint. The paper's `p_0` and `p_0'`. `None` if it always does.
    #[must_use]
    pub fn beneficial(&self, protocol: Protocol, law: Law) -> Option<f64> {
        let loss = |p: f64| self.time(protocol, law, p) - self.time(Protocol::Uncompressed, law, p);
        // The times are linear between these numbers, and from the last one on.
        let k = self.saturation(Protocol::Uncompressed);
        let own = self.saturation(protocol);
        let stored = self.ratio * self.bytes / self.shared_rate;
        let mut bends = [1.0, k, k + 1.0, own, own + 1.0, self.slowest() / stored];
        bends.sort_by(f64::total_cmp);
        let bends = bends.into_iter().filter(|bend| *bend >= 1.0);
        let bends: Vec<f64> = bends.collect();
        let last = *bends.last()?;
        let slope = loss(last + 1.0) - loss(last);
        // What rounding leaves of nothing.
        let nothing = 1e-9 * self.time(Protocol::Uncompressed, law, last);
        if loss(last) > nothing {
            return (slope < 0.0).then(|| last - loss(last) / slope);
        }
        if slope > nothing {
            return None;
        }
        for pair in bends.windows(2).rev() {
            let (before, after) = (loss(pair[0]), loss(pair[1]));
            if before > nothing {
                return Some(pair[0] + (pair[1] - pair[0]) * before / (before - after.min(0.0)));
            }
        }
        Some(1.0)
    }

    /// The paper's `T`: the slower one of the stages before storing.
    fn slowest(&self) -> f64 {
        self.collect.max(self.compress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One process has 1 GB and stores 100 MB/s into a storage of 6.4 GB/s; deflate does 50 MB/s at a ratio of 0.6.
    fn deflate() -> Scenario {
        Scenario {
            bytes: 1e9,
            collect: 0.5,
            compress: 20.0,
            ratio: 0.6,
            node_rate: 100e6,
            shared_rate: 6.4e9,
        }
    }

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{a} is not {b}");
    }

    #[test]
    fn saturation_moves_from_k_to_k_over_delta_and_further() {
        let s = deflate();
        near(s.saturation(Protocol::Uncompressed), 64.0);
        near(s.saturation(Protocol::Serial), 64.0 / 0.6);
        near(s.saturation(Protocol::Pipelined), 20.0 * 6.4e9 / 0.6e9);
        // "Usually S/T > b" does not hold for so slow a compressor; for a quick one k' < k''.
        let quick = Scenario { compress: 5.0, ..s };
        assert!(quick.bytes / quick.compress > quick.node_rate);
        assert!(quick.saturation(Protocol::Pipelined) < quick.saturation(Protocol::Serial));
    }

    #[test]
    fn the_papers_formulas_to_the_letter() {
        let s = deflate();
        let t = |protocol, p| s.time(protocol, Law::Paper, p);
        for p in [1.0, 10.0, 64.0] {
            near(t(Protocol::Uncompressed, p), 0.5 + 1.0 / 6.4);
        }
        near(t(Protocol::Uncompressed, 1064.0), 0.5 + 1000.0 / 6.4);
        near(t(Protocol::Serial, 100.0), 20.5 + 0.6 / 6.4);
        let over = 1000.0 - 64.0 / 0.6;
        near(t(Protocol::Serial, 1000.0), 20.5 + over * 0.6 / 6.4);
        let k = 20.0 * 6.4 / 0.6;
        near(t(Protocol::Pipelined, k), 20.0);
        near(t(Protocol::Pipelined, k + 100.0), 20.0 + 60.0 / 6.4);
    }

    #[test]
    fn compression_reduces_the_slope_by_delta() {
        let s = deflate();
        for law in [Law::Paper, Law::Shared] {
            let slope = |protocol| s.time(protocol, law, 2000.0) - s.time(protocol, law, 1000.0);
            let uncompressed = slope(Protocol::Uncompressed);
            near(slope(Protocol::Serial) / uncompressed, 0.6);
            near(slope(Protocol::Pipelined) / uncompressed, 0.6);
        }
    }

    #[test]
    fn beneficial_points_are_where_the_curves_of_figure_4_cross() {
        let s = deflate();
        for law in [Law::Paper, Law::Shared] {
            let serial = s.beneficial(Protocol::Serial, law).unwrap();
            let pipelined = s.beneficial(Protocol::Pipelined, law).unwrap();
            // The paper's point: pipelining brings the benefit to much smaller machines.
            assert!(pipelined < serial, "{law:?}: {pipelined} {serial}");
            for (protocol, point) in [(Protocol::Serial, serial), (Protocol::Pipelined, pipelined)]
            {
                let uncompressed = |p| s.time(Protocol::Uncompressed, law, p);
                let own = |p| s.time(protocol, law, p);
                assert!(
                    (own(point) - uncompressed(point)).abs() < 1e-6,
                    "{law:?} {protocol:?}"
                );
                assert!(own(point * 0.9) > uncompressed(point * 0.9));
                assert!(own(point * 1.1) < uncompressed(point * 1.1));
                assert!(own(1e6) < uncompressed(1e6));
            }
        }
    }

    #[test]
    fn what_does_not_shrink_has_no_beneficial_point() {
        let s = Scenario {
            ratio: 1.0,
            ..deflate()
        };
        assert_eq!(s.beneficial(Protocol::Serial, Law::Shared), None);
        // A compressor that costs nothing pays from the first process on.
        let free = Scenario {
            compress: 0.0,
            ..deflate()
        };
        let point = free.beneficial(Protocol::Pipelined, Law::Shared);
        assert_eq!(point, Some(1.0));
    }

    #[test]
    fn pipelining_takes_no_longer_than_its_slowest_stage() {
        let s = deflate();
        for p in [1.0, 64.0, 213.0, 1000.0, 100_000.0] {
            let store = (10.0f64).max(p / 6.4) * 0.6;
            near(s.time(Protocol::Pipelined, Law::Shared, p), store.max(20.0));
        }
    }
}
