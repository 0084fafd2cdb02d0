//! The counters of one observe lane.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use scorer_engine::Histogram;

use crate::quantiles::Quantiles;

/// The reason why an observation has no score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The evaluation panicked.
    Panic,
    /// A score was NaN or infinite.
    NonFinite,
    /// The bundle's schema rejects the request's features.
    Features,
    /// The evaluation failed for another reason.
    Error,
}

/// One lane's counters since it started. The counters that answering threads write are on a cache line of their own.
pub(crate) struct Counters {
    pub(crate) offered: Offered,
    pub(crate) done: Done,
}

#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Offered {
    /// Requests answered at the lane's checkpoint.
    pub(crate) seen: AtomicU64,
    /// Requests that passed the sample and the filter.
    pub(crate) taken: AtomicU64,
    /// Taken requests that were not evaluated because the queue was full.
    pub(crate) dropped: AtomicU64,
    /// Taken requests that were not evaluated because the server was under pressure.
    pub(crate) shed: AtomicU64,
}

#[repr(align(128))]
pub(crate) struct Done {
    pub(crate) evaluated: AtomicU64,
    failed: [AtomicU64; Failure::ALL.len()],
    /// Observations that were not written to a decision log.
    pub(crate) unlogged: AtomicU64,
    /// CPU time of the lane's thread, in nanoseconds.
    pub(crate) cpu_ns: AtomicU64,
    /// The system's number of the thread; 0 before it starts.
    pub(crate) thread: AtomicUsize,
    /// Start of the current evaluation, in microseconds after the server's start, at least 1; 0 between evaluations.
    pub(crate) busy_since: AtomicU64,
    pub(crate) exec: Histogram,
    pub(crate) quantiles: Quantiles,
}

// === impl Failure ===

impl Failure {
    pub(crate) const ALL: [Failure; 4] =
        [Failure::Panic, Failure::NonFinite, Failure::Features, Failure::Error];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Failure::Panic => "panic",
            Failure::NonFinite => "non_finite",
            Failure::Features => "features",
            Failure::Error => "error",
        }
    }
}

// === impl Counters ===

impl Counters {
    pub(crate) fn new() -> Counters {
        let done = Done {
            evaluated: AtomicU64::new(0),
            failed: Default::default(),
            unlogged: AtomicU64::new(0),
            cpu_ns: AtomicU64::new(0),
            thread: AtomicUsize::new(0),
            busy_since: AtomicU64::new(0),
            exec: Histogram::new(None),
            quantiles: Quantiles::default(),
        };
        Counters { offered: Offered::default(), done }
    }
}

// === impl Done ===

impl Done {
    /// Counts a failed evaluation and returns the number of failures of its kind.
    pub(crate) fn failed(&self, failure: Failure) -> u64 {
        self.failed[failure as usize].fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn failures(&self) -> [(Failure, u64); Failure::ALL.len()] {
        Failure::ALL.map(|failure| (failure, self.failed[failure as usize].load(Relaxed)))
    }
}
