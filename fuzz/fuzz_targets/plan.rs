//! What plans are made from: figures that snapshots have left, and numbers that are given.
#![no_main]

use libfuzzer_sys::fuzz_target;
use snapify_plan::{Codec, Inputs, LONGEST_CHAIN, Measurement, full_every, learn, plan, plot};

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    if kind & 1 == 0 {
        if let Ok(measured) = serde_json::from_slice::<Vec<Measurement>>(data) {
            let learned = learn(&measured);
            let sound = |value: Option<f64>| value.is_none_or(|value| value >= 0.0);
            assert!(sound(learned.rate) && sound(learned.dirty) && sound(learned.memory));
            let every = full_every(&measured, 60.0, 1e6);
            assert!(every.is_none_or(|every| (1..=LONGEST_CHAIN).contains(&every)));
        }
        return;
    }
    let mut numbers = data
        .chunks_exact(8)
        .map(|bytes| bytes.try_into().map_or(0.0, f64::from_le_bytes));
    let mut number = || numbers.next().unwrap_or(1.0);
    let inputs = Inputs {
        memory: number(),
        dirty: number(),
        collect_rate: number(),
        node_rate: number(),
        shared_rate: number(),
        node_mtbf: number(),
        fixed: number(),
        stop_share: number(),
        codecs: vec![Codec {
            name: "c".into(),
            ratio: number(),
            rate: number(),
            expand_rate: number(),
        }],
        most_incrementals: u32::from(*kind),
    };
    if let Ok(plan) = plan(&inputs, &[1, 1000, 100_000]) {
        for row in &plan.recommendations {
            assert!(!row.useful.is_nan() && !row.interval.is_nan(), "{row:?}");
        }
        let picture = plot::svg(&plan);
        assert!(!picture.contains("NaN"), "{plan:?}");
    }
});
