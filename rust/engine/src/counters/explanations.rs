//! Counters of explanations on demand.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::Histogram;

/// Times of explanations, and numbers of those that were refused.
#[derive(Debug)]
pub struct ExplanationCounters {
    /// Durations of the computations.
    pub exec: Histogram,
    refused: [AtomicU64; NotExplained::ALL.len()],
}

/// The reason why an explanation is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotExplained {
    /// As many explanations wait or run as may.
    Full,
    /// The server is under pressure.
    Pressure,
    /// There was no result before the deadline.
    Deadline,
}

impl Default for ExplanationCounters {
    fn default() -> ExplanationCounters {
        ExplanationCounters { exec: Histogram::new(None), refused: Default::default() }
    }
}

impl ExplanationCounters {
    pub(crate) fn refused(&self, reason: NotExplained) {
        self.refused[reason as usize].fetch_add(1, Relaxed);
    }

    /// The numbers of refused explanations by reason.
    pub fn by_refusal(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NotExplained::ALL
            .iter()
            .zip(&self.refused)
            .map(|(reason, count)| (reason.as_str(), count.load(Relaxed)))
    }
}

impl NotExplained {
    /// All reasons, in the order of their counters.
    pub const ALL: [NotExplained; 3] = [NotExplained::Full, NotExplained::Pressure, NotExplained::Deadline];

    /// The name of the reason in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            NotExplained::Full => "full",
            NotExplained::Pressure => "pressure",
            NotExplained::Deadline => "deadline",
        }
    }
}
