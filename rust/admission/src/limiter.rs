//! The limit on work in flight: additive increase and multiplicative decrease, controlled by queue delay.

use super::time::Nanos;

/// Minimum number of delays for an estimate of the 99th percentile.
const ENOUGH: f64 = 50.0;
/// Upper bound of the queue, in requests per worker and in total.
const MOST_QUEUED: f64 = 256.0;
/// Part of the SLA. A queue that takes no longer than this to process endangers no answer, so the limit is never below
/// it. For evaluations of microseconds, a limit near the number of workers would refuse every small burst.
pub(super) const HARMLESS: f64 = 1.0 / 20.0;

/// The limit on work in flight, in requests of average cost. For CPU-bound work, the best value is known: the number of
/// workers and a short queue. The control loop responds to other influences, such as noisy neighbours and throttling.
#[derive(Debug)]
pub(super) struct Limiter {
    workers: f64,
    limit: f64,
    /// Whether the limit was just cut. A cut takes effect one window later.
    cooling: bool,
    /// Whether the previous window was delayed.
    delayed: bool,
}

/// Measurements of one window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signals {
    /// Number of requests started.
    pub(super) samples: f64,
    /// 99th percentile of the time from arrival to start, in nanoseconds.
    pub(super) delay_p99: f64,
    /// Share of the answers that violated their SLA.
    pub(super) miss_share: f64,
    /// Peak of the work in flight, in requests of average cost.
    pub(super) peak: f64,
    /// The tightest SLA among checkpoints in use.
    pub(super) budget: Nanos,
    /// Average cost of a request, in nanoseconds.
    pub(super) unit: f64,
}

// === impl Limiter ===

impl Limiter {
    /// Creates a limiter without an effective limit; the first windows lower it if needed.
    pub(super) fn new(workers: usize) -> Limiter {
        let workers = workers as f64;
        Limiter { workers, limit: workers + MOST_QUEUED, cooling: false, delayed: false }
    }

    /// Returns the upper bound of the limit: a queue that takes half of the budget to process.
    fn ceiling(&self, signals: &Signals) -> f64 {
        let queue = self.workers * (signals.budget.0 as f64 / 2.0) / signals.unit.max(1.0);
        self.workers + queue.clamp(self.workers, MOST_QUEUED.max(self.workers))
    }

    /// Returns the lower bound of the limit: the workers and a queue that endangers no answer.
    fn floor(&self, signals: &Signals) -> f64 {
        let queue = self.workers * signals.budget.0 as f64 * HARMLESS / signals.unit.max(1.0);
        self.workers + queue.min(MOST_QUEUED)
    }

    /// Returns the limit for the next window, in requests of average cost, and whether it was cut.
    pub(super) fn update(&mut self, signals: &Signals) -> (f64, bool) {
        // With about fifty requests in 100 ms, the 99th percentile is the maximum. One burst is not overload, but two
        // consecutive windows are. Violations of the SLA count immediately.
        let delayed = signals.delay_p99 > signals.budget.0 as f64 / 5.0;
        let late = signals.samples >= ENOUGH && (delayed && self.delayed || signals.miss_share > 0.005);
        self.delayed = signals.samples >= ENOUGH && delayed;
        let cut = late && !self.cooling;
        if cut {
            // Starts from the peak, because a limit far above it would take several windows to have an effect.
            self.limit = self.limit.min(signals.peak.max(self.workers)) * 0.9;
        } else if !late && signals.peak * 2.0 >= self.limit {
            self.limit += 1.0;
        }
        self.cooling = cut;
        let ceiling = self.ceiling(signals);
        self.limit = self.limit.clamp(self.floor(signals).min(ceiling), ceiling);
        (self.limit, cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signals(delay_p99: f64) -> Signals {
        Signals {
            samples: 1000.0,
            delay_p99,
            miss_share: 0.0,
            peak: 1e3,
            budget: Nanos::from_millis(10),
            unit: 1e5,
        }
    }

    #[test]
    fn it_closes_under_delay_down_to_a_harmless_queue_and_opens_again() {
        let mut limiter = Limiter::new(2);
        let (open, cut) = limiter.update(&signals(0.0));
        assert_eq!((open, cut), (2.0 + 100.0, false), "half a budget of work per worker");
        assert_eq!(limiter.update(&signals(3e6)), (open, false), "one burst");
        let (first, cut) = limiter.update(&signals(3e6));
        assert!(cut && (first / open - 0.9).abs() < 1e-9);
        let (second, cut) = limiter.update(&signals(3e6));
        assert!(!cut && second == first, "the window after a cut still shows the queue from before it");
        let (third, cut) = limiter.update(&signals(3e6));
        assert!(cut && third < second);
        for _ in 0..200 {
            limiter.update(&signals(3e6));
        }
        assert_eq!(limiter.limit, 2.0 + 10.0, "half a millisecond of work for each of two workers");
        for window in 1..=20 {
            assert_eq!(limiter.update(&signals(1e6)).0, 12.0 + f64::from(window));
        }
    }

    #[test]
    fn one_that_waited_does_not_shut_out_a_burst_of_cheap_work() {
        let mut limiter = Limiter::new(2);
        let cheap = |delay_p99| Signals { unit: 1e4, peak: 3.0, ..signals(delay_p99) };
        for _ in 0..50 {
            limiter.update(&cheap(9e6));
        }
        assert_eq!(limiter.limit, 2.0 + 100.0);
    }

    #[test]
    fn it_does_not_grow_unused_nor_judge_on_few_samples() {
        let mut limiter = Limiter::new(1);
        limiter.limit = 10.0;
        let idle = Signals { peak: 4.0, ..signals(0.0) };
        assert_eq!(limiter.update(&idle).0, 10.0);
        let few = Signals { samples: 49.0, peak: 4.0, ..signals(9e6) };
        for _ in 0..3 {
            assert_eq!(limiter.update(&few), (10.0, false));
        }
    }

    #[test]
    fn violated_slas_close_it_without_delay() {
        let mut limiter = Limiter::new(1);
        assert!(!limiter.update(&Signals { miss_share: 0.004, ..signals(0.0) }).1);
        assert!(limiter.update(&Signals { miss_share: 0.006, ..signals(0.0) }).1);
    }
}
