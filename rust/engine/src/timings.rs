//! The times of a request's stages.

use std::time::Duration;

/// The time of the decision and of its stages, as in replies and records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Time of the decision, in microseconds since the Unix epoch.
    pub decided_at_us: i64,
    /// Time of routing and encoding the features, in microseconds.
    pub data_load_us: u32,
    /// Time of evaluating the bundle, in microseconds.
    pub exec_us: u32,
}

/// Converts a duration to whole microseconds, at most `u32::MAX` (about 71 minutes).
#[must_use]
pub fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
