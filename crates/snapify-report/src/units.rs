//! Numbers as people read them.

/// A duration in seconds.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// A number of bytes.
pub fn bytes(bytes: u64) -> String {
    let names = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "bytes";
    for name in names {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = name;
    }
    if unit == "bytes" {
        format!("{bytes} bytes")
    } else if value < 10.0 {
        format!("{value:.2} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// Bytes per second.
pub fn rate(bytes: u64, seconds: f64) -> Option<String> {
    // What takes no time has no rate.
    (seconds > 1e-6 && bytes > 0).then(|| format!("{:.2} GB/s", bytes as f64 / seconds / 1e9))
}

/// A time of day and date (UTC) of so many milliseconds since 1970.
///
/// The date is found as in Howard Hinnant's "chrono-compatible low-level date algorithms" (`civil_from_days`): years
/// begin in March there, so that a leap day is the last of its year.
pub fn date(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(time(0.000_004_2), "4.2 µs");
        assert_eq!(time(0.0042), "4.20 ms");
        assert_eq!(time(0.42), "420 ms");
        assert_eq!(time(4.2), "4.20 s");
        assert_eq!(bytes(17), "17 bytes");
        assert_eq!(bytes(3 << 20), "3.00 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
        assert_eq!(rate(2_000_000_000, 1.0).unwrap(), "2.00 GB/s");
        assert_eq!(rate(1, 0.0), None);
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_735_689_599_999), "2024-12-31 23:59:59 UTC");
    }
}
