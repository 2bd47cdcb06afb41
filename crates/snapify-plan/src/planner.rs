//! What to do on a machine of so many nodes: interval, full and incremental checkpoints, codec.

use crate::hybrid::{failure_probability, optimal_incrementals, savings};
use crate::interval::{daly, efficiency};
use crate::pccr::{Law, Protocol, Scenario};
use serde::Serialize;

/// A way to compress.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Codec {
    /// Its name.
    pub name: String,
    /// Bytes after for each byte before.
    pub ratio: f64,
    /// Bytes (before) that a node compresses in a second.
    pub rate: f64,
    /// Bytes (after) that a node makes of compressed ones in a second.
    pub expand_rate: f64,
}

/// What a plan depends on.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Inputs {
    /// Bytes that a full checkpoint saves on each node.
    pub memory: f64,
    /// The share of them that changes from one checkpoint to the next; 1 if it is not known.
    pub dirty: f64,
    /// Bytes a second at which a node collects its memory.
    pub collect_rate: f64,
    /// Bytes a second that a node can store.
    pub node_rate: f64,
    /// Bytes a second that all nodes together can store.
    pub shared_rate: f64,
    /// Seconds between failures of one node, on average.
    pub node_mtbf: f64,
    /// Seconds that a checkpoint costs beside what depends on bytes.
    pub fixed: f64,
    /// The share of the time of a checkpoint for which the program stands still.
    pub stop_share: f64,
    /// Codecs to choose from. None at all is always a choice.
    pub codecs: Vec<Codec>,
    /// At most so many incremental checkpoints between two full ones: each takes storage.
    pub most_incrementals: u32,
}

/// An input that no plan can be made from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlanError {
    /// Which one.
    pub input: String,
    /// What it must be.
    pub must: &'static str,
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "no plan can be made: {} must be {}",
            self.input, self.must
        )
    }
}

impl std::error::Error for PlanError {}

/// A plan for machines of several sizes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plan {
    /// What it was made from.
    pub inputs: Inputs,
    /// Where the paper's curves bend and cross, for each codec.
    pub thresholds: Vec<Thresholds>,
    /// One for each size, in the order asked for.
    pub recommendations: Vec<Recommendation>,
}

/// Saturation and beneficial points of a codec, in nodes, by the formulas of paper 4 as they stand there.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Thresholds {
    /// The codec.
    pub codec: String,
    /// `k`: without compression.
    pub saturation_uncompressed: f64,
    /// `k'`: compressed, then stored.
    pub saturation_serial: f64,
    /// `k''`: compressed while storing.
    pub saturation_pipelined: f64,
    /// `p_0`: from which size on compressing and then storing is quicker than not compressing; `None` for never.
    pub beneficial_serial: Option<f64>,
    /// `p_0'`: the same for compressing while storing.
    pub beneficial_pipelined: Option<f64>,
}

/// What to do on a machine of one size.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Recommendation {
    /// Nodes that the job runs on.
    pub nodes: u64,
    /// Seconds between failures of any of them.
    pub mtbf: f64,
    /// The codec: `none` or one of the inputs'.
    pub codec: String,
    /// Seconds of work from the end of a checkpoint to the next.
    pub interval: f64,
    /// Incremental checkpoints between two full ones.
    pub incrementals: u32,
    /// Seconds that these save in the place of full ones, less what they add to a restart: the `S_n` of paper 5.
    pub saved_seconds: f64,
    /// Seconds that a full checkpoint takes.
    pub full_seconds: f64,
    /// Seconds that an incremental one takes.
    pub incremental_seconds: f64,
    /// Seconds that a restart takes on average.
    pub restart_seconds: f64,
    /// The share of time that is work which lasts.
    pub useful: f64,
    /// The same if all checkpoints were full and uncompressed.
    pub useful_full_uncompressed: f64,
}

/// Makes a plan for jobs of so many nodes.
///
/// # Errors
/// Names the first input that makes no sense.
pub fn plan(inputs: &Inputs, nodes: &[u64]) -> Result<Plan, PlanError> {
    inputs.check()?;
    if nodes.is_empty() || nodes.contains(&0) {
        return Err(PlanError {
            input: "the number of nodes".into(),
            must: "1 or more",
        });
    }
    Ok(Plan {
        thresholds: inputs
            .codecs
            .iter()
            .map(|codec| inputs.thresholds(codec))
            .collect(),
        recommendations: nodes.iter().map(|nodes| inputs.recommend(*nodes)).collect(),
        inputs: inputs.clone(),
    })
}

/// 1, 2, 5, 10, 20, ... 100 000.
#[must_use]
pub fn decades() -> Vec<u64> {
    let steps = (0..5).flat_map(|exponent| [1, 2, 5].map(|digit| digit * 10u64.pow(exponent)));
    steps.chain([100_000]).collect()
}

impl Inputs {
    fn check(&self) -> Result<(), PlanError> {
        let positive = |value: f64, input: &str| {
            // Beyond these, times that follow from them are no numbers any more.
            if (1e-12..=1e24).contains(&value) {
                return Ok(());
            }
            Err(PlanError {
                input: input.into(),
                must: "greater than 0, and no more than 1e24",
            })
        };
        positive(self.memory, "the memory of a node")?;
        positive(self.collect_rate, "the rate of collecting")?;
        positive(self.node_rate, "the rate of a node's storage")?;
        positive(self.shared_rate, "the rate of the shared storage")?;
        positive(self.node_mtbf, "the time between failures of a node")?;
        for codec in &self.codecs {
            positive(codec.ratio, &format!("the ratio of {}", codec.name))?;
            positive(codec.rate, &format!("the rate of {}", codec.name))?;
            positive(
                codec.expand_rate,
                &format!("the rate of expanding {}", codec.name),
            )?;
        }
        let part = |value: f64, input: &str| {
            if (0.0..=1.0).contains(&value) {
                return Ok(());
            }
            Err(PlanError {
                input: input.into(),
                must: "between 0 and 1",
            })
        };
        part(self.dirty, "the share of changed memory")?;
        part(
            self.stop_share,
            "the share of time that the program stands still",
        )?;
        if !(0.0..=1e24).contains(&self.fixed) {
            return Err(PlanError {
                input: "the fixed cost".into(),
                must: "0 or more, and no more than 1e24",
            });
        }
        Ok(())
    }

    /// The paper's view of a checkpoint of a share of the memory.
    pub(crate) fn scenario(&self, share: f64, codec: Option<&Codec>) -> Scenario {
        let bytes = self.memory * share;
        Scenario {
            bytes,
            collect: bytes / self.collect_rate,
            compress: codec.map_or(0.0, |codec| bytes / codec.rate),
            ratio: codec.map_or(1.0, |codec| codec.ratio),
            node_rate: self.node_rate,
            shared_rate: self.shared_rate,
        }
    }

    fn thresholds(&self, codec: &Codec) -> Thresholds {
        let scenario = self.scenario(1.0, Some(codec));
        Thresholds {
            codec: codec.name.clone(),
            saturation_uncompressed: scenario.saturation(Protocol::Uncompressed),
            saturation_serial: scenario.saturation(Protocol::Serial),
            saturation_pipelined: scenario.saturation(Protocol::Pipelined),
            beneficial_serial: scenario.beneficial(Protocol::Serial, Law::Paper),
            beneficial_pipelined: scenario.beneficial(Protocol::Pipelined, Law::Paper),
        }
    }

    /// Seconds that saving a share of the memory takes.
    fn saving(&self, share: f64, codec: Option<&Codec>, nodes: f64) -> f64 {
        if share <= 0.0 {
            return 0.0;
        }
        let scenario = self.scenario(share, codec);
        scenario.time(Protocol::Pipelined, Law::Shared, nodes)
    }

    /// Seconds that reading all of it back takes.
    fn reading(&self, codec: Option<&Codec>, nodes: f64) -> f64 {
        let stored = self.memory * codec.map_or(1.0, |codec| codec.ratio);
        let expanding = codec.map_or(0.0, |codec| self.memory / codec.expand_rate);
        (stored / self.node_rate)
            .max(stored * nodes / self.shared_rate)
            .max(self.memory / self.collect_rate)
            .max(expanding)
    }

    fn recommend(&self, nodes: u64) -> Recommendation {
        let mut best = self.with(nodes, None, 0);
        let plain = best.useful;
        let codecs = std::iter::once(None).chain(self.codecs.iter().map(Some));
        for codec in codecs {
            // The formula for their number knows nothing of how long restarts become; where failures are frequent fewer are better.
            let powers = (0..32).map(|power| 1u32 << power);
            let numbers = powers.take_while(|number| *number < self.most_incrementals);
            for number in numbers.chain([0, self.incrementals(nodes, codec)]) {
                let found = self.with(nodes, codec, number);
                if found.useful > best.useful {
                    best = found;
                }
            }
        }
        best.useful_full_uncompressed = plain;
        best
    }

    /// Seconds saved by `n` incremental checkpoints between two full ones on so many nodes (paper 5, section 5.4).
    pub(crate) fn savings(&self, nodes: u64, codec: Option<&Codec>, n: u32) -> f64 {
        let p = nodes as f64;
        let cost = |share: f64| self.fixed + self.saving(share, codec, p) * self.stop_share;
        let restart = self.reading(codec, p);
        let chain = restart + f64::from(n) * self.dirty * restart;
        savings(n, cost(1.0), cost(self.dirty), chain, restart)
    }

    /// How many incremental checkpoints there should be between two full ones, by the formula of paper 5.
    ///
    /// It depends on how likely a failure is within an interval, which depends on the mean cost, and that on their number. It
    /// settles within a few rounds, or alternates between neighbours.
    fn incrementals(&self, nodes: u64, codec: Option<&Codec>) -> u32 {
        let p = nodes as f64;
        let mtbf = self.node_mtbf / p;
        let cost = |share: f64| self.fixed + self.saving(share, codec, p) * self.stop_share;
        let (full, incremental) = (cost(1.0), cost(self.dirty));
        let recovery = self.dirty * self.reading(codec, p);
        let mut m = 0;
        for _ in 0..16 {
            let interval = daly(mean(m, full, incremental), mtbf);
            let failure = failure_probability(interval + incremental, mtbf);
            let most = self.most_incrementals;
            let next = optimal_incrementals(full, incremental, failure, recovery, most);
            if next == m {
                break;
            }
            m = next;
        }
        m
    }

    /// What comes of this codec and `m` incremental checkpoints in a row.
    fn with(&self, nodes: u64, codec: Option<&Codec>, m: u32) -> Recommendation {
        let p = nodes as f64;
        let mtbf = self.node_mtbf / p;
        let (full, incremental) = (
            self.saving(1.0, codec, p),
            self.saving(self.dirty, codec, p),
        );
        // What the program loses by one; the rest goes on beside it.
        let cost = |saving: f64| self.fixed + saving * self.stop_share;
        let reading = self.reading(codec, p);
        // Each page is read once, but those of later points lie apart: at worst it costs as much as their share.
        let recovery = self.dirty * reading;
        let lost = mean(m, cost(full), cost(incremental));
        // A full one has no time to finish while the one before is still being stored.
        let longest = full * (1.0 - self.stop_share);
        let interval = daly(lost, mtbf).max(longest);
        let restart = self.fixed + reading + f64::from(m) / 2.0 * recovery;
        // Until it is stored a checkpoint is of no use: the work since it began is lost as well.
        let unfinished = mean(m, full, incremental) * (1.0 - self.stop_share);
        Recommendation {
            nodes,
            mtbf,
            codec: codec.map_or_else(|| "none".into(), |codec| codec.name.clone()),
            interval,
            incrementals: m,
            saved_seconds: self.savings(nodes, codec, m),
            full_seconds: self.fixed + full,
            incremental_seconds: self.fixed + incremental,
            restart_seconds: restart,
            useful: efficiency(interval, lost, restart + unfinished, mtbf),
            useful_full_uncompressed: 0.0,
        }
    }
}

/// The mean of a full checkpoint and `m` incremental ones.
fn mean(m: u32, full: f64, incremental: f64) -> f64 {
    (full + f64::from(m) * incremental) / (f64::from(m) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Inputs {
        Inputs {
            memory: 64e9,
            dirty: 0.05,
            collect_rate: 5e9,
            node_rate: 2e9,
            shared_rate: 200e9,
            node_mtbf: 5.0 * 365.0 * 86400.0,
            fixed: 0.1,
            stop_share: 1.0,
            codecs: vec![Codec {
                name: "lz4".into(),
                ratio: 0.6,
                rate: 3e9,
                expand_rate: 9e9,
            }],
            most_incrementals: 64,
        }
    }

    #[test]
    fn sizes_from_one_to_a_hundred_thousand() {
        let nodes = decades();
        assert_eq!(nodes.first(), Some(&1));
        assert_eq!(nodes.last(), Some(&100_000));
        assert!(nodes.windows(2).all(|pair| pair[0] < pair[1]));
        let plan = plan(&inputs(), &nodes).unwrap();
        for pair in plan.recommendations.windows(2) {
            // More nodes fail oftener and share the storage: never better.
            assert!(pair[1].interval <= pair[0].interval * 1.5);
            assert!(pair[1].useful <= pair[0].useful + 1e-9);
        }
        for row in &plan.recommendations {
            assert!(row.interval > 0.0 && row.interval.is_finite());
            assert!(row.useful > 0.0 && row.useful < 1.0, "{row:?}");
            assert!(row.useful >= row.useful_full_uncompressed, "{row:?}");
            assert!(row.incrementals <= 64);
        }
    }

    #[test]
    fn compression_is_chosen_where_the_storage_is_the_bottleneck() {
        let mut slow = inputs();
        slow.codecs[0].rate = 1e9;
        let plan = plan(&slow, &[1, 100_000]).unwrap();
        // One node stores 2 GB/s and would compress 1 GB/s; 100 000 store 2 MB/s each.
        assert_eq!(plan.recommendations[0].codec, "none");
        assert_eq!(plan.recommendations[1].codec, "lz4");
        assert!(plan.thresholds[0].saturation_uncompressed > 99.0);
    }

    #[test]
    fn incremental_ones_pay_if_little_changes_and_not_if_everything_does() {
        let plan_of = |dirty| {
            let inputs = Inputs { dirty, ..inputs() };
            plan(&inputs, &[1000]).unwrap().recommendations.remove(0)
        };
        assert_eq!(plan_of(1.0).incrementals, 0);
        let little = plan_of(0.01);
        assert!(little.incrementals > 0);
        assert!(little.useful > plan_of(1.0).useful);
        assert!(little.interval < plan_of(1.0).interval);
    }

    #[test]
    fn savings_grow_with_every_incremental_one() {
        let inputs = inputs();
        // 32 s and 1.6 s, and a restart that takes 1.6 s longer for each.
        for n in [1, 3, 10] {
            let saved = inputs.savings(1, None, n);
            assert!((saved - f64::from(n) * 28.8).abs() < 1e-9, "{n}: {saved}");
        }
        let row = plan(&inputs, &[1]).unwrap().recommendations.remove(0);
        assert!(row.saved_seconds > 0.0);
    }

    #[test]
    fn one_node_gets_dalys_interval() {
        let inputs = Inputs {
            codecs: Vec::new(),
            dirty: 1.0,
            ..inputs()
        };
        let row = plan(&inputs, &[1]).unwrap().recommendations.remove(0);
        // 64 GB at 2 GB/s, and 0.1 s beside.
        assert!((row.full_seconds - 32.1).abs() < 1e-9);
        assert!((row.interval - daly(32.1, inputs.node_mtbf)).abs() < 1e-6);
    }

    #[test]
    fn where_failures_are_frequent_restarts_count() {
        let inputs = inputs();
        let formula = inputs.incrementals(50_000, None);
        let row = plan(&inputs, &[50_000]).unwrap().recommendations.remove(0);
        assert!(row.incrementals < formula, "{} {formula}", row.incrementals);
        // No size is better off than a smaller one, and none is far worse than its neighbour.
        let sizes: Vec<u64> = (1..100).map(|n| n * 1000).collect();
        for pair in plan(&inputs, &sizes).unwrap().recommendations.windows(2) {
            assert!(pair[1].useful <= pair[0].useful + 1e-9);
        }
    }

    #[test]
    fn stopping_for_less_allows_shorter_intervals() {
        let live = Inputs {
            stop_share: 0.01,
            ..inputs()
        };
        let row = |inputs: &Inputs| plan(inputs, &[1000]).unwrap().recommendations.remove(0);
        assert!(row(&live).interval < row(&inputs()).interval);
        assert!(row(&live).useful > row(&inputs()).useful);
    }

    #[test]
    fn senseless_inputs_are_named() {
        let fails = |inputs: Inputs, word: &str| {
            let error = plan(&inputs, &[1]).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        };
        fails(
            Inputs {
                memory: 0.0,
                ..inputs()
            },
            "memory",
        );
        fails(
            Inputs {
                node_rate: f64::NAN,
                ..inputs()
            },
            "storage",
        );
        fails(
            Inputs {
                shared_rate: -1.0,
                ..inputs()
            },
            "shared",
        );
        fails(
            Inputs {
                node_mtbf: f64::INFINITY,
                ..inputs()
            },
            "failures",
        );
        fails(
            Inputs {
                dirty: 1.5,
                ..inputs()
            },
            "changed",
        );
        fails(
            Inputs {
                fixed: -1.0,
                ..inputs()
            },
            "fixed",
        );
        // Absurd ones, of which nothing would come but infinities.
        fails(
            Inputs {
                node_mtbf: 1e-190,
                ..inputs()
            },
            "failures",
        );
        let mut codec = inputs();
        codec.codecs[0].ratio = 0.0;
        fails(codec, "lz4");
        assert!(plan(&inputs(), &[]).is_err());
        assert!(plan(&inputs(), &[0]).is_err());
        // Hopeless is not senseless.
        let hopeless = Inputs {
            node_mtbf: 1.0,
            ..inputs()
        };
        let row = plan(&hopeless, &[100_000])
            .unwrap()
            .recommendations
            .remove(0);
        assert!(row.useful < 1e-6 && row.interval > 0.0);
    }
}
