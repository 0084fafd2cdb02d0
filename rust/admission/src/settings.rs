//! Settings of admission control, read once at start.

use super::time::Nanos;

/// Number of tiers: 0 is for requests that a shopper waits for, 3 for bulk and shadow work.
pub const TIERS: usize = 4;

/// Limit on the number of checkpoints.
pub const MAX_CHECKPOINTS: usize = 1 << 12;

/// The settings of [`super::Admission`]. [`Settings::new`] gives the defaults; `docs/admission.md`
/// gives the reason for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Number of threads that evaluate concurrently, which is the number of cores available for it.
    pub workers: usize,
    /// Settings of checkpoints. Requests refer to them by index.
    pub checkpoints: Vec<CheckpointSettings>,
    /// Minimum time for encoding and writing a reply. An answer must be ready this long before the deadline, plus the
    /// measured wait of replies ([`super::Admission::replied`]).
    pub reply_margin: Nanos,
    /// Longest expected work that runs on the thread that decoded the request. Passing it to another costs 5 to 20 µs.
    pub inline_max: Nanos,
    /// Cost of a fallback answer. If fallbacks would take half of the workers' time, requests are refused instead.
    pub fallback_cost: Nanos,
    /// Cells of the caller table, rounded up to a power of two. Use several times the number of callers.
    pub callers: usize,
    /// Hash key of the caller table and the cohorts, so that a client cannot target another caller's cell.
    pub seed: u64,
}

/// SLA and tier of one checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointSettings {
    /// SLA of a single-row answer.
    pub p99: Nanos,
    /// SLA of a request with more than one row; `None` for the same SLA.
    pub batch_p99: Option<Nanos>,
    /// Tier, from 0 (shed last) to 3 (bulk: runs only when no other request waits).
    pub tier: u8,
    /// Effect of the limits.
    pub mode: Mode,
    /// Whether the fallback may answer a request that is shed ([`super::Instead::Fallback`]).
    pub fallback: bool,
    /// Expected time of one row before anything was measured.
    pub row_cost: Nanos,
}

/// Effect of a checkpoint's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Admits every request. Only the caller's deadline applies.
    Off,
    /// As `Off`, but counts the requests that would have been shed. Use it before `Enforce`.
    #[default]
    Observe,
    /// Sheds requests, and does not start those that cannot meet their deadline.
    Enforce,
}

/// A setting that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// There are no workers.
    #[error("admission: workers is 0; give at least 1")]
    NoWorkers,
    /// There are too many checkpoints, or none.
    #[error("admission: {0} checkpoints; configure 1 to {MAX_CHECKPOINTS}")]
    Checkpoints(usize),
    /// An SLA is not longer than the reply margin.
    #[error(
        "admission: checkpoint {index}: {field} is {given} ns; it must be more than the reply margin of {margin} ns"
    )]
    Budget {
        /// The checkpoint.
        index: usize,
        /// `p99` or `batch_p99`.
        field: &'static str,
        /// Its value in nanoseconds.
        given: u64,
        /// The reply margin in nanoseconds.
        margin: u64,
    },
    /// There is no such tier.
    #[error("admission: checkpoint {index}: tier is {tier}; use 0 to 3")]
    Tier {
        /// The checkpoint.
        index: usize,
        /// The given tier.
        tier: u8,
    },
}

// === impl Settings ===

impl Settings {
    /// Creates settings with the defaults.
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

    /// Validates the settings.
    ///
    /// # Errors
    /// [`SettingsError`] names the setting, the rule and the remedy.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.workers == 0 {
            return Err(SettingsError::NoWorkers);
        }
        if self.checkpoints.is_empty() || self.checkpoints.len() > MAX_CHECKPOINTS {
            return Err(SettingsError::Checkpoints(self.checkpoints.len()));
        }
        let mut checkpoints = self.checkpoints.iter().enumerate();
        checkpoints.try_for_each(|(index, checkpoint)| checkpoint.check(index, self.reply_margin))
    }
}

// === impl CheckpointSettings ===

impl CheckpointSettings {
    /// Creates a checkpoint of tier 0 in mode observe.
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

    /// Validates the settings of the checkpoint at `index`.
    pub(super) fn check(&self, index: usize, reply_margin: Nanos) -> Result<(), SettingsError> {
        if usize::from(self.tier) >= TIERS {
            return Err(SettingsError::Tier { index, tier: self.tier });
        }
        for (field, budget) in [("p99", self.p99), ("batch_p99", self.batch_p99.unwrap_or(self.p99))] {
            if budget <= reply_margin {
                return Err(SettingsError::Budget { index, field, given: budget.0, margin: reply_margin.0 });
            }
        }
        Ok(())
    }

    /// Returns the SLA of a request with this number of rows.
    #[must_use]
    pub fn budget(&self, rows: u32) -> Nanos {
        if rows > 1 { self.batch_p99.unwrap_or(self.p99) } else { self.p99 }
    }
}
