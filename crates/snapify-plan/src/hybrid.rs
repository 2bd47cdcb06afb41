//! Full and incremental checkpoints mixed (paper 5, section 5.4).

/// `S_n`: seconds saved by `n` incremental checkpoints in the place of full ones, less what a restart from one full
/// and `n` incremental ones takes longer. `full` and `incremental` are the overheads `O_f` and `O_i` of a checkpoint,
/// `restart_chain` and `restart_full` those of a restart, `R_{f+ni}` and `R_f`.
#[must_use]
pub fn savings(n: u32, full: f64, incremental: f64, restart_chain: f64, restart_full: f64) -> f64 {
    f64::from(n) * (full - incremental) - (restart_chain - restart_full)
}

/// `m`: how many incremental checkpoints are best between two full ones (Naksinehaboon and others, as paper 5 has it).
///
/// `full` is `O_f`, `incremental` is `O_i`; `failure` the probability `P_i` of a failure before the next incremental
/// checkpoint; `recovery` what each incremental checkpoint adds to a restart, `δ`. At most `most`: also the answer
/// where nothing speaks against one more.
#[must_use]
pub fn optimal_incrementals(
    full: f64,
    incremental: f64,
    failure: f64,
    recovery: f64,
    most: u32,
) -> u32 {
    let saved = full - incremental;
    if saved <= 0.0 {
        return 0;
    }
    let price = failure * recovery;
    let m = (saved / price - 1.0).ceil();
    // No price at all is infinity.
    if m >= f64::from(most) {
        most
    } else {
        m.max(0.0) as u32
    }
}

/// The probability of a failure within `time` seconds, where they come on average every `mtbf` seconds, independently.
#[must_use]
pub fn failure_probability(time: f64, mtbf: f64) -> f64 {
    -(-time / mtbf).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 2 of paper 5: O_f - O_i, R_{f+1i} - R_f, S_1.
    const TABLE_2: [(&str, f64, f64, f64); 11] = [
        ("CG.D", 36.20, 0.03, 36.17),
        ("SP.D", 6.73, 1.28, 5.45),
        ("BT.D", 7.79, 3.45, 4.34),
        ("mpiBLAST", 3.34, 0.01, 3.33),
        ("LU.D", 2.81, 0.59, 2.21),
        ("CG.C", 1.85, 0.01, 1.84),
        ("FT.C", 1.69, 0.20, 1.50),
        ("BT.C", 1.22, -0.02, 1.25),
        ("MG.D", 1.51, 0.81, 0.70),
        ("LU.C", 0.38, 0.02, 0.36),
        ("SP.C", 0.28, 0.04, 0.24),
    ];

    #[test]
    fn savings_are_those_of_table_2() {
        for (name, saved, recovery, benefit) in TABLE_2 {
            let found = savings(1, saved, 0.0, recovery, 0.0);
            // The paper rounds each column for itself.
            assert!((found - benefit).abs() < 0.011, "{name}: {found} {benefit}");
        }
    }

    #[test]
    fn savings_grow_with_n() {
        // Section 5.3: BT.D saves 23.38 s with three incremental checkpoints, and loses 10.6 s at a restart.
        let saved = savings(3, 23.38 / 3.0, 0.0, 10.6, 0.0);
        assert!((saved - 12.78).abs() < 1e-9);
        // The abstract: on average 16.64 s saved, 1.17 s lost, 15.47 s gained.
        let average = savings(3, 16.64 / 3.0, 0.0, 1.17, 0.0);
        assert!((average - 15.47).abs() < 1e-9);
    }

    #[test]
    fn the_bound_on_m_is_that_of_section_5_4() {
        let mean = |column: fn(&(&str, f64, f64, f64)) -> f64| {
            TABLE_2.iter().map(column).sum::<f64>() / TABLE_2.len() as f64
        };
        let (saved, recovery) = (mean(|row| row.1), mean(|row| row.2));
        // "m = ceil(9.92 / P_i - 1)", from figures with more digits than the table prints.
        assert!(
            (saved / recovery - 9.92).abs() < 0.03,
            "{}",
            saved / recovery
        );
        assert_eq!(optimal_incrementals(saved, 0.0, 1.0, recovery, 100), 9);
        assert_eq!(optimal_incrementals(saved, 0.0, 0.1, recovery, 1000), 99);
    }

    #[test]
    fn extremes() {
        assert_eq!(optimal_incrementals(1.0, 1.0, 0.1, 1.0, 50), 0);
        assert_eq!(optimal_incrementals(1.0, 2.0, 0.1, 1.0, 50), 0);
        assert_eq!(optimal_incrementals(1.0, 0.5, 0.0, 1.0, 50), 50);
        assert_eq!(optimal_incrementals(1.0, 0.5, 0.5, 0.0, 50), 50);
        assert_eq!(optimal_incrementals(1.0, 0.5, 1.0, 100.0, 50), 0);
        assert!((failure_probability(0.0, 10.0)).abs() < 1e-12);
        assert!((failure_probability(10.0, 10.0) - 0.632_120_558).abs() < 1e-9);
        assert!(failure_probability(1e9, 10.0) <= 1.0);
    }
}
