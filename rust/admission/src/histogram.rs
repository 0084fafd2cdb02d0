//! Lock-free histogram of durations, read by window.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Number of buckets per doubling. A quantile is at most a quarter too high.
const PARTS: u32 = 4;
/// Durations below 2^7 ns share one bucket.
const LOW: u32 = 7;
/// Durations from 2^36 ns (69 s) share one bucket.
const HIGH: u32 = 36;
pub(super) const BUCKETS: usize = ((HIGH - LOW) * PARTS) as usize + 2;

/// The durations of the current window. All accesses are relaxed: buckets are independent counts, no memory is
/// published through them, and a sample may be counted in either of two adjacent windows.
#[derive(Debug)]
pub(super) struct Histogram {
    count: AtomicU32,
    sum: AtomicU64,
    buckets: [AtomicU32; BUCKETS],
}

/// The counts of a finished window, or of several merged ones.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) count: f32,
    pub(super) sum: f64,
    buckets: [f32; BUCKETS],
}

fn bucket(nanos: u64) -> usize {
    let doubling = 63 - (nanos | 1).leading_zeros();
    if doubling < LOW {
        0
    } else if doubling >= HIGH {
        BUCKETS - 1
    } else {
        let part = (nanos >> (doubling - 2)) as u32 & (PARTS - 1);
        ((doubling - LOW) * PARTS + part) as usize + 1
    }
}

/// Lower limit of a bucket, in nanoseconds.
fn edge(bucket: usize) -> f64 {
    if bucket == 0 {
        return 0.0;
    }
    let at = bucket as u32 - 1;
    let doubling = (1_u64 << (LOW + at / PARTS)) as f64;
    doubling * (1.0 + f64::from(at % PARTS) / f64::from(PARTS))
}

// === impl Histogram ===

impl Histogram {
    pub(super) fn new() -> Histogram {
        Histogram {
            count: AtomicU32::new(0),
            sum: AtomicU64::new(0),
            buckets: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    pub(super) fn record(&self, nanos: u64) {
        self.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        self.sum.fetch_add(nanos, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    pub(super) fn count(&self) -> f32 {
        self.count.load(Relaxed) as f32
    }

    /// Adds the window to `into` and resets it.
    pub(super) fn drain(&self, into: &mut Counts) {
        self.count.store(0, Relaxed);
        into.sum += self.sum.swap(0, Relaxed) as f64;
        for (bucket, sum) in self.buckets.iter().zip(&mut into.buckets) {
            if bucket.load(Relaxed) != 0 {
                // The buckets determine the count; the two counters may differ by samples that are being recorded.
                let count = bucket.swap(0, Relaxed) as f32;
                *sum += count;
                into.count += count;
            }
        }
    }
}

// === impl Counts ===

impl Counts {
    pub(super) fn new() -> Counts {
        Counts { count: 0.0, sum: 0.0, buckets: [0.0; BUCKETS] }
    }

    pub(super) fn clear(&mut self) {
        *self = Counts::new();
    }

    /// Reduces the weight of old windows.
    pub(super) fn fade(&mut self, factor: f32) {
        self.count *= factor;
        self.sum *= f64::from(factor);
        for bucket in &mut self.buckets {
            *bucket *= factor;
        }
    }

    pub(super) fn mean(&self) -> f64 {
        if self.count > 0.0 { self.sum / f64::from(self.count) } else { 0.0 }
    }

    /// Returns a quantile, interpolated within its bucket.
    pub(super) fn quantile(&self, part: f32) -> f64 {
        let wanted = self.count * part;
        let mut below = 0.0;
        for (at, &count) in self.buckets.iter().enumerate() {
            if count > 0.0 && below + count >= wanted {
                let (low, high) = (edge(at), edge(at + 1));
                return low + (high - low) * f64::from((wanted - below) / count).clamp(0.0, 1.0);
            }
            below += count;
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_a_quarter_off() {
        for base in [130_u64, 999, 20_000, 1_234_567, 5_000_000_000] {
            let histogram = Histogram::new();
            for step in 0..1000 {
                histogram.record(base + base * step / 1000);
            }
            let mut counts = Counts::new();
            histogram.drain(&mut counts);
            for part in [0.05_f32, 0.5, 0.95, 0.99] {
                let exact = base as f64 * (1.0 + f64::from(part));
                let got = counts.quantile(part);
                assert!((got / exact - 1.0).abs() < 0.25, "{base} {part}: {got} for {exact}");
            }
            assert!((counts.mean() / (base as f64 * 1.4995) - 1.0).abs() < 1e-2);
            assert!(histogram.is_empty());
        }
    }

    #[test]
    fn buckets_are_in_order_and_take_every_value() {
        let mut before = 0;
        for power in 0..64 {
            for nanos in [1_u64 << power, (1 << power) + (1 << power) / 2] {
                let at = bucket(nanos);
                assert!(at >= before && at < BUCKETS);
                before = at;
                if at > 0 && at < BUCKETS - 1 {
                    assert!(edge(at) <= nanos as f64 && (nanos as f64) < edge(at + 1));
                }
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket(0), 0);
    }
}
