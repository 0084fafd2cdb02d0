//! Times as key files and statements write them: RFC 3339.

use std::time::SystemTime;

use prost_types::Timestamp;

/// The time that a text states.
pub(crate) fn parse(text: &str) -> Option<SystemTime> {
    SystemTime::try_from(text.parse::<Timestamp>().ok()?).ok()
}

/// The text of a time, to the second.
pub(crate) fn text(time: SystemTime) -> String {
    Timestamp { nanos: 0, ..Timestamp::from(time) }.to_string()
}
