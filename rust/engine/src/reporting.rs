//! Limits on reported outcomes: how often a caller reports, and how often one outcome is replaced.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::config::OutcomeSettings;

/// Callers are counted in this many slots. A caller's slot depends on a random key of the process, so no caller can
/// choose to share another's.
const SLOTS: usize = 4096;
/// A caller that was silent may report this much of its rate at once.
const BURST: Duration = Duration::from_secs(1);

/// The limits, and when each caller may report again.
pub(crate) struct ReportLimits {
    pub(crate) settings: OutcomeSettings,
    started: Instant,
    /// Time between two reports of one caller, nanoseconds.
    interval: u64,
    /// For each slot, when all reports so far would have been due at the permitted rate (GCRA), nanoseconds.
    due: Box<[AtomicU64]>,
}

// === impl ReportLimits ===

impl ReportLimits {
    pub(crate) fn new(settings: &OutcomeSettings, started: Instant) -> ReportLimits {
        ReportLimits {
            settings: settings.clone(),
            started,
            interval: 1_000_000_000 / u64::from(settings.per_caller_second.max(1)),
            due: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Counts a report of `caller` that came at `at`.
    ///
    /// # Errors
    /// The caller has reported too much; it may go on after this time.
    pub(crate) fn admit(&self, caller: u64, at: Instant) -> Result<(), Duration> {
        let now = u64::try_from(at.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX);
        // The caller's number is a keyed hash: any of its bits will do.
        let slot = &self.due[(caller % SLOTS as u64) as usize];
        let burst = BURST.as_nanos() as u64;
        let admitted = slot.fetch_update(Relaxed, Relaxed, |due| {
            let due = due.max(now);
            (due - now < burst).then(|| due.saturating_add(self.interval))
        });
        admitted
            .map(|_| ())
            .map_err(|due| Duration::from_nanos(due.saturating_sub(now + burst).max(self.interval)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_its_rate_and_one_second_of_it_at_once() {
        let started = Instant::now();
        let settings = OutcomeSettings { per_caller_second: 10, ..OutcomeSettings::default() };
        let limits = ReportLimits::new(&settings, started);
        let admitted = |caller: u64, at: Duration| {
            (0..100).take_while(|_| limits.admit(caller, started + at).is_ok()).count()
        };
        assert_eq!(admitted(1, Duration::ZERO), 10);
        assert!(limits.admit(1, started).is_err_and(|wait| wait <= Duration::from_millis(100)));
        assert_eq!(admitted(2, Duration::ZERO), 10, "another caller has its own");
        assert_eq!(admitted(1, Duration::from_millis(500)), 5);
        assert_eq!(admitted(1, Duration::from_secs(60)), 10, "silence saves up no more than a second");
    }
}
