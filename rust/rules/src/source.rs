//! The TOML form of a rule set.

use serde::Deserialize;
use toml::Spanned;
use toml::value::Datetime;

use crate::fault::{Fault, position};

/// Bytes of the file of one rule set.
pub(crate) const MAX_FILE: usize = 4 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    pub(crate) name: Spanned<String>,
    #[serde(default)]
    pub(crate) hit: Option<HitPolicy>,
    /// Decisions that rules may write, the strictest first.
    #[serde(default)]
    pub(crate) decisions: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) values: Vec<ValueSource>,
    #[serde(default)]
    pub(crate) rules: Vec<RuleSource>,
    #[serde(default)]
    pub(crate) tables: Vec<TableSource>,
}

/// Which of the rules that fire have an effect. The words are those of DMN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HitPolicy {
    /// The first in the order of the file.
    First,
    /// The one with the greatest priority; of several, the first.
    Priority,
    /// All of them.
    Collect,
    /// All of them, which must have the same effect.
    Any,
    /// The only one.
    Unique,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ValueSource {
    pub(crate) name: Spanned<String>,
    pub(crate) is: Spanned<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RuleSource {
    pub(crate) id: Spanned<String>,
    pub(crate) when: Spanned<String>,
    pub(crate) decision: Option<Spanned<String>>,
    pub(crate) reason: Option<String>,
    pub(crate) cap: Option<Spanned<f64>>,
    pub(crate) floor: Option<Spanned<f64>>,
    pub(crate) queue: Option<String>,
    /// Actions with these values of factors are not eligible.
    pub(crate) remove: Option<Spanned<Selection>>,
    /// Only actions with these values of factors are eligible.
    pub(crate) keep: Option<Spanned<Selection>>,
    /// The regulation or agreement that the rule follows.
    pub(crate) source: Option<String>,
    #[serde(default)]
    pub(crate) priority: i64,
    pub(crate) from: Option<Spanned<Datetime>>,
    pub(crate) until: Option<Spanned<Datetime>>,
    pub(crate) snoozed_until: Option<Spanned<Datetime>>,
    pub(crate) rollout: Option<Spanned<f64>>,
    /// The most requests of a UTC day that the rule decides.
    pub(crate) daily: Option<Spanned<i64>>,
    pub(crate) daily_amount: Option<DailyAmount>,
    pub(crate) enabled: Option<bool>,
}

/// The most of the sum of a number over the requests of a UTC day that a rule decides.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DailyAmount {
    pub(crate) of: Spanned<String>,
    pub(crate) most: Spanned<f64>,
}

/// Values of factors. An action is selected if it has one of the values of each factor.
pub(crate) type Selection = std::collections::BTreeMap<String, Vec<String>>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableSource {
    pub(crate) id: Spanned<String>,
    #[serde(default)]
    pub(crate) hit: Option<HitPolicy>,
    /// Expressions that the first cells of each row test.
    pub(crate) inputs: Vec<Spanned<String>>,
    /// What the other cells write: decision, reason, cap, floor, queue or priority.
    pub(crate) outputs: Vec<Spanned<String>>,
    pub(crate) rows: Vec<Vec<Spanned<toml::Value>>>,
}

/// Parses a file.
pub(crate) fn parse_file(text: &str) -> Result<File, Fault> {
    let fault = |at: usize, problem: String| {
        let (line, column) = position(text, at);
        Fault { rule: String::new(), line, column, problem }
    };
    if text.len() > MAX_FILE {
        return Err(fault(0, format!("the file has {} bytes, more than {MAX_FILE}; split it", text.len())));
    }
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let message: String = error.message().replace(|character: char| character.is_control(), " ");
        fault(at, format!("{}; correct the file", message.trim()))
    })
}

/// The place in the file of a byte of a string's value. A string with escapes is not the text of the file, so its
/// start is given for every byte.
pub(crate) fn place(file: &str, value: &Spanned<String>, at: usize) -> (u32, u32) {
    let span = value.span();
    let written = file.get(span.clone()).unwrap_or_default();
    let start = match written.find(value.get_ref().as_str()) {
        Some(start) if written.len() - start - value.get_ref().len() <= 3 => start + at,
        _ => 0,
    };
    position(file, span.start + start)
}

/// Seconds since 1970 of a time with an offset, or of the start of a date in UTC.
pub(crate) fn seconds(time: &Datetime) -> Option<i64> {
    let date = time.date?;
    // Days from the civil calendar: years start in March, so that the leap day is the last one.
    let (year, month) = (i64::from(date.year), i64::from(date.month));
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + i64::from(date.day) - 1;
    let days =
        year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468;
    let offset = match (time.time, time.offset) {
        (None, None) => 0,
        (Some(_), Some(toml::value::Offset::Z)) => 0,
        (Some(_), Some(toml::value::Offset::Custom { minutes })) => i64::from(minutes) * 60,
        _ => return None,
    };
    let of_day = time.time.map_or(0, |time| {
        i64::from(time.hour) * 3_600 + i64::from(time.minute) * 60 + i64::from(time.second.unwrap_or(0))
    });
    Some(days * 86_400 + of_day - offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, expected) in [
            ("1970-01-01", Some(0)),
            ("2000-02-29", Some(951_782_400)),
            ("2026-03-01T00:00:00Z", Some(1_772_323_200)),
            ("2026-03-01T01:30:00+01:30", Some(1_772_323_200)),
            ("2100-12-31T23:59:59Z", Some(4_133_980_799)),
            ("2026-03-01T00:00:00", None),
            ("10:00:00", None),
        ] {
            assert_eq!(seconds(&text.parse().unwrap()), expected, "{text}");
        }
    }
}
