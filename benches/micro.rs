//! The small costs: a launch, a transfer.

use crate::place::Place;
use crate::table::{at_least, at_most, print, under};
use anyhow::{Context, Result, ensure};

pub fn run(place: &Place) -> Result<()> {
    let flags = ["-fopenmp", "-fopenmp-targets=x86_64-pc-linux-gnu"];
    let program = place.compile("clang-16", "omp_micro.c", &flags)?;
    let output = place
        .snapify()
        .args(["run", "--cards", "1", "--"])
        .arg(program)
        .output()?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let told: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("read what omp_micro prints")?;
    let number = |name: &str| {
        told[name]
            .as_f64()
            .with_context(|| format!("omp_micro tells no {name}"))
    };
    let mut rows = vec![
        vec![
            "empty target region".to_owned(),
            under(number("empty_region_ns")? / 1e3, 8.0, "us"),
        ],
        vec![
            "target region with map(tofrom: int)".to_owned(),
            format!("{:.2} us", number("map_int_ns")? / 1e3),
        ],
    ];
    let memcpy = number("memcpy_gbs")?;
    for (name, key) in [
        ("host to card", "to_card_gbs"),
        ("card to host", "from_card_gbs"),
    ] {
        let rate = number(key)?;
        rows.push(vec![
            format!("transfer {name}, 64 MiB"),
            format!(
                "{rate:.1} GB/s against memcpy {memcpy:.1} GB/s: {}",
                at_least(rate / memcpy, 0.7)
            ),
        ]);
    }
    let (one, small) = (number("one_buffer_ms")?, number("small_buffers_ms")?);
    rows.push(vec![
        "64 MiB in 10,000 buffers against one".to_owned(),
        format!(
            "{small:.1} ms against {one:.1} ms: {}",
            at_most(small / one, 3.0)
        ),
    ]);
    print("Small costs", &["operation", "cost"], &rows);
    Ok(())
}
