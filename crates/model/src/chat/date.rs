//! `strftime` for templates that print the date, in UTC.

#[cfg(not(target_arch = "wasm32"))]
use std::time::{SystemTime, UNIX_EPOCH};

#[cfg(target_arch = "wasm32")]
use web_time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970 by the system's clock.
pub(super) fn now_unix_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs() as i64)
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// 1970-01-01 was a Thursday.
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

struct Date {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    second_of_day: i64,
}

impl Date {
    /// Howard Hinnant's `civil_from_days`: years begin in March, so that leap days come last.
    fn from_unix_s(time: i64) -> Self {
        let days = time.div_euclid(86_400);
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = (shifted_month + 2) % 12;
        Self {
            year: year_of_era + era * 400 + i64::from(month < 2),
            month: month as usize,
            day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
            weekday: days.rem_euclid(7) as usize,
            second_of_day: time.rem_euclid(86_400),
        }
    }

    fn directive(&self, letter: char) -> Option<String> {
        let (hour, minute) = (self.second_of_day / 3600, self.second_of_day / 60 % 60);
        let (year, day) = (self.year, self.day);
        Some(match letter {
            'Y' => format!("{year:04}"),
            'y' => format!("{:02}", year.rem_euclid(100)),
            'm' => format!("{:02}", self.month + 1),
            'B' => MONTHS[self.month].to_owned(),
            'b' | 'h' => MONTHS[self.month][..3].to_owned(),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'A' => DAYS[self.weekday].to_owned(),
            'a' => DAYS[self.weekday][..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'M' => format!("{minute:02}"),
            'S' => format!("{:02}", self.second_of_day % 60),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'F' => format!("{year:04}-{:02}-{day:02}", self.month + 1),
            'T' => format!("{hour:02}:{minute:02}:{:02}", self.second_of_day % 60),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// Formats a time; an unknown directive is the error.
pub(super) fn strftime(unix_s: i64, format: &str) -> Result<String, String> {
    let date = Date::from_unix_s(unix_s);
    let mut out = String::with_capacity(format.len() + 16);
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            // glibc's "no padding", which templates use for the day.
            Some('-') => {
                let letter = letters.next().unwrap_or('-');
                let padded = date.directive(letter).ok_or_else(|| format!("-{letter}"))?;
                let bare = padded.trim_start_matches(['0', ' ']);
                out.push_str(if bare.is_empty() { "0" } else { bare });
            }
            Some(letter) => {
                out.push_str(&date.directive(letter).ok_or_else(|| letter.to_string())?);
            }
            None => return Err(String::new()),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_agree_with_the_calendar() {
        // date -u -d '2026-11-21 08:05:09' +%s and so on.
        let cases = [
            (0, "Thursday 01 Jan 1970 00:00:00"),
            (951_782_400, "Tuesday 29 Feb 2000 00:00:00"),
            (1_795_248_309, "Saturday 21 Nov 2026 08:05:09"),
            (4_107_542_400, "Monday 01 Mar 2100 00:00:00"),
            (-1, "Wednesday 31 Dec 1969 23:59:59"),
        ];
        for (time, text) in cases {
            assert_eq!(strftime(time, "%A %d %b %Y %H:%M:%S").unwrap(), text);
        }
        assert_eq!(
            strftime(1_795_248_309, "%-d %B %y, %I%p, %F%%").unwrap(),
            "21 November 26, 08AM, 2026-11-21%"
        );
        assert_eq!(strftime(0, "%Q"), Err("Q".to_owned()));
    }
    #[test]
    fn every_directive_is_that_of_glibc() {
        // date -u -d @1772374509 '+%...', a Sunday afternoon.
        let time = 1_772_374_509;
        for (directive, expected) in [
            ("%a %b %h", "Sun Mar Mar"),
            ("%e|%d|%-d|%-e", " 1|01|1|1"),
            ("%I %p %-I %-M", "02 PM 2 15"),
            ("%T %Z %z", "14:15:09 UTC +0000"),
            ("%m/%y %-m %-S", "03/26 3 9"),
            ("a%%b", "a%b"),
        ] {
            assert_eq!(strftime(time, directive).unwrap(), expected, "{directive}");
        }
        assert_eq!(
            strftime(0, "%-H:%-M %I %p").unwrap(),
            "0:0 12 AM",
            "nothing but zeros is a zero"
        );
    }

    #[test]
    fn what_is_no_directive_is_named() {
        let refused = |format| strftime(0, format).unwrap_err();
        assert_eq!([refused("%-Q"), refused("%-"), refused("%")], ["-Q", "--", ""]);
        assert_eq!(refused("%é"), "é");
    }
}
