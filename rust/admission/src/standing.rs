//! Detection of a standing queue, which shows overload. A queue that empties from time to time is normal traffic.

use super::time::Nanos;

/// CoDel's test: the shortest delay of an interval shows whether the queue has emptied. The interval is ten budgets,
/// and the target is a tenth of one (RFC 8289 uses 100 ms and 5 ms for the Internet).
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Time for which the shortest delay has been above the target.
    above: u64,
}

// === impl Standing ===

impl Standing {
    /// Evaluates one window of length `elapsed` and returns whether the queue is standing. `shortest` is its shortest
    /// delay, or `None` if nothing was started; `stuck` then states whether requests were waiting.
    pub(super) fn update(
        &mut self,
        elapsed: Nanos,
        shortest: Option<Nanos>,
        stuck: bool,
        budget: Nanos,
    ) -> bool {
        let above = shortest.map_or(stuck, |shortest| shortest.0 > budget.0 / 10);
        self.above = if above { self.above.saturating_add(elapsed.0) } else { 0 };
        above && self.above >= budget.0.saturating_mul(10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_queue_that_stands_for_ten_budgets_counts() {
        let (window, budget) = (Nanos::from_millis(100), Nanos::from_millis(25));
        let mut standing = Standing::default();
        let mut see = |micros: u64| standing.update(window, Some(Nanos::from_micros(micros)), false, budget);
        assert!(!see(2600) && !see(2600) && see(2600) && see(2600));
        assert!(!see(2500), "it emptied");
        assert!(!see(9000) && !see(9000) && see(9000));
    }

    #[test]
    fn nothing_started_with_work_waiting_is_the_worst_queue() {
        let (window, budget) = (Nanos::from_millis(100), Nanos::from_millis(5));
        let mut standing = Standing::default();
        assert!(standing.update(window, None, true, budget));
        assert!(!standing.update(window, None, false, budget));
    }
}
