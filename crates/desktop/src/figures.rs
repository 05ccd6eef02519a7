//! Numbers as people read them.

use std::time::{Duration, SystemTime};

use longview_core::Grouped;
use longview_library::date;

/// `32,768`.
pub fn count(n: usize) -> String {
    Grouped::from(n).to_string()
}

/// `1 token`, `32,768 tokens`.
pub fn tokens(n: usize) -> String {
    let unit = if n == 1 { "token" } else { "tokens" };
    format!("{} {unit}", count(n))
}

/// `7.6 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 99.95);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// `today`, or `2026-11-25`: the day of a time in seconds since 1970.
pub fn date(unix_s: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s);
    let day = date::day(time);
    if day == date::day(SystemTime::now()) { "today".to_owned() } else { day }
}

/// A rate: one decimal below 100, none above.
pub fn rate(value: f64) -> String {
    if !value.is_finite() || value <= 0.0 {
        return "-".to_owned();
    }
    if value < 99.95 { format!("{value:.1}") } else { count(value.round() as usize) }
}

/// `8.2 s`, `14 min`.
pub fn seconds(value: f64) -> String {
    match value {
        s if !s.is_finite() => "-".to_owned(),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// `83 %`, `3.1 %`.
pub fn percent(share: f64) -> String {
    let decimals = usize::from(share > 0.0 && share < 0.0995);
    format!("{:.decimals$} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_where_the_number_would_grow_wide() {
        assert_eq!([0, 1023, 1024, 8_009_512].map(bytes), ["0 B", "1023 B", "1.0 KiB", "7.6 MiB"]);
        assert_eq!(
            [0.04, 9.99, 89.0, 100.0, 7200.0].map(seconds),
            ["0.0 s", "10 s", "89 s", "2 min", "2.0 h"]
        );
        assert_eq!([0.0, 0.031, 0.83, 1.0].map(percent), ["0 %", "3.1 %", "83 %", "100 %"]);
        assert_eq!([f64::NAN, 12.34, 1234.5].map(rate), ["-", "12.3", "1,235"]);
        assert_eq!([1, 4012].map(tokens), ["1 token", "4,012 tokens"]);
    }
}
