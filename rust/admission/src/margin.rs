//! The reply margin: the time before its deadline at which an answer must be ready.
//!
//! An answer waits for the writer thread, almost no time on an idle machine and milliseconds on a busy one. The margin
//! is therefore measured.

use super::histogram::{Counts, Histogram};
use super::time::Nanos;

/// Weight of older windows.
const FADE: f32 = 0.8;
/// Minimum number of replies for a 99th percentile.
const ENOUGH: f32 = 100.0;
/// Divisor of the tightest SLA that limits the margin, because evaluations need the rest.
const MOST: u64 = 4;

/// Replies of the last windows.
#[derive(Debug)]
pub(super) struct Margin {
    replies: Counts,
}

// === impl Margin ===

impl Margin {
    pub(super) fn new() -> Margin {
        Margin { replies: Counts::new() }
    }

    /// Ends a window and returns the margin: `least`, which writing always takes, plus the 99th percentile of the
    /// replies' waits.
    pub(super) fn update(&mut self, window: &Histogram, least: Nanos, budget: Nanos) -> Nanos {
        self.replies.fade(FADE);
        window.drain(&mut self.replies);
        if self.replies.count < ENOUGH {
            return least;
        }
        let waited = Nanos(self.replies.quantile(0.99) as u64);
        least.plus(waited).min(Nanos(budget.0 / MOST)).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_replies_take_within_its_bounds() {
        let (least, budget) = (Nanos::from_micros(150), Nanos::from_millis(10));
        let (mut margin, window) = (Margin::new(), Histogram::new());
        let mut see = |replies: u32, micros: u64| {
            (0..replies).for_each(|_| window.record(micros * 1000));
            margin.update(&window, least, budget)
        };
        assert_eq!(see(50, 700), least, "too few to judge by");
        let slow = see(1_000, 800);
        assert!(slow > Nanos::from_micros(150 + 800) && slow < Nanos::from_micros(150 + 1_000), "{slow:?}");
        assert_eq!(see(1_000, 9_000), Nanos::from_micros(2_500), "a quarter of the SLA at most");
        let mut after = Vec::new();
        for _ in 0..40 {
            after.push(see(1_000, 20));
        }
        assert!(after.windows(2).all(|pair| pair[1] <= pair[0]));
        assert!(after[39] < Nanos::from_micros(180), "{:?}", after[39]);
        assert_eq!(margin.update(&Histogram::new(), Nanos::from_micros(150), Nanos::from_micros(100)), least);
    }
}
