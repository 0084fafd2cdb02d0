//! A histogram to which many threads add without locks.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Numbers of durations by bucket. `edges` are the upper edges in microseconds, ascending; the last bucket has none.
#[derive(Debug)]
pub struct Histogram {
    edges: Box<[u64]>,
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

/// Edges for answers that take microseconds to seconds.
const EDGES_US: [u64; 16] = [
    50, 100, 200, 350, 500, 750, 1_000, 2_000, 3_500, 5_000, 10_000, 20_000, 50_000, 100_000, 250_000,
    1_000_000,
];

/// Edges relative to an SLA.
const AROUND_SLA: [f64; 8] = [0.1, 0.25, 0.5, 0.8, 1.0, 1.5, 2.0, 4.0];

/// Edges for the time from the change of an alias to the first answer.
const EDGES_OF_LOADS_US: [u64; 12] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    120_000_000,
];

/// Edges for reads of features, which take microseconds from memory and milliseconds from a service.
const EDGES_OF_READS_US: [u64; 12] = [2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 20_000];

// === impl Histogram ===

impl Histogram {
    /// Creates a histogram with the common edges and, if there is an SLA, edges around it and at it, so that the share
    /// of answers within the SLA is exact and not interpolated.
    #[must_use]
    pub fn new(sla: Option<Duration>) -> Histogram {
        let mut edges = EDGES_US.to_vec();
        if let Some(sla) = sla {
            let sla = sla.as_micros() as f64;
            edges.extend(AROUND_SLA.map(|factor| (sla * factor).round().max(1.0) as u64));
        }
        Histogram::with_edges(edges)
    }

    /// Creates a histogram for reads of features.
    #[must_use]
    pub fn of_reads() -> Histogram {
        Histogram::with_edges(EDGES_OF_READS_US.to_vec())
    }

    /// Creates a histogram for the roll-out of bundles, which takes milliseconds to minutes.
    #[must_use]
    pub fn of_loads() -> Histogram {
        Histogram::with_edges(EDGES_OF_LOADS_US.to_vec())
    }

    fn with_edges(mut edges: Vec<u64>) -> Histogram {
        edges.sort_unstable();
        edges.dedup();
        let counts = (0..=edges.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { edges: edges.into(), counts, sum_us: AtomicU64::new(0) }
    }

    /// Counts one duration, and returns the index of its bucket.
    pub fn record(&self, value: Duration) -> usize {
        let micros = u64::try_from(value.as_micros()).unwrap_or(u64::MAX);
        // A value equal to an edge belongs to the bucket below it, as in Prometheus ("le").
        let bucket = self.edges.partition_point(|&edge| edge < micros);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(micros, Relaxed);
        bucket
    }

    /// Number of buckets.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.counts.len()
    }

    /// Returns the sum in seconds, the count, and the count of each bucket with its upper edge in seconds. The count is
    /// the sum of the buckets, so that a scrape during traffic is consistent.
    #[must_use]
    pub fn read(&self) -> (f64, u64, Vec<(f64, u64)>) {
        let edges = self.edges.iter().map(|&edge| edge as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<_> =
            edges.zip(self.counts.iter()).map(|(edge, count)| (edge, count.load(Relaxed))).collect();
        let count = buckets.iter().map(|&(_, count)| count).sum();
        (self.sum_us.load(Relaxed) as f64 / 1e6, count, buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sla_is_an_edge_and_belongs_to_the_bucket_below() {
        let histogram = Histogram::new(Some(Duration::from_millis(7)));
        histogram.record(Duration::from_micros(7_000));
        histogram.record(Duration::from_micros(7_001));
        histogram.record(Duration::from_secs(3));
        let (sum, count, buckets) = histogram.read();
        let within: u64 = buckets.iter().filter(|&&(edge, _)| edge <= 0.007).map(|&(_, count)| count).sum();
        assert_eq!((within, count), (1, 3));
        assert!(buckets.iter().any(|&(edge, count)| edge == 0.010 && count == 1));
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 1)));
        assert!((sum - 3.014_001).abs() < 1e-9, "{sum}");
    }
}
