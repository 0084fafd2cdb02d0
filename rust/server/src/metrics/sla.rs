//! What is held against a checkpoint's promise.
//!
//! Every histogram of a checkpoint has the same edges on every replica, so they can be added up; one edge is the
//! promise itself, so the share of answers within it is counted, not interpolated.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use scorer_admission::{BurnRates, CapHit, ErrorBudget, SHED_REASONS, ShedReason};
use tonic::Code;

use super::Histogram;

/// The part of answers that are promised to be in time.
pub(super) const OBJECTIVE: f64 = 0.99;

/// Who gave an answer, as its histogram names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum By {
    /// The live bundle.
    Model = 0,
    /// Something else, flagged in the reply with its reason.
    Fallback = 1,
    /// Nobody: an error went out.
    Refused = 2,
}

/// Why a promise was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// Answered, or given up by the caller, after the promise.
    Late,
    /// RESOURCE_EXHAUSTED.
    Shed,
    /// Another error of the server's making.
    Failed,
}

/// The caps on what fallbacks may let through, in the order of their counters.
pub(super) const CAPS: [CapHit; 6] =
    [CapHit::Single, CapHit::Count, CapHit::Total, CapHit::CallerCount, CapHit::CallerTotal, CapHit::Moving];

/// One checkpoint's record.
#[derive(Debug)]
pub(crate) struct Sla {
    promise: Option<Duration>,
    /// Of requests that ask for an answer, by who gave it.
    pub(super) latency: [Histogram; By::COUNT],
    /// HEADERS to first poll.
    pub(super) queue_delay: Histogram,
    /// Requests that the promise is for: single rows, without those that the caller got wrong or gave up early.
    pub(super) budget: ErrorBudget,
    pub(super) misses: [AtomicU64; Miss::COUNT],
    /// Results that came after another had been given, and were thrown away.
    pub(crate) late_results: AtomicU64,
    /// Requests that were not worked on, and those that would not have been had the checkpoint enforced its limits.
    shed: [AtomicU64; SHED_REASONS.len()],
    would_shed: [AtomicU64; SHED_REASONS.len()],
    caps: [AtomicU64; CAPS.len()],
}

// === impl Sla ===

impl Sla {
    pub(super) fn new(promise: Option<Duration>) -> Sla {
        Sla {
            promise,
            latency: std::array::from_fn(|_| Histogram::new(promise)),
            queue_delay: Histogram::new(promise),
            budget: ErrorBudget::new(OBJECTIVE),
            misses: std::array::from_fn(|_| AtomicU64::new(0)),
            late_results: AtomicU64::new(0),
            shed: Default::default(),
            would_shed: Default::default(),
            caps: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// A request for an answer has ended. `promised`: the promise is for requests of its kind.
    pub(super) fn finished(
        &self,
        code: Code,
        latency: Duration,
        timeout: Option<Duration>,
        fallback: bool,
        promised: bool,
    ) {
        match code {
            Code::Ok if fallback => self.latency[By::Fallback as usize].record(latency),
            Code::Ok => self.latency[By::Model as usize].record(latency),
            // How long a caller waited before it left is no latency of ours.
            Code::Cancelled => {}
            _ => self.latency[By::Refused as usize].record(latency),
        }
        let Some(promise) = self.promise.filter(|_| promised) else { return };
        if let Some(kept) = verdict(code, latency, promise, timeout) {
            self.budget.record(kept.is_ok());
            if let Err(miss) = kept {
                self.misses[miss as usize].fetch_add(1, Relaxed);
            }
        }
    }

    pub(super) fn promise(&self) -> Option<Duration> {
        self.promise
    }

    /// Requests that count, and those among them that were missed: what an error budget is spent on.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let (good, bad) = self.budget.counted();
        (good + bad, bad)
    }

    /// How fast the budget is spent.
    pub(crate) fn burn_rates(&self) -> BurnRates {
        self.budget.rates()
    }

    /// A request was not worked on.
    pub(crate) fn shed(&self, reason: ShedReason) {
        self.shed[reason as usize].fetch_add(1, Relaxed);
    }

    /// It would not have been, had the checkpoint enforced its limits.
    pub(crate) fn would_shed(&self, reason: ShedReason) {
        self.would_shed[reason as usize].fetch_add(1, Relaxed);
    }

    /// A fallback was not given because of its exposure.
    pub(crate) fn capped(&self, cap: CapHit) {
        let at = CAPS.iter().position(|it| *it == cap).unwrap_or(CAPS.len() - 1);
        self.caps[at].fetch_add(1, Relaxed);
    }

    /// Reason, sheds and would-have-been sheds.
    pub(super) fn sheds(&self) -> impl Iterator<Item = (ShedReason, u64, u64)> {
        let counts = self.shed.iter().zip(&self.would_shed);
        SHED_REASONS
            .into_iter()
            .zip(counts)
            .map(|(reason, (shed, would))| (reason, shed.load(Relaxed), would.load(Relaxed)))
    }

    pub(super) fn caps(&self) -> impl Iterator<Item = (CapHit, u64)> {
        CAPS.into_iter().zip(self.caps.iter().map(|count| count.load(Relaxed)))
    }
}

/// Whether the promise was kept; `None` where nothing was promised: the caller's own mistake, or a caller that
/// wanted it faster than promised.
fn verdict(
    code: Code,
    latency: Duration,
    promise: Duration,
    timeout: Option<Duration>,
) -> Option<Result<(), Miss>> {
    let late = latency > promise;
    match code {
        Code::Ok => Some(if late { Err(Miss::Late) } else { Ok(()) }),
        Code::Cancelled => late.then_some(Err(Miss::Late)),
        Code::DeadlineExceeded => {
            (late || timeout.is_none_or(|timeout| timeout >= promise)).then_some(Err(Miss::Late))
        }
        Code::ResourceExhausted => Some(Err(Miss::Shed)),
        Code::Unknown | Code::Aborted | Code::Internal | Code::Unavailable | Code::DataLoss => {
            Some(Err(Miss::Failed))
        }
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => None,
    }
}

// === impl By, Miss ===

impl By {
    const COUNT: usize = 3;
    pub(super) const ALL: [By; By::COUNT] = [By::Model, By::Fallback, By::Refused];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            By::Model => "model",
            By::Fallback => "fallback",
            By::Refused => "refused",
        }
    }
}

impl Miss {
    const COUNT: usize = 3;
    pub(super) const ALL: [Miss; Miss::COUNT] = [Miss::Late, Miss::Shed, Miss::Failed];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Miss::Late => "late",
            Miss::Shed => "shed",
            Miss::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_against_the_promise() {
        let ms = Duration::from_millis;
        let judge = |code, latency, timeout| verdict(code, ms(latency), ms(10), timeout);
        let late = Some(Err(Miss::Late));
        assert_eq!(judge(Code::Ok, 10, None), Some(Ok(())), "within is with the edge");
        assert_eq!(judge(Code::Ok, 11, None), late);
        assert_eq!(judge(Code::Ok, 11, Some(ms(100))), late, "a patient caller changes nothing");
        assert_eq!(judge(Code::Cancelled, 3, None), None, "left early");
        assert_eq!(judge(Code::Cancelled, 11, None), late, "left because it took too long");
        assert_eq!(judge(Code::DeadlineExceeded, 3, Some(ms(2))), None, "wanted it faster than promised");
        assert_eq!(judge(Code::DeadlineExceeded, 3, Some(ms(10))), late, "given up in advance");
        assert_eq!(judge(Code::DeadlineExceeded, 3, None), late);
        assert_eq!(judge(Code::ResourceExhausted, 0, None), Some(Err(Miss::Shed)));
        assert_eq!(judge(Code::Internal, 0, None), Some(Err(Miss::Failed)));
        assert_eq!(judge(Code::InvalidArgument, 99, None), None);
    }

    #[test]
    fn a_batch_is_measured_but_not_promised() {
        let sla = Sla::new(Some(Duration::from_millis(10)));
        sla.finished(Code::Ok, Duration::from_millis(50), None, false, false);
        sla.finished(Code::Ok, Duration::from_millis(50), None, true, true);
        sla.finished(Code::Ok, Duration::from_millis(5), None, false, true);
        assert_eq!(sla.totals(), (2, 1));
        assert_eq!(
            [By::Model, By::Fallback, By::Refused].map(|by| sla.latency[by as usize].read().1),
            [2, 1, 0]
        );
    }
}
