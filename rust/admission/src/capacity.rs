//! Estimate of the part of the workers' time that evaluations get under full load.

/// Weight of a new measurement, per window.
const LEARN: f64 = 0.5;
/// Rate per window at which the estimate returns to 1 while the workers have idle time.
const FORGET: f64 = 0.02;
/// Lower bound of the estimate.
const LEAST: f64 = 0.01;

/// The largest part of the workers' time that evaluations can get. Reading, encoding and refusing requests and other
/// processes use the rest. Service times do not show it, and with a fast model it is most of the time.
#[derive(Debug)]
pub(super) struct Capacity {
    part: f64,
}

// === impl Capacity ===

impl Capacity {
    pub(super) fn new() -> Capacity {
        Capacity { part: 1.0 }
    }

    /// Updates the estimate after a window. `busy` is the part of the workers' time spent on evaluations, `emptied`
    /// whether the queue was short at least once. Only a queue that was never short shows that the workers were at
    /// their limit.
    pub(super) fn update(&mut self, busy: f64, emptied: bool) -> f64 {
        let busy = busy.clamp(0.0, 1.0);
        if emptied {
            self.part += (1.0 - self.part) * FORGET;
        } else {
            self.part += (busy - self.part) * LEARN;
        }
        self.part = self.part.max(busy).max(LEAST);
        self.part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_learns_from_full_queues_and_doubts_that_with_time() {
        let mut capacity = Capacity::new();
        assert_eq!(capacity.update(0.1, true), 1.0, "idle is not slow");
        for _ in 0..10 {
            capacity.update(0.1, false);
        }
        assert!((capacity.update(0.1, false) - 0.1).abs() < 0.01);
        assert_eq!(capacity.update(0.4, true), 0.4, "what was done can be done");
        for _ in 0..100 {
            capacity.update(0.05, true);
        }
        assert!(capacity.update(0.05, true) > 0.9);
        assert_eq!(Capacity::new().update(7.0, false), 1.0);
    }
}
