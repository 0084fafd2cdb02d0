//! When a request was decided, and where its time went.

use std::time::Duration;

/// When it was decided, and where the time went, in microseconds, as replies and records carry it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// When it was decided, since the Unix epoch.
    pub decided_at_us: i64,
    /// Routing and encoding the features.
    pub data_load_us: u32,
    /// Evaluating the bundle.
    pub exec_us: u32,
}

/// Whole microseconds; more than an hour is an hour and more.
#[must_use]
pub fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
