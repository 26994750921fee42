//! The date templates may ask for (`strftime_now`). It is passed in, so that a prompt is reproducible.

/// A date and time of day without a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateTime {
    year: i32,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
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

const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const SECONDS_PER_DAY: i64 = 86_400;

/// Seconds of 9999-12-31T23:59:59Z, the last date with a four-digit year.
const LAST_SECOND: i64 = 253_402_300_799;

impl DateTime {
    /// The UTC date of a Unix time in seconds; times before 1970 or after 9999 are moved to that range.
    pub fn from_unix_seconds(seconds: i64) -> DateTime {
        let seconds = seconds.clamp(0, LAST_SECOND);
        let (year, month, day) = civil_from_days(seconds / SECONDS_PER_DAY);
        let second_of_day = seconds % SECONDS_PER_DAY;
        DateTime {
            year,
            month,
            day,
            hour: (second_of_day / 3600) as u8,
            minute: (second_of_day / 60 % 60) as u8,
            second: (second_of_day % 60) as u8,
        }
    }

    /// A date at midnight; `None` if there is no such day between 1970 and 9999.
    pub fn from_date(year: i32, month: u8, day: u8) -> Option<DateTime> {
        if !(1970..=9999).contains(&year) {
            return None;
        }
        let first_of_year = days_before_year(year);
        // A day of the year found by looking is simpler than a formula, and 366 steps are nothing.
        (first_of_year..first_of_year + 366)
            .find(|&days| civil_from_days(days) == (year, month, day))
            .map(|days| DateTime::from_unix_seconds(days * SECONDS_PER_DAY))
    }

    /// Formats like C's `strftime` in the C locale. `Err` names a directive that is not known.
    pub(crate) fn format(&self, format: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            let mut directive = characters.next().unwrap_or('%');
            let padded = directive != '-';
            if !padded {
                directive = characters.next().unwrap_or('-');
            }
            out.push_str(&self.directive(directive, padded).ok_or_else(|| format!("%{directive}"))?);
        }
        Ok(out)
    }

    fn directive(&self, directive: char, padded: bool) -> Option<String> {
        let number =
            |value: i64, width: usize| if padded { format!("{value:0width$}") } else { value.to_string() };
        let month = MONTHS[usize::from(self.month) - 1];
        let weekday = WEEKDAYS[self.weekday()];
        let hour_of_12 = i64::from((self.hour + 11) % 12 + 1);
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => number(i64::from(self.year % 100), 2),
            'm' => number(self.month.into(), 2),
            'd' => number(self.day.into(), 2),
            'e' => format!("{:2}", self.day),
            'H' => number(self.hour.into(), 2),
            'I' => number(hour_of_12, 2),
            'M' => number(self.minute.into(), 2),
            'S' => number(self.second.into(), 2),
            'j' => number(self.days() - days_before_year(self.year) + 1, 3),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'F' => self.format("%Y-%m-%d").ok()?,
            'T' => self.format("%H:%M:%S").ok()?,
            'R' => self.format("%H:%M").ok()?,
            'D' | 'x' => self.format("%m/%d/%y").ok()?,
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }

    fn days(&self) -> i64 {
        let (year, month, day) = (self.year, self.month, self.day);
        let start = days_before_year(year);
        (start..start + 366).find(|&days| civil_from_days(days) == (year, month, day)).unwrap_or(start)
    }

    fn weekday(&self) -> usize {
        // 1970-01-01 was a Thursday.
        (self.days() + 4).rem_euclid(7) as usize
    }
}

fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days from 1970-01-01 to January 1 of `year`.
fn days_before_year(year: i32) -> i64 {
    let leap_days = |year: i64| year / 4 - year / 100 + year / 400;
    let before = i64::from(year) - 1;
    (before - 1969) * 365 + leap_days(before) - leap_days(1969)
}

/// Year, month (1-12) and day (1-31) of a day counted from 1970-01-01, for years up to 9999.
fn civil_from_days(days: i64) -> (i32, u8, u8) {
    // The mean year is longer than 365 days, so this guess is never too small by more than one step back.
    let mut year = 1970 + (days / 365) as i32;
    while days_before_year(year) > days {
        year -= 1;
    }
    let mut rest = days - days_before_year(year);
    for month in 1..=12u8 {
        let length = match month {
            2 => 28 + i64::from(is_leap(year)),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if rest < length {
            return (year, month, rest as u8 + 1);
        }
        rest -= length;
    }
    unreachable!("a day of the year lies in one of its months")
}

#[cfg(test)]
mod tests {
    use super::DateTime;

    /// Expected values: Python `datetime.utcfromtimestamp(seconds).strftime(..)`.
    #[test]
    fn dates_are_those_of_python() {
        let format = "%Y-%m-%d %H:%M:%S %A %b %j %-d %I %p %y";
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 Thursday Jan 001 1 12 AM 70"),
            (951_782_399, "2000-02-28 23:59:59 Monday Feb 059 28 11 PM 00"),
            (951_782_400, "2000-02-29 00:00:00 Tuesday Feb 060 29 12 AM 00"),
            (1_735_689_599, "2024-12-31 23:59:59 Tuesday Dec 366 31 11 PM 24"),
            (4_107_542_400, "2100-03-01 00:00:00 Monday Mar 060 1 12 AM 00"),
            (253_402_300_799, "9999-12-31 23:59:59 Friday Dec 365 31 11 PM 99"),
        ] {
            assert_eq!(DateTime::from_unix_seconds(seconds).format(format).unwrap(), text);
        }
        assert!(DateTime::from_date(2023, 2, 29).is_none());
        assert_eq!(DateTime::from_date(2024, 2, 29).unwrap().format("%d %B %Y").unwrap(), "29 February 2024");
        assert_eq!(DateTime::from_unix_seconds(0).format("%Q").unwrap_err(), "%Q");
    }
}
