//! Days as people write them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Whole seconds since 1970; none before.
pub fn unix_s(time: SystemTime) -> Option<u64> {
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// `2026-11-23`, in UTC.
pub fn day(time: SystemTime) -> String {
    let Some(seconds) = unix_s(time) else { return "-".to_owned() };
    let (year, month, day) = date_of(seconds / 86_400);
    format!("{year}-{month:02}-{day:02}")
}

/// Year, month and day of a day since 1970, by the Gregorian calendar.
fn date_of(days: u64) -> (u64, u64, u64) {
    // Years that begin in March have the leap day at their end; 400 of them have as many days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let first = (153 * month + 2) / 5;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day - first + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_164_800, "2024-02-29"),
            (1_735_689_599, "2024-12-31"),
            (1_735_689_600, "2025-01-01"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(day(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
        assert_eq!(day(UNIX_EPOCH - Duration::from_secs(1)), "-");
    }
}
