//! Exponential backoff between attempts to reach a service.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// A delay that doubles with each attempt. Jitter prevents servers that lost the same service from
/// reconnecting at the same moments.
#[derive(Debug)]
pub struct Backoff {
    attempts: u32,
    random: RandomState,
}

// === impl Backoff ===

impl Backoff {
    /// Starts with the shortest delay.
    #[must_use]
    pub fn new() -> Backoff {
        Backoff { attempts: 0, random: RandomState::new() }
    }

    /// Returns the next delay: a random value between half of the current step and the whole step.
    pub fn next_delay(&mut self) -> Duration {
        let step = SHORTEST.saturating_mul(1 << self.attempts.min(10)).min(LONGEST);
        let share = self.random.hash_one(self.attempts) as f64 / u64::MAX as f64;
        self.attempts = self.attempts.saturating_add(1);
        step.mul_f64(0.5 + share / 2.0)
    }

    /// Starts again with the shortest delay, after the service has answered.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_to_a_limit_with_jitter_and_starts_anew() {
        let mut backoff = Backoff::new();
        for attempt in 0..100_u32 {
            let step = (0.1 * 2_f64.powi(attempt.min(10) as i32)).min(5.0);
            let waited = backoff.next_delay().as_secs_f64();
            assert!((step / 2.0..=step).contains(&waited), "{attempt}: {waited}");
        }
        backoff.reset();
        assert!(backoff.next_delay() <= SHORTEST);
        let first = |_| Backoff::new().next_delay();
        let spread: std::collections::HashSet<_> = (0..20).map(first).collect();
        assert!(spread.len() > 1, "two servers, one step");
    }
}
