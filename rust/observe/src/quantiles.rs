//! Quantiles of evaluation times. A quantile is at most a sixteenth above the exact value.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Number of buckets per doubling.
const PARTS: u32 = 16;
/// Durations below 2^`LOW` nanoseconds share one bucket.
const LOW: u32 = 8;
/// Durations from 2^`HIGH` nanoseconds, about a minute, share the last bucket.
const HIGH: u32 = 36;

/// Numbers of evaluations by duration. One thread adds; any thread may read.
pub(crate) struct Quantiles(Box<[AtomicU64]>);

impl Default for Quantiles {
    fn default() -> Quantiles {
        Quantiles((0..(HIGH - LOW) * PARTS + 2).map(|_| AtomicU64::new(0)).collect())
    }
}

// === impl Quantiles ===

impl Quantiles {
    pub(crate) fn record(&self, nanos: u64) {
        self.0[bucket(nanos)].fetch_add(1, Relaxed);
    }

    /// Returns the nanoseconds at each rank, from 0 to 1; zeros if nothing has been recorded.
    pub(crate) fn at<const N: usize>(&self, ranks: [f64; N]) -> [f64; N] {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Relaxed)).collect();
        let all: u64 = counts.iter().sum();
        ranks.map(|rank| {
            let wanted = (all as f64 * rank).ceil().max(1.0) as u64;
            let mut sum = 0;
            let found = counts.iter().position(|count| {
                sum += count;
                sum >= wanted
            });
            found.map_or(0.0, upper)
        })
    }
}

fn bucket(nanos: u64) -> usize {
    let doubling = 63 - (nanos | 1).leading_zeros();
    if doubling < LOW {
        0
    } else if doubling >= HIGH {
        ((HIGH - LOW) * PARTS) as usize + 1
    } else {
        let part = (nanos >> (doubling - PARTS.ilog2())) as u32 & (PARTS - 1);
        ((doubling - LOW) * PARTS + part) as usize + 1
    }
}

/// Upper limit of a bucket, in nanoseconds.
fn upper(bucket: usize) -> f64 {
    let doubling = LOW + bucket as u32 / PARTS;
    (1_u64 << doubling) as f64 * (1.0 + f64::from(bucket as u32 % PARTS) / f64::from(PARTS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_a_sixteenth_too_high() {
        assert_eq!(Quantiles::default().at([0.5, 0.99]), [0.0, 0.0]);
        for scale in [1_u64, 37, 1_000, 54_321, 1_000_000] {
            let quantiles = Quantiles::default();
            let mut values: Vec<u64> = (1..=1000).map(|number| 300 + number * scale).collect();
            values.iter().for_each(|&value| quantiles.record(value));
            values.sort_unstable();
            for (rank, got) in
                [0.001, 0.5, 0.99, 0.999, 1.0].into_iter().zip(quantiles.at([0.001, 0.5, 0.99, 0.999, 1.0]))
            {
                let exact = values[(1000.0 * rank) as usize - 1] as f64;
                assert!(got >= exact && got <= exact * (1.0 + 1.0 / 16.0) + 1.0, "{rank}: {got}, {exact}");
            }
        }
        for nanos in [0, 1, 255, u64::MAX, 1 << 36] {
            let quantiles = Quantiles::default();
            quantiles.record(nanos);
            assert!(quantiles.at([1.0])[0] > 0.0);
        }
    }
}
