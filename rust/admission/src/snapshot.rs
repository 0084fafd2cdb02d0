//! The state of admission control, for metrics and status.

use std::sync::atomic::Ordering::Relaxed;

use super::admit::Admission;
use super::pressure::Pressure;
use super::settings::TIERS;
use super::time::Nanos;
use super::verdict::{SHED_REASONS, ShedReason};

/// The state of admission control. The values may belong to slightly different times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Snapshot {
    /// Number of requests admitted and waiting for a worker, by queue.
    pub queued: [u64; 3],
    /// Expected work of these requests, including the remainder of long work in progress.
    pub queued_work: [Nanos; 3],
    /// Number of requests on a worker.
    pub running: u64,
    /// Number of requests that entered and have not called `ask` yet.
    pub waiting: u64,
    /// Limit on work in flight; [`Nanos::MAX`] before the first window.
    pub limit: Nanos,
    /// Average expected cost of a request of tiers 0 to 2.
    pub unit: Nanos,
    /// Time before its deadline at which an answer must be ready.
    pub margin: Nanos,
    /// The pressure level.
    pub pressure: Pressure,
    /// The lowest tier that is admitted, and the admitted share of its cohorts, from 0 to 1.
    pub cutoff: (u8, f64),
    /// Work per wall time that each caller may use before its requests wait behind others; `None`: shares are off.
    pub even_share: Option<f64>,
}

/// Counters of one checkpoint since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests that were shed, in the order of [`SHED_REASONS`].
    pub shed: [u64; SHED_REASONS.len()],
    /// Requests that enforcing would have shed.
    pub would_shed: [u64; SHED_REASONS.len()],
    /// Requests that were admitted, but too late when a worker started them.
    pub too_late: u64,
    /// Requests that were answered after their SLA.
    pub missed: u64,
}

// === impl Admission ===

impl Admission {
    /// Returns the current state.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let queued = [self.queued[0].read(), self.queued[1].read(), self.queued[2].read()];
        let cohorts = 128;
        let level = self.cutoff.level();
        let even = self.callers.even();
        Snapshot {
            queued: queued.map(|queue| queue.count),
            queued_work: queued.map(|queue| Nanos(queue.nanos)),
            running: self.running.read().count,
            waiting: self.waiting.load(Relaxed),
            limit: Nanos(self.rules.limit.load(Relaxed)),
            unit: Nanos(self.rules.unit.load(Relaxed)),
            margin: self.margin(),
            pressure: self.pressure(),
            cutoff: (
                (level / cohorts).min(TIERS as u32 - 1) as u8,
                f64::from(level % cohorts + 1) / f64::from(cohorts),
            ),
            even_share: (even > 0.0).then(|| 1.0 / even),
        }
    }

    /// Returns a checkpoint's counters, or zeros for an unknown index.
    #[must_use]
    pub fn counted(&self, checkpoint: usize) -> Counted {
        self.checkpoints.get(checkpoint).map_or_else(Counted::default, |point| {
            let counters = &point.counters;
            Counted {
                shed: std::array::from_fn(|at| counters.shed[at].load(Relaxed)),
                would_shed: std::array::from_fn(|at| counters.would_shed[at].load(Relaxed)),
                too_late: counters.too_late.load(Relaxed),
                missed: counters.missed.load(Relaxed),
            }
        })
    }

    /// Returns the expected time of one request: the mean and the 95th percentile.
    #[must_use]
    pub fn expected(&self, checkpoint: usize, bundle: u64, rows: u32) -> Option<(Nanos, Nanos)> {
        let point = self.checkpoints.get(checkpoint)?;
        let estimate = point.costs.estimate(bundle, rows);
        Some((Nanos(estimate.mean), Nanos(estimate.cautious)))
    }
}

// === impl Counted ===

impl Counted {
    /// Returns the number of shed requests by reason.
    pub fn shed(&self) -> impl Iterator<Item = (ShedReason, u64)> {
        SHED_REASONS.into_iter().zip(self.shed)
    }
}
