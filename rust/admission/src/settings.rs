//! Settings of admission control, read once at start.

use super::time::Nanos;

/// Tiers there are: 0 is what the shopper waits for, 3 is bulk and shadow work.
pub const TIERS: usize = 4;

/// Most checkpoints.
pub const MAX_CHECKPOINTS: usize = 1 << 12;

/// The settings of [`super::Admission`]. [`Settings::new`] gives the defaults; `docs/admission.md`
/// gives the reason for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Threads that evaluate at the same time: the cores this process may use for it.
    pub workers: usize,
    /// In the order of the indices that requests name.
    pub checkpoints: Vec<CheckpointSettings>,
    /// What encoding and writing a reply takes at least: an answer has to be ready this long before the deadline, and
    /// as much longer as replies are seen to wait ([`super::Admission::replied`]).
    pub reply_margin: Nanos,
    /// Work that is expected to take no longer runs where it was decoded: handing it over costs 5 to 20 µs.
    pub inline_max: Nanos,
    /// What answering without the model costs. Fallbacks that would take half the workers' time are refusals.
    pub fallback_cost: Nanos,
    /// Cells of the caller table, rounded up to a power of two; several times the callers there are.
    pub callers: usize,
    /// Keys the caller table and the cohorts, so that a client cannot aim at another caller's cell.
    pub seed: u64,
}

/// One checkpoint's SLA.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointSettings {
    /// The SLA of one answer.
    pub p99: Nanos,
    /// The SLA of a request with more than one row; `None`: the same.
    pub batch_p99: Option<Nanos>,
    /// 0 (kept longest) to 3 (bulk: runs only when no other request waits).
    pub tier: u8,
    /// What the limits do.
    pub mode: Mode,
    /// A request that is shed may be answered without the model ([`super::Instead::Fallback`]).
    pub fallback: bool,
    /// What one row is expected to take before anything was measured.
    pub row_cost: Nanos,
}

/// What the limits of a checkpoint do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: every request is taken on; only the caller's own deadline counts.
    Off,
    /// As off, but counts what would have been shed: what to run before enforcing.
    #[default]
    Observe,
    /// Sheds, and does not start what cannot be on time.
    Enforce,
}

/// A setting breaks its rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// No worker.
    #[error("admission: workers is 0; give at least 1")]
    NoWorkers,
    /// Too many checkpoints, or none.
    #[error("admission: {0} checkpoints; configure 1 to {MAX_CHECKPOINTS}")]
    Checkpoints(usize),
    /// A budget that nothing fits in.
    #[error(
        "admission: checkpoint {index}: {field} is {given} ns; it must be more than the reply margin of {margin} ns"
    )]
    Budget {
        /// The checkpoint.
        index: usize,
        /// `p99` or `batch_p99`.
        field: &'static str,
        /// Its value, nanoseconds.
        given: u64,
        /// The margin, nanoseconds.
        margin: u64,
    },
    /// No such tier.
    #[error("admission: checkpoint {index}: tier is {tier}; use 0 to 3")]
    Tier {
        /// The checkpoint.
        index: usize,
        /// What was given.
        tier: u8,
    },
}

// === impl Settings ===

impl Settings {
    /// The defaults for everything that has one.
    #[must_use]
    pub fn new(workers: usize, checkpoints: Vec<CheckpointSettings>) -> Settings {
        Settings {
            workers,
            checkpoints,
            reply_margin: Nanos::from_micros(150),
            inline_max: Nanos::from_micros(200),
            fallback_cost: Nanos::from_micros(10),
            callers: 1024,
            seed: 0,
        }
    }

    /// # Errors
    /// [`SettingsError`] names the setting, the rule and the remedy.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.workers == 0 {
            return Err(SettingsError::NoWorkers);
        }
        if self.checkpoints.is_empty() || self.checkpoints.len() > MAX_CHECKPOINTS {
            return Err(SettingsError::Checkpoints(self.checkpoints.len()));
        }
        let margin = self.reply_margin.0;
        for (index, checkpoint) in self.checkpoints.iter().enumerate() {
            if usize::from(checkpoint.tier) >= TIERS {
                return Err(SettingsError::Tier { index, tier: checkpoint.tier });
            }
            for (field, budget) in
                [("p99", checkpoint.p99), ("batch_p99", checkpoint.batch_p99.unwrap_or(checkpoint.p99))]
            {
                if budget.0 <= margin {
                    return Err(SettingsError::Budget { index, field, given: budget.0, margin });
                }
            }
        }
        Ok(())
    }
}

// === impl CheckpointSettings ===

impl CheckpointSettings {
    /// A checkpoint of tier 0 that observes.
    #[must_use]
    pub fn new(p99: Nanos) -> CheckpointSettings {
        CheckpointSettings {
            p99,
            batch_p99: None,
            tier: 0,
            mode: Mode::Observe,
            fallback: false,
            row_cost: Nanos::from_micros(100),
        }
    }

    /// The budget of a request with this many rows.
    #[must_use]
    pub fn budget(&self, rows: u32) -> Nanos {
        if rows > 1 { self.batch_p99.unwrap_or(self.p99) } else { self.p99 }
    }
}
