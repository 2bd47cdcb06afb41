//! Numbers for people.

use std::time::Duration;

/// Bytes with a binary unit: `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = count as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A duration: `850 ms`, `2.31 s`.
pub fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{:.1} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", time.as_secs_f64())
    }
}

/// Units of durations that take long, greatest first, in seconds.
const LONG: [(&str, u64); 5] = [
    ("y", 365 * 86400),
    ("w", 7 * 86400),
    ("d", 86400),
    ("h", 3600),
    ("m", 60),
];

/// A duration of any length: `3.2 h`, `850 ms`.
pub fn long_time(time: f64) -> String {
    for (unit, length) in LONG {
        if unit != "w" && time >= length as f64 {
            let unit = if unit == "m" { "min" } else { unit };
            return format!("{:.1} {unit}", time / length as f64);
        }
    }
    Duration::try_from_secs_f64(time).map_or_else(|_| "never".into(), seconds)
}

/// Parses a duration such as `10m`, `1h30m`, `90` (seconds), `250ms` or `5y`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("'{text}' is no duration: give seconds, or numbers with ms, s, m, h, d, w or y");
    let mut rest = text.trim();
    let mut sum = Duration::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(rest.len());
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest
            .find(|letter: char| letter.is_ascii_digit())
            .unwrap_or(rest.len());
        let (unit, after) = rest.split_at(letters);
        rest = after;
        let part = match unit {
            "ms" => Some(Duration::from_millis(number)),
            "s" => Some(Duration::from_secs(number)),
            // Only alone: "1h30" might be anything.
            "" if sum == Duration::ZERO => Some(Duration::from_secs(number)),
            unit => LONG
                .iter()
                .find(|(name, _)| *name == unit)
                .and_then(|(_, length)| number.checked_mul(*length))
                .map(Duration::from_secs),
        };
        sum = part
            .and_then(|part| sum.checked_add(part))
            .ok_or_else(wrong)?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_can_read_them() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(4 << 30), "4.0 GiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(seconds(Duration::from_micros(1500)), "1.5 ms");
        assert_eq!(seconds(Duration::from_millis(2310)), "2.31 s");
    }

    #[test]
    fn durations() {
        let parse = |text| parse_duration(text).map(|time| time.as_millis());
        assert_eq!(parse("90"), Ok(90_000));
        assert_eq!(parse("250ms"), Ok(250));
        assert_eq!(parse("10m"), Ok(600_000));
        assert_eq!(parse("1h30m"), Ok(5_400_000));
        assert_eq!(parse("1d12h"), Ok(129_600_000));
        assert_eq!(parse("5y"), Ok(5 * 365 * 86_400_000));
        for wrong in [
            "",
            "m",
            "10x",
            "-1s",
            "1.5h",
            "1h30",
            "99999999999999999999s",
            "999999999999999y",
        ] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(long_time(0.5), "500.0 ms");
        assert_eq!(long_time(90.0), "1.5 min");
        assert_eq!(long_time(86400.0 * 9.0), "9.0 d");
        assert_eq!(long_time(f64::INFINITY), "inf y");
    }
}
