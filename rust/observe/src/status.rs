//! What an observe lane reports of itself.

use std::collections::BTreeMap;

use serde::Serialize;

/// One observe lane's counts since it began.
#[derive(Clone, Debug, Serialize)]
pub struct ObserverStatus {
    /// Where it observes.
    pub checkpoint: String,
    /// Its name.
    pub lane: String,
    /// `sha256:<hex>`.
    pub bundle: String,
    /// It is evaluated by the shadow pool.
    pub pool: bool,
    /// Requests that came by.
    pub seen: u64,
    /// Those that its filter or its sample left out.
    pub left_out: u64,
    /// Those that they did not.
    pub taken: u64,
    /// Taken, and not evaluated because there was no place for them.
    pub dropped: u64,
    /// Taken, and not evaluated because the server was under pressure.
    pub shed: u64,
    /// Evaluated.
    pub evaluated: u64,
    /// Evaluated without getting a score, by reason.
    pub failed: BTreeMap<&'static str, u64>,
    /// Observations that are in no log.
    pub unlogged: u64,
    /// Requests in its queue.
    pub waiting: u64,
    /// It has not come back from one evaluation for seconds.
    pub stuck: bool,
    /// The median evaluation, microseconds of its thread's processor time.
    pub exec_p50_us: f64,
    /// The 99th percentile.
    pub exec_p99_us: f64,
    /// The 99.9th percentile.
    pub exec_p999_us: f64,
    /// Processor time of its thread, seconds.
    pub cpu_seconds: f64,
}
