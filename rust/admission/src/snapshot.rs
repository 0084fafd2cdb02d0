//! The state of admission control, for metrics and status.

use std::sync::atomic::Ordering::Relaxed;

use super::admit::Admission;
use super::pressure::Pressure;
use super::settings::TIERS;
use super::time::Nanos;
use super::verdict::{SHED_REASONS, ShedReason};

/// One look; the values need not belong to the same instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Snapshot {
    /// Requests admitted and waiting for a worker, by queue.
    pub queued: [u64; 3],
    /// Work they are expected to take, with what is left of long work under way.
    pub queued_work: [Nanos; 3],
    /// Requests on a worker.
    pub running: u64,
    /// Requests that entered and were not asked about yet.
    pub waiting: u64,
    /// Work that may be in flight; [`Nanos::MAX`] before the first window.
    pub limit: Nanos,
    /// Average expected cost of a request of tiers 0 to 2.
    pub unit: Nanos,
    /// How long before its deadline an answer has to be ready.
    pub margin: Nanos,
    /// The step of the ladder.
    pub pressure: Pressure,
    /// The lowest tier that is let in at all, and the part of its cohorts that is, 0 to 1.
    pub cutoff: (u8, f64),
    /// Work per wall time that each caller may use before it waits behind others; `None`: shares are off.
    pub even_share: Option<f64>,
}

/// One checkpoint's counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Shed, in the order of [`SHED_REASONS`].
    pub shed: [u64; SHED_REASONS.len()],
    /// What observing would have shed.
    pub would_shed: [u64; SHED_REASONS.len()],
    /// Admitted, and too late when a worker came to it.
    pub too_late: u64,
    /// Answered after its SLA.
    pub missed: u64,
}

// === impl Admission ===

impl Admission {
    /// The state as it is now.
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

    /// A checkpoint's counts; zeros for an index there is none of.
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

    /// What one request is expected to take: on average, and cautiously (the 95th percentile).
    #[must_use]
    pub fn expected(&self, checkpoint: usize, bundle: u64, rows: u32) -> Option<(Nanos, Nanos)> {
        let point = self.checkpoints.get(checkpoint)?;
        let estimate = point.costs.estimate(bundle, rows);
        Some((Nanos(estimate.mean), Nanos(estimate.cautious)))
    }
}

// === impl Counted ===

impl Counted {
    /// Reason and count, of what was shed.
    pub fn shed(&self) -> impl Iterator<Item = (ShedReason, u64)> {
        SHED_REASONS.into_iter().zip(self.shed)
    }
}
