//! What one lane counts.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use scorer_engine::Histogram;

use crate::quantiles::Quantiles;

/// Why an observation has no score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The evaluation panicked.
    Panic,
    /// A score was NaN or infinite.
    NonFinite,
    /// The bundle's schema rejects what the request has.
    Features,
    /// The evaluation failed otherwise.
    Error,
}

/// One lane's counters since it began: those of the threads that answer on a cache line of their own.
pub(crate) struct Counters {
    pub(crate) offered: Offered,
    pub(crate) done: Done,
}

#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Offered {
    /// Requests that came by.
    pub(crate) seen: AtomicU64,
    /// Those that sample and filter did not leave out.
    pub(crate) taken: AtomicU64,
    /// Taken and not evaluated: there was no place for it.
    pub(crate) dropped: AtomicU64,
    /// The same because the server was under pressure.
    pub(crate) shed: AtomicU64,
}

#[repr(align(128))]
pub(crate) struct Done {
    pub(crate) evaluated: AtomicU64,
    failed: [AtomicU64; Failure::ALL.len()],
    /// Observations that are in no log.
    pub(crate) unlogged: AtomicU64,
    /// Of its thread.
    pub(crate) cpu_ns: AtomicU64,
    /// The thread's number; 0 without one.
    pub(crate) thread: AtomicUsize,
    /// When the evaluation began that it is at, microseconds after the server's start and never 0; 0: none.
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
    /// Counts a failed evaluation; returns how many of its kind there are.
    pub(crate) fn failed(&self, failure: Failure) -> u64 {
        self.failed[failure as usize].fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn failures(&self) -> [(Failure, u64); Failure::ALL.len()] {
        Failure::ALL.map(|failure| (failure, self.failed[failure as usize].load(Relaxed)))
    }
}
