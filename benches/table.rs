//! Medians, and tables that can be pasted into a Markdown document.

/// The middle one of `values` (of an even number, the upper middle one).
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints a Markdown table.
pub fn print(title: &str, head: &[&str], rows: &[Vec<String>]) {
    println!("\n### {title}\n");
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count());
            cells
                .chain([head[column].chars().count()])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        println!("| {} |", padded.join(" | "));
    };
    line(&head.iter().map(ToString::to_string).collect::<Vec<_>>());
    line(
        &widths
            .iter()
            .map(|width| "-".repeat(*width))
            .collect::<Vec<_>>(),
    );
    for row in rows {
        line(row);
    }
}

/// A ratio with its target: `0.93 (at least 0.80: met)`.
pub fn at_least(ratio: f64, target: f64) -> String {
    format!(
        "{ratio:.2} (at least {target:.2}: {})",
        if ratio >= target { "met" } else { "MISSED" }
    )
}

/// A ratio that is to be small: `1.25 (at most 3.00: met)`.
pub fn at_most(ratio: f64, target: f64) -> String {
    format!(
        "{ratio:.2} (at most {target:.2}: {})",
        if ratio <= target { "met" } else { "MISSED" }
    )
}

/// A cost with its limit: `4.1 us (under 10 us: met)`.
pub fn under(value: f64, limit: f64, unit: &str) -> String {
    format!(
        "{value:.2} {unit} (under {limit} {unit}: {})",
        if value < limit { "met" } else { "MISSED" }
    )
}
