//! The engine's counters: atomics that requests update and the server's metrics page reads.

mod explanations;
mod features;
mod histogram;
mod outcomes;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use scorer_admission::{CapHit, SHED_REASONS, ShedReason};

use crate::reason::Reason;
pub use explanations::{ExplanationCounters, NotExplained};
pub use features::{FeatureCounters, FeatureSetCounters};
pub use histogram::Histogram;
pub use outcomes::{OutcomeCounters, Refusal};

/// The caps on the exposure of fallbacks, in the order of their counters.
const CAPS: [CapHit; 4] = [CapHit::Single, CapHit::Count, CapHit::Total, CapHit::Moving];

/// All counters of the engine.
#[derive(Debug)]
pub struct Counters {
    /// The counters of checkpoints, by index.
    checkpoints: boxcar::Vec<CheckpointCounters>,
    /// Number of panics that were caught.
    pub panics: AtomicU64,
    /// Retries answered from the idempotency cache.
    pub replays: AtomicU64,
    /// Decisions that were answered and are not in the log.
    pub unlogged: AtomicU64,
    /// Decisions whose caller was gone before it was given the reply.
    pub undelivered: AtomicU64,
    /// Counters of reported outcomes.
    pub outcomes: OutcomeCounters,
    /// Counters of explanations on demand.
    pub explanations: ExplanationCounters,
    /// Counters of computed features.
    pub features: Arc<FeatureSetCounters>,
}

/// Counters of one checkpoint.
#[derive(Debug)]
pub struct CheckpointCounters {
    /// Durations of evaluations.
    pub exec: Histogram,
    /// Number of decisions.
    pub rows: AtomicU64,
    /// Evaluations that ended after the request had been answered otherwise, and were discarded.
    pub late_results: AtomicU64,
    fallbacks: [AtomicU64; Reason::COUNT],
    shed: [AtomicU64; SHED_REASONS.len()],
    would_shed: [AtomicU64; SHED_REASONS.len()],
    caps: [AtomicU64; CAPS.len()],
    unexplained: [AtomicU64; Unexplained::ALL.len()],
}

/// Why an answer has no reasons, although they were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unexplained {
    /// The server is under pressure.
    Pressure,
    /// The bundle has no covers.
    NoCovers,
}

// === impl Unexplained ===

impl Unexplained {
    /// All of them, in the order of their counters.
    pub const ALL: [Unexplained; 2] = [Unexplained::Pressure, Unexplained::NoCovers];

    /// The name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Unexplained::Pressure => "pressure",
            Unexplained::NoCovers => "no_covers",
        }
    }
}

// === impl Counters ===

impl Counters {
    /// Creates counters for checkpoints with these SLAs.
    pub(crate) fn new(slas: impl Iterator<Item = Duration>) -> Counters {
        Counters {
            checkpoints: slas.map(CheckpointCounters::new).collect(),
            panics: AtomicU64::new(0),
            replays: AtomicU64::new(0),
            unlogged: AtomicU64::new(0),
            undelivered: AtomicU64::new(0),
            outcomes: OutcomeCounters::default(),
            explanations: ExplanationCounters::default(),
            features: Arc::default(),
        }
    }

    /// Adds counters for one more checkpoint.
    pub(crate) fn add(&self, sla: Duration) {
        self.checkpoints.push(CheckpointCounters::new(sla));
    }

    /// The counters of a checkpoint, by its index.
    #[must_use]
    pub fn checkpoint(&self, index: usize) -> &CheckpointCounters {
        &self.checkpoints[index]
    }
}

// === impl CheckpointCounters ===

impl CheckpointCounters {
    fn new(sla: Duration) -> CheckpointCounters {
        CheckpointCounters {
            exec: Histogram::new(Some(sla)),
            rows: AtomicU64::new(0),
            late_results: AtomicU64::new(0),
            fallbacks: Default::default(),
            shed: Default::default(),
            would_shed: Default::default(),
            caps: Default::default(),
            unexplained: Default::default(),
        }
    }

    /// Counts an answer that did not come from the drawn lane's model.
    pub(crate) fn fell_back(&self, reason: Reason) {
        self.fallbacks[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts a request that was shed.
    pub(crate) fn shed(&self, reason: ShedReason) {
        self.shed[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts a request that would have been shed if the checkpoint enforced its SLA.
    pub(crate) fn would_shed(&self, reason: ShedReason) {
        self.would_shed[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts an answer without the reasons that were asked for.
    pub(crate) fn unexplained(&self, why: Unexplained) {
        self.unexplained[why as usize].fetch_add(1, Relaxed);
    }

    /// The numbers of answers without the reasons that were asked for.
    pub fn without_reasons(&self) -> impl Iterator<Item = (Unexplained, u64)> {
        Unexplained::ALL.into_iter().map(|why| (why, self.unexplained[why as usize].load(Relaxed)))
    }

    /// Counts a fallback that was not given because of an exposure cap.
    pub(crate) fn capped(&self, cap: CapHit) {
        let at = CAPS.iter().position(|known| *known == cap).unwrap_or(CAPS.len() - 1);
        self.caps[at].fetch_add(1, Relaxed);
    }

    /// The numbers of fallbacks by reason.
    pub fn fallbacks(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().map(|reason| (reason, self.fallbacks[reason as usize].load(Relaxed)))
    }

    /// For each reason the number of requests that were shed, and of those that would have been.
    pub fn sheds(&self) -> impl Iterator<Item = (ShedReason, u64, u64)> {
        SHED_REASONS.into_iter().map(|reason| {
            let at = reason as usize;
            (reason, self.shed[at].load(Relaxed), self.would_shed[at].load(Relaxed))
        })
    }

    /// The numbers of fallbacks that were not given, by exposure cap.
    pub fn caps(&self) -> impl Iterator<Item = (CapHit, u64)> {
        CAPS.into_iter().zip(self.caps.iter().map(|count| count.load(Relaxed)))
    }
}
