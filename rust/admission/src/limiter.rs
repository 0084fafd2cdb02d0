//! How much may be in flight: additive increase, multiplicative decrease, steered by queue delay.

use super::time::Nanos;

/// Fewer delays are no estimate of a 99th percentile.
const ENOUGH: f64 = 50.0;
/// The most a queue may hold, in requests per worker and in all.
const MOST_QUEUED: f64 = 256.0;
/// A queue that takes this part of the SLA to work off endangers no answer: the limit is never cut below it. Where
/// an evaluation takes microseconds, a limit near the number of workers would refuse every small burst.
pub(super) const HARMLESS: f64 = 1.0 / 20.0;

/// The limit on what is in flight, in requests of average cost. For CPU-bound work the best value is known:
/// the workers and a short queue. The loop answers what the machine does besides: noisy neighbours, throttling.
#[derive(Debug)]
pub(super) struct Limiter {
    workers: f64,
    limit: f64,
    /// A cut takes one window to show.
    cooling: bool,
    /// The window before was delayed as well.
    delayed: bool,
}

/// What one window showed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signals {
    /// Requests started.
    pub(super) samples: f64,
    /// 99th percentile of the time from arrival to start, nanoseconds.
    pub(super) delay_p99: f64,
    /// Part of the answers that violated their SLA.
    pub(super) miss_share: f64,
    /// Most requests (of average cost) in flight at once.
    pub(super) peak: f64,
    /// The tightest SLA among checkpoints in use.
    pub(super) budget: Nanos,
    /// Average cost of a request, nanoseconds.
    pub(super) unit: f64,
}

// === impl Limiter ===

impl Limiter {
    /// Begins wide open: the first windows close it if need be.
    pub(super) fn new(workers: usize) -> Limiter {
        let workers = workers as f64;
        Limiter { workers, limit: workers + MOST_QUEUED, cooling: false, delayed: false }
    }

    /// The most that ever makes sense: a queue that takes half the budget to work off.
    fn ceiling(&self, signals: &Signals) -> f64 {
        let queue = self.workers * (signals.budget.0 as f64 / 2.0) / signals.unit.max(1.0);
        self.workers + queue.clamp(self.workers, MOST_QUEUED.max(self.workers))
    }

    /// The least that is ever of use: the workers and a queue that does no harm.
    fn floor(&self, signals: &Signals) -> f64 {
        let queue = self.workers * signals.budget.0 as f64 * HARMLESS / signals.unit.max(1.0);
        self.workers + queue.min(MOST_QUEUED)
    }

    /// The limit for the next window, in requests of average cost. True: it was cut.
    pub(super) fn update(&mut self, signals: &Signals) -> (f64, bool) {
        // Of some fifty requests in 100 ms the 99th percentile is the longest: one burst is not overload, two
        // windows in a row are. A violated SLA counts at once.
        let delayed = signals.delay_p99 > signals.budget.0 as f64 / 5.0;
        let late = signals.samples >= ENOUGH && (delayed && self.delayed || signals.miss_share > 0.005);
        self.delayed = signals.samples >= ENOUGH && delayed;
        let cut = late && !self.cooling;
        if cut {
            // From what was used: a limit far above what was ever in flight would take windows to bite.
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
