//! Limits on the rates at which a caller reports outcomes and one outcome is reported.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::config::OutcomeSettings;

/// Number of slots in which callers are counted. A caller's slot depends on a random key of the process, so no caller
/// can choose the slot of another.
const SLOTS: usize = 4096;
/// A caller that has been idle may send the reports of this time at once.
const BURST: Duration = Duration::from_secs(1);

/// The limits, and the times at which callers may report again.
pub(crate) struct ReportLimits {
    pub(crate) settings: OutcomeSettings,
    started: Instant,
    /// Time between two reports of one caller at the permitted rate, in nanoseconds.
    interval: u64,
    /// For each slot, the time at which all reports so far would have arrived at the permitted rate (GCRA), in
    /// nanoseconds.
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

    /// Counts a report of `caller` at time `at`.
    ///
    /// # Errors
    /// Returns the time after which the caller may report again, if it has reported too much.
    pub(crate) fn admit(&self, caller: u64, at: Instant) -> Result<(), Duration> {
        let now = u64::try_from(at.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX);
        // `caller` is a keyed hash, so all of its bits are equally suitable.
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
