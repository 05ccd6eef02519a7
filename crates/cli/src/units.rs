//! Numbers for people.

use longview_core::Grouped;

/// `7.6 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64 / 1024.0;
    if n < 1024 {
        return format!("{n} B");
    }
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// The number behind `7.6 MiB`, `512MB` or `4096`; units with an i are powers of 1024, others of
/// 1000.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let scale = match unit.as_str() {
        "" | "b" => Some(1.0),
        "kb" | "k" => Some(1e3),
        "mb" | "m" => Some(1e6),
        "gb" | "g" => Some(1e9),
        "tb" | "t" => Some(1e12),
        "kib" => Some(1024.0),
        "mib" => Some(1024.0 * 1024.0),
        "gib" => Some((1u64 << 30) as f64),
        "tib" => Some((1u64 << 40) as f64),
        _ => None,
    };
    let value = digits.trim().parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0);
    match value.zip(scale) {
        Some((value, scale)) => Ok((value * scale) as u64),
        None => Err("must be a size such as 512MiB, 4GB or 1000000".to_owned()),
    }
}

/// `32,768`.
pub fn count(n: impl TryInto<u64>) -> String {
    Grouped(n.try_into().unwrap_or(u64::MAX)).to_string()
}

/// `1 token`, `32,768 tokens`.
pub fn counted(n: impl TryInto<u64>, one: &str, many: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// A rate: one decimal below 100, none above.
pub fn rate(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 100.0 => format!("{value:.1}"),
        Some(value) => count(value.round() as u64),
    }
}

/// `0.52 s`, `12.3 s`, `5 min 20 s`, `3 h 12 min`.
pub fn seconds(value: f64) -> String {
    let whole = value.round() as u64;
    match whole {
        _ if value < 9.95 => format!("{value:.2} s"),
        0..120 => format!("{value:.1} s"),
        120..7200 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", count(whole / 3600), whole % 3600 / 60),
    }
}

/// `83.1 %`.
pub fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{:.1} %", 100.0 * v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_change_unit_where_the_number_would_grow_wide() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(1024 * 1024 - 1), "1.0 MiB");
        assert_eq!(bytes(8_009_512), "7.6 MiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("1.5 gb"), Ok(1_500_000_000));
        for wrong in ["", "GB", "-1", "0", "1 TB extra", "12x", "nanGB", "infMB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0u64), "0");
        assert_eq!(count(999usize), "999");
        assert_eq!(count(32768usize), "32,768");
        assert_eq!(count(1_000_000u64), "1,000,000");
        let tokens = |n: u64| counted(n, "token", "tokens");
        assert_eq!([tokens(0), tokens(1), tokens(2000)], ["0 tokens", "1 token", "2,000 tokens"]);
    }

    #[test]
    fn times_have_the_units_that_people_use() {
        let read = [0.052, 9.96, 119.4, 320.0, 11_520.0].map(seconds);
        assert_eq!(read, ["0.05 s", "10.0 s", "119.4 s", "5 min 20 s", "3 h 12 min"]);
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        assert_eq!((rate(None), share(None)), ("-".into(), "-".into()));
        assert_eq!((rate(Some(12.34)), rate(Some(1234.5))), ("12.3".into(), "1,235".into()));
        assert_eq!(share(Some(0.5)), "50.0 %");
    }
}
