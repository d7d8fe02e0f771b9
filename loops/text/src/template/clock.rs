//! `strftime_now`: today's date in a prompt, in UTC.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use hone_domain::civil;
use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
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

/// The system's clock, in seconds since 1970 (UTC).
pub(super) fn system_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs())
}

/// The first of January, counted from 1970-01-01.
fn first_day(year: u64) -> u64 {
    let before = year - 1;
    before * 365 + before / 4 - before / 100 + before / 400 - 719_162
}

/// `seconds` since 1970 in the usual `strftime` notation.
pub(super) fn format(format: &str, seconds: u64) -> Result<String, Error> {
    if format.len() > 1000 {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "strftime_now: format too long",
        ));
    }
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    let weekday = ((days + 4) % 7) as usize; // 1970-01-01 was a Thursday
    let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let bare = code == Some('-'); // no zero in front
        if bare {
            code = chars.next();
        }
        let width = if bare { 1 } else { 2 };
        let written = match code {
            Some('Y') => write!(out, "{year}"),
            Some('y') => write!(out, "{:0width$}", year % 100),
            Some('m') => write!(out, "{month:0width$}"),
            Some('j') => write!(
                out,
                "{:0>1$}",
                1 + days - first_day(year),
                if bare { 1 } else { 3 }
            ),
            Some('d') => write!(out, "{day:0width$}"),
            Some('e') => write!(out, "{day:width$}"),
            Some('H') => write!(out, "{hour:0width$}"),
            Some('I') => write!(out, "{twelve:0width$}"),
            Some('M') => write!(out, "{minute:0width$}"),
            Some('S') => write!(out, "{second:0width$}"),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('B') => write!(out, "{}", MONTHS[month - 1]),
            Some('b' | 'h') => write!(out, "{}", &MONTHS[month - 1][..3]),
            Some('A') => write!(out, "{}", DAYS[weekday]),
            Some('a') => write!(out, "{}", &DAYS[weekday][..3]),
            Some('F') => write!(out, "{year}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => write!(out, "UTC"),
            Some('z') => write!(out, "+0000"),
            Some('s') => write!(out, "{seconds}"),
            Some('%') => write!(out, "%"),
            other => {
                let code = other.map(String::from).unwrap_or_default();
                let why = format!("strftime_now: %{code} is not supported");
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            }
        };
        written.map_err(Error::from)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let check = |seconds, pattern, expected: &str| {
            assert_eq!(format(pattern, seconds).unwrap(), expected);
        };
        check(
            0,
            "%A %d %B %Y %H:%M:%S",
            "Thursday 01 January 1970 00:00:00",
        );
        check(951_782_400, "%a %-d %b %y %j", "Tue 29 Feb 00 060");
        check(1_709_210_096, "%F %I:%M %p", "2024-02-29 12:34 PM");
        check(4_102_444_799, "%F %T %Z %%", "2099-12-31 23:59:59 UTC %");
        assert!(format("%Q", 0).is_err() && format("%", 0).is_err());
    }
}
