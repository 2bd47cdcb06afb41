//! How long to work between two checkpoints.
//!
//! J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; J. T. Daly, "A higher
//! order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006. Intervals are seconds of
//! work between the end of one checkpoint and the beginning of the next.

/// Young's first-order optimum for checkpoints that cost `cost` seconds where failures come every `mtbf` seconds.
#[must_use]
pub fn young(cost: f64, mtbf: f64) -> f64 {
    (2.0 * cost * mtbf).sqrt()
}

/// Daly's higher-order optimum (his equation 37).
#[must_use]
pub fn daly(cost: f64, mtbf: f64) -> f64 {
    if cost >= 2.0 * mtbf {
        return mtbf;
    }
    let x = cost / (2.0 * mtbf);
    young(cost, mtbf) * (1.0 + x.sqrt() / 3.0 + x / 9.0) - cost
}

/// The share of time in which work is done that lasts, if checkpoints that cost `cost` seconds are taken after every
/// `interval` seconds of work, and failures come every `mtbf` seconds, each costing `restart` seconds and the work
/// since the last checkpoint (the inverse of Daly's equation 20 for one second of work).
#[must_use]
pub fn efficiency(interval: f64, cost: f64, restart: f64, mtbf: f64) -> f64 {
    if interval <= 0.0 || mtbf <= 0.0 {
        return 0.0;
    }
    interval / (mtbf * (restart / mtbf).exp() * ((interval + cost) / mtbf).exp_m1())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_and_daly_agree_for_cheap_checkpoints() {
        // Five minutes every day: sqrt(2 * 300 * 86400) = 7200.
        assert!((young(300.0, 86400.0) - 7200.0).abs() < 1e-6);
        let daly = daly(300.0, 86400.0);
        assert!((daly / 7200.0 - 1.0).abs() < 0.05, "{daly}");
        assert!((super::daly(1e-6, 1e9) / young(1e-6, 1e9) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn dalys_interval_is_the_best_one() {
        for (cost, mtbf) in [
            (1.0, 1e4),
            (60.0, 3600.0),
            (600.0, 4500.0),
            (300.0, 86400.0),
        ] {
            let best = daly(cost, mtbf);
            let at = efficiency(best, cost, cost, mtbf);
            for step in 1..400 {
                let other = best * 0.01 * f64::from(step);
                // An estimate: it may miss the best by a little in time, and by next to nothing in work done.
                assert!(
                    efficiency(other, cost, cost, mtbf) <= at * 1.002,
                    "{cost} {mtbf}: {other} beats {best}"
                );
            }
        }
    }

    #[test]
    fn extremes() {
        assert!((daly(10.0, 5.0) - 5.0).abs() < 1e-9);
        assert!((daly(100.0, 5.0) - 5.0).abs() < 1e-9);
        // Without failures and with free checkpoints all time is work.
        assert!((efficiency(100.0, 0.0, 0.0, 1e12) - 1.0).abs() < 1e-6);
        // Without failures only the checkpoints cost.
        assert!((efficiency(90.0, 10.0, 1.0, 1e12) - 0.9).abs() < 1e-6);
        assert!(efficiency(0.0, 1.0, 1.0, 1.0).abs() < 1e-12);
        assert!(efficiency(1e6, 1.0, 1.0, 1.0) < 1e-6);
    }

    #[test]
    fn a_petascale_machine_spends_most_of_its_time_on_checkpoints() {
        // Section 1 of paper 5: with failures every 1.25 hours a job spends 60 % of its time on checkpoints and restarts. The
        // paper does not say what one of them takes; a quarter of an hour is about that.
        let mtbf = 1.25 * 3600.0;
        let lost = |cost| 1.0 - efficiency(daly(cost, mtbf), cost, cost, mtbf);
        assert!((lost(900.0) - 0.6).abs() < 0.02, "{}", lost(900.0));
        assert!(lost(60.0) < 0.2);
    }
}
