//! Time and chance, passed in so that a seeded simulator can drive the same code.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the log takes its time from.
pub trait Clock: Send + Sync {
    /// Wall clock, microseconds since the Unix epoch.
    fn unix_us(&self) -> i64;
    /// A clock that never goes back, from an arbitrary origin.
    fn monotonic(&self) -> Duration;
}

/// Where the log takes its identifiers from.
pub trait Random: Send + Sync {
    /// A UUID that no other segment has.
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

/// Time-ordered UUIDs (version 7).
#[derive(Debug, Default)]
pub struct RealRandom;

impl Random for RealRandom {
    fn uuid(&self) -> [u8; 16] {
        uuid::Uuid::now_v7().into_bytes()
    }
}
