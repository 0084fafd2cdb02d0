//! When the disk will be full, from how fast its free space has been shrinking.

use std::collections::VecDeque;
use std::time::Duration;

/// The growth is that of the newest hour.
const WINDOW: Duration = Duration::from_secs(3600);
/// Samples lie at least this far apart.
const APART: Duration = Duration::from_secs(60);
/// No forecast is made from less.
const SHORTEST: Duration = Duration::from_secs(300);

/// Free space over time.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    /// When, by the monotonic clock, and how many bytes were free; the oldest first.
    samples: VecDeque<(Duration, u64)>,
}

// === impl Forecast ===

impl Forecast {
    /// Takes a sample.
    pub(crate) fn note(&mut self, at: Duration, free: u64) {
        if self.samples.back().is_some_and(|(last, _)| at.saturating_sub(*last) < APART) {
            return;
        }
        self.samples.push_back((at, free));
        while self.samples.front().is_some_and(|(first, _)| at.saturating_sub(*first) > WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Bytes by which free space shrinks per second; 0 while it does not, or is not known.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return 0.0 };
        let over = last.0.saturating_sub(first.0);
        if over < SHORTEST {
            return 0.0;
        }
        first.1.saturating_sub(last.1) as f64 / over.as_secs_f64()
    }

    /// Time until nothing is free, at the present growth; `None` if it never comes.
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
        // Writing stops; an hour later nothing is growing.
        for minute in 6..=66 {
            forecast.note(minutes(minute), free);
        }
        assert_eq!(forecast.until_full(free), None);
        // Space is given back: no forecast from that either.
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
