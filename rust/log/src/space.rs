//! Predicts when the disk will be full, from the rate at which its free space decreases.

use std::collections::VecDeque;
use std::time::Duration;

/// Time over which the rate is computed.
const WINDOW: Duration = Duration::from_secs(3600);
/// Least time between two samples.
const APART: Duration = Duration::from_secs(60);
/// Least time between the first and the last sample for a forecast.
const SHORTEST: Duration = Duration::from_secs(300);

/// Free space over time.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    /// When, by the monotonic clock, and how many bytes were free; the oldest first.
    samples: VecDeque<(Duration, u64)>,
}

// === impl Forecast ===

impl Forecast {
    /// Adds a sample.
    pub(crate) fn note(&mut self, at: Duration, free: u64) {
        if self.samples.back().is_some_and(|(last, _)| at.saturating_sub(*last) < APART) {
            return;
        }
        self.samples.push_back((at, free));
        while self.samples.front().is_some_and(|(first, _)| at.saturating_sub(*first) > WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Returns the rate at which free space decreases, in bytes per second; 0 if it does not decrease or is not known.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return 0.0 };
        let over = last.0.saturating_sub(first.0);
        if over < SHORTEST {
            return 0.0;
        }
        first.1.saturating_sub(last.1) as f64 / over.as_secs_f64()
    }

    /// Returns the time until no space is free at the current rate; `None` if the space does not decrease.
    pub(crate) fn until_full(&self, free: u64) -> Option<Duration> {
        let rate = self.bytes_per_second();
        (rate > 0.0).then(|| Duration::try_from_secs_f64(free as f64 / rate).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1 << 30;

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    #[test]
    fn steady_growth_is_foreseen_and_what_is_long_past_is_forgotten() {
        let mut forecast = Forecast::default();
        let mut free = 100 * GB;
        for minute in 0..=4 {
            forecast.note(minutes(minute), free);
            assert_eq!(forecast.until_full(free), None, "too early to say");
            free -= GB;
        }
        forecast.note(minutes(5), free);
        assert_eq!(forecast.until_full(free), Some(minutes(95)));
        // Writing stops. One hour later the rate is 0.
        for minute in 6..=66 {
            forecast.note(minutes(minute), free);
        }
        assert_eq!(forecast.until_full(free), None);
        // Space is freed, which gives no forecast either.
        forecast.note(minutes(67), 100 * GB);
        assert_eq!(forecast.until_full(100 * GB), None);
    }

    #[test]
    fn samples_are_bounded() {
        let mut forecast = Forecast::default();
        for second in 0..100_000 {
            forecast.note(Duration::from_secs(second), GB);
        }
        assert!(forecast.samples.len() <= 61);
    }
}
