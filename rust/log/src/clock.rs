//! Time and randomness, which are passed in, so that a seeded simulator can run the same code.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The log's source of time.
pub trait Clock: Send + Sync {
    /// Returns the wall-clock time in microseconds since the Unix epoch.
    fn unix_us(&self) -> i64;
    /// Returns the time of a clock that never goes back, from an arbitrary origin.
    fn monotonic(&self) -> Duration;
}

/// The log's source of identifiers.
pub trait Random: Send + Sync {
    /// Returns a UUID that no other segment has.
    fn uuid(&self) -> [u8; 16];
}

/// The machine's clocks.
#[derive(Debug)]
pub struct RealClock {
    origin: Instant,
}

impl Default for RealClock {
    fn default() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Clock for RealClock {
    fn unix_us(&self) -> i64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// Creates time-ordered UUIDs (version 7).
#[derive(Debug, Default)]
pub struct RealRandom;

impl Random for RealRandom {
    fn uuid(&self) -> [u8; 16] {
        uuid::Uuid::now_v7().into_bytes()
    }
}
