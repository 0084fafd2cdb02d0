//! Times in key files and statements, in RFC 3339.

use std::time::SystemTime;

use prost_types::Timestamp;

/// Parses a time in RFC 3339.
pub(crate) fn parse(text: &str) -> Option<SystemTime> {
    SystemTime::try_from(text.parse::<Timestamp>().ok()?).ok()
}

/// Formats a time in RFC 3339, without fractions of a second.
pub(crate) fn text(time: SystemTime) -> String {
    Timestamp { nanos: 0, ..Timestamp::from(time) }.to_string()
}
