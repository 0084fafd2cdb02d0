//! Times and durations that callers pass in.

use std::time::Duration;

/// Nanoseconds: a point in time of a monotonic clock, which the caller chooses, or a duration. Never wall-clock time.
///
/// Arithmetic saturates, so that a clock that jumps does not turn a short wait into a long one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

// === impl Nanos ===

impl Nanos {
    /// A duration of zero, or the origin of the clock.
    pub const ZERO: Nanos = Nanos(0);
    /// A time later than all others.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// Creates a value from microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros.saturating_mul(1_000))
    }

    /// Creates a value from milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis.saturating_mul(1_000_000))
    }

    /// Creates a value from seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Nanos {
        Nanos(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the point `span` later.
    #[must_use]
    pub const fn plus(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }

    /// Returns the point `span` earlier.
    #[must_use]
    pub const fn minus(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(span.0))
    }

    /// Returns the time since `earlier`; zero if `earlier` is later than `self`.
    #[must_use]
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// Converts the duration to that of the standard library.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Nanos {
    fn from(span: Duration) -> Nanos {
        Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}
