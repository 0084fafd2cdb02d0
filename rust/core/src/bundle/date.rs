//! Parts of dates: hour, weekday and day of the month of a time in seconds since 1970, in UTC plus a fixed offset.

use serde::{Deserialize, Serialize};

/// Greatest offset from UTC in seconds.
const MAX_OFFSET: i64 = 86_400;
/// The first second of the year 1 and the last one of the year 9999.
const EARLIEST: f64 = -62_135_596_800.0;
const LATEST: f64 = 253_402_300_799.0;
const DAY: f64 = 86_400.0;

/// A part of a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Hour of the day, 0 to 23.
    Hour,
    /// Day of the week: 0 is Monday and 6 is Sunday.
    Weekday,
    /// Day of the month, 1 to 31.
    Day,
}

impl Part {
    /// Checks the range of a time and the offset, both in seconds.
    pub(super) fn check(self, minimum: Option<f64>, maximum: Option<f64>, offset: i64) -> Result<(), String> {
        let within = |limit: Option<f64>| limit.is_some_and(|limit| (EARLIEST..=LATEST).contains(&limit));
        if !within(minimum) || !within(maximum) {
            return Err(format!(
                "a date needs a minimum and a maximum from {EARLIEST} to {LATEST} s; give them in the schema, or clip it before"
            ));
        }
        if offset.abs() > MAX_OFFSET {
            return Err(format!("offset {offset} is beyond {MAX_OFFSET} s; give the seconds from UTC"));
        }
        Ok(())
    }

    /// The least and the greatest value.
    pub(super) fn range(self) -> (f64, f64) {
        match self {
            Part::Hour => (0.0, 23.0),
            Part::Weekday => (0.0, 6.0),
            Part::Day => (1.0, 31.0),
        }
    }

    /// Returns the part of a finite number of seconds since 1970-01-01 00:00.
    pub(super) fn of(self, seconds: f64) -> f64 {
        // Rows that were not checked can have any time.
        let seconds = seconds.clamp(EARLIEST - DAY, LATEST + DAY);
        let days = (seconds / DAY).floor();
        match self {
            Part::Hour => ((seconds - days * DAY) / 3600.0).floor(),
            // 1970-01-01 was a Thursday.
            Part::Weekday => (days + 3.0).rem_euclid(7.0),
            Part::Day => day_of_month(days as i64) as f64,
        }
    }
}

/// The day of the month in the Gregorian calendar. Years are counted from March, so that the leap day is their last one.
fn day_of_month(days: i64) -> i64 {
    // Days since 0000-03-01, within the era of 400 years, and within the year.
    let of_era = (days + 719_468).rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // Five months, such as March to July, have 153 days.
    let month = (5 * of_year + 2) / 153;
    of_year - (153 * month + 2) / 5 + 1
}
