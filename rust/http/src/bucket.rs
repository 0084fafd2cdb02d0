//! A token bucket of one connection.

use std::time::{Duration, Instant};

use crate::Rate;

/// A token bucket. It reads the clock only when it is empty.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: Rate,
    left: f64,
    filled: Instant,
}

// === impl Bucket ===

impl Bucket {
    pub(crate) fn full(rate: Rate) -> Bucket {
        Bucket { rate, left: f64::from(rate.burst), filled: Instant::now() }
    }

    /// Adds tokens, up to the burst.
    pub(crate) fn pay(&mut self, tokens: u32) {
        self.left = (self.left + f64::from(tokens)).min(f64::from(self.rate.burst));
    }

    /// Takes one token. Returns false if there is none.
    pub(crate) fn spend(&mut self) -> bool {
        self.left -= 1.0;
        if self.left >= 0.0 {
            return true;
        }
        self.refill(self.filled.elapsed());
        self.left >= 0.0
    }

    fn refill(&mut self, after: Duration) {
        self.filled += after;
        let burst = f64::from(self.rate.burst);
        self.left = (self.left + after.as_secs_f64() * f64::from(self.rate.per_second)).min(burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_with_time() {
        let mut bucket = Bucket::full(Rate { burst: 2, per_second: 10 });
        assert!(bucket.spend() && bucket.spend());
        bucket.refill(Duration::from_millis(100));
        assert!(bucket.spend());
        bucket.refill(Duration::from_secs(100));
        assert_eq!(bucket.left, 2.0);
    }
}
