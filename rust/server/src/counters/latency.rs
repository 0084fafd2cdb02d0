//! A histogram of latencies that keeps, for each bucket, the trace of the latest traced request in it.

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use scorer_engine::Histogram;

/// A traced request as an example of the latencies in its bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exemplar {
    pub(crate) trace_id: [u8; 16],
    pub(crate) took: Duration,
    /// Time of its end, in microseconds since the Unix epoch.
    pub(crate) at_us: i64,
}

/// The histogram, and the exemplars by bucket once a request was traced.
#[derive(Debug)]
pub(crate) struct Latency {
    pub(crate) histogram: Histogram,
    exemplars: OnceLock<Box<[Mutex<Option<Exemplar>>]>>,
}

// === impl Latency ===

impl Latency {
    pub(crate) fn new(sla: Option<Duration>) -> Latency {
        Latency { histogram: Histogram::new(sla), exemplars: OnceLock::new() }
    }

    /// Counts a request. Only a traced request locks, and it gives up if the bucket is being read.
    pub(crate) fn record(&self, took: Duration, exemplar: Option<&Exemplar>) {
        let bucket = self.histogram.record(took);
        if let Some(exemplar) = exemplar {
            let buckets = || (0..self.histogram.buckets()).map(|_| Mutex::default()).collect();
            if let Ok(mut latest) = self.exemplars.get_or_init(buckets)[bucket].try_lock() {
                *latest = Some(*exemplar);
            }
        }
    }

    /// Returns the exemplars with the indices of their buckets.
    pub(crate) fn exemplars(&self) -> Vec<(usize, Exemplar)> {
        let buckets = self.exemplars.get().into_iter().flatten().enumerate();
        buckets.filter_map(|(at, latest)| Some((at, (*latest.try_lock().ok()?)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_keeps_its_latest_traced_request() {
        let latency = Latency::new(None);
        let traced = |micros, number| {
            let took = Duration::from_micros(micros);
            let exemplar = Exemplar { trace_id: [number; 16], took, at_us: 0 };
            latency.record(took, Some(&exemplar));
            exemplar
        };
        assert_eq!(latency.exemplars(), []);
        traced(40, 1);
        let (fast, slow) = (traced(50, 2), traced(5_000_000, 3));
        latency.record(Duration::from_micros(45), None);
        let last = latency.histogram.buckets() - 1;
        assert_eq!(latency.exemplars(), [(0, fast), (last, slow)]);
    }
}
