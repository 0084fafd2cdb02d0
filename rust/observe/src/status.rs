//! The status of an observe lane.

use std::collections::BTreeMap;

use serde::Serialize;

/// One observe lane's counters since it started.
#[derive(Clone, Debug, Serialize)]
pub struct ObserverStatus {
    /// The checkpoint that it observes.
    pub checkpoint: String,
    /// The lane's name.
    pub lane: String,
    /// The bundle's digest, `sha256:<hex>`.
    pub bundle: String,
    /// Whether the shadow pool evaluates it.
    pub pool: bool,
    /// Requests answered at the checkpoint.
    pub seen: u64,
    /// Requests that the filter or the sample excluded.
    pub left_out: u64,
    /// Requests that passed the filter and the sample.
    pub taken: u64,
    /// Taken requests that were not evaluated because the queue was full.
    pub dropped: u64,
    /// Taken requests that were not evaluated because the server was under pressure.
    pub shed: u64,
    /// Requests that were evaluated.
    pub evaluated: u64,
    /// Evaluated requests without a score, by reason.
    pub failed: BTreeMap<&'static str, u64>,
    /// Observations that were not written to a decision log.
    pub unlogged: u64,
    /// Requests in its queue.
    pub waiting: u64,
    /// Whether one evaluation has been running for more than two seconds.
    pub stuck: bool,
    /// Median of the evaluations' CPU time in microseconds.
    pub exec_p50_us: f64,
    /// 99th percentile of the evaluations' CPU time in microseconds.
    pub exec_p99_us: f64,
    /// 99.9th percentile of the evaluations' CPU time in microseconds.
    pub exec_p999_us: f64,
    /// CPU time of the lane's thread in seconds.
    pub cpu_seconds: f64,
}
