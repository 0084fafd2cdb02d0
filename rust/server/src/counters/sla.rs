//! Measures whether a checkpoint meets its SLA.
//!
//! The histograms of a checkpoint have the same edges on every replica, so they can be added. One edge is the SLA
//! itself, so the share of answers within it is counted and not interpolated.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use scorer_admission::{BurnRates, ErrorBudget};
use scorer_engine::Histogram;
use tonic::Code;

use super::{Exemplar, Latency};

/// The share of answers that must be within the SLA.
pub(crate) const OBJECTIVE: f64 = 0.99;

/// The source of an answer, as a label of its histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum By {
    /// The live bundle.
    Model = 0,
    /// A fallback, which the reply states with its reason.
    Fallback = 1,
    /// An error was returned.
    Refused = 2,
}

/// The reason why an SLA was violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The request was answered, or cancelled by the caller, after the SLA.
    Late,
    /// The request was shed (RESOURCE_EXHAUSTED).
    Shed,
    /// The request failed because of another error of the server.
    Failed,
}

/// The measurements of one checkpoint.
#[derive(Debug)]
pub(crate) struct Sla {
    sla: Option<Duration>,
    /// Latencies of requests for an answer, by source.
    pub(crate) latency: [Latency; By::COUNT],
    /// Times from the HEADERS to the first poll.
    pub(crate) queue_delay: Histogram,
    /// Requests to which the SLA applies: single rows, without invalid requests and those cancelled early.
    pub(crate) budget: ErrorBudget,
    pub(crate) misses: [AtomicU64; Miss::COUNT],
}

// === impl Sla ===

impl Sla {
    pub(crate) fn new(sla: Option<Duration>) -> Sla {
        Sla {
            sla,
            latency: std::array::from_fn(|_| Latency::new(sla)),
            queue_delay: Histogram::new(sla),
            budget: ErrorBudget::new(OBJECTIVE),
            misses: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Records the end of a request for an answer, with the SLA that applies to it; `None` if none does.
    pub(crate) fn finished(
        &self,
        code: Code,
        latency: Duration,
        timeout: Option<Duration>,
        fallback: bool,
        sla: Option<Duration>,
        exemplar: Option<&Exemplar>,
    ) {
        match code {
            Code::Ok if fallback => self.latency[By::Fallback as usize].record(latency, exemplar),
            Code::Ok => self.latency[By::Model as usize].record(latency, exemplar),
            // The time after which a caller left is not a latency of the server.
            Code::Cancelled => {}
            _ => self.latency[By::Refused as usize].record(latency, exemplar),
        }
        let Some(sla) = sla else { return };
        if let Some(met) = verdict(code, latency, sla, timeout) {
            self.budget.record(met.is_ok());
            if let Err(miss) = met {
                self.misses[miss as usize].fetch_add(1, Relaxed);
            }
        }
    }

    pub(crate) fn sla(&self) -> Option<Duration> {
        self.sla
    }

    /// Returns the number of requests to which the SLA applies, and of those that violated it.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let (good, bad) = self.budget.counted();
        (good + bad, bad)
    }

    /// Returns the burn rates of the error budget.
    pub(crate) fn burn_rates(&self) -> BurnRates {
        self.budget.rates()
    }
}

/// Returns whether the SLA was met. `None` if it does not apply, because the request was invalid or its caller allowed
/// less time than the SLA.
fn verdict(
    code: Code,
    latency: Duration,
    sla: Duration,
    timeout: Option<Duration>,
) -> Option<Result<(), Miss>> {
    let late = latency > sla;
    match code {
        Code::Ok => Some(if late { Err(Miss::Late) } else { Ok(()) }),
        Code::Cancelled => late.then_some(Err(Miss::Late)),
        Code::DeadlineExceeded => {
            (late || timeout.is_none_or(|timeout| timeout >= sla)).then_some(Err(Miss::Late))
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
    pub(crate) const ALL: [By; By::COUNT] = [By::Model, By::Fallback, By::Refused];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            By::Model => "model",
            By::Fallback => "fallback",
            By::Refused => "refused",
        }
    }
}

impl Miss {
    const COUNT: usize = 3;
    pub(crate) const ALL: [Miss; Miss::COUNT] = [Miss::Late, Miss::Shed, Miss::Failed];

    pub(crate) fn as_str(self) -> &'static str {
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
    fn what_counts_as_a_violation() {
        let ms = Duration::from_millis;
        let judge = |code, latency, timeout| verdict(code, ms(latency), ms(10), timeout);
        let late = Some(Err(Miss::Late));
        assert_eq!(judge(Code::Ok, 10, None), Some(Ok(())), "within is with the edge");
        assert_eq!(judge(Code::Ok, 11, None), late);
        assert_eq!(judge(Code::Ok, 11, Some(ms(100))), late, "a patient caller changes nothing");
        assert_eq!(judge(Code::Cancelled, 3, None), None, "left early");
        assert_eq!(judge(Code::Cancelled, 11, None), late, "left because it took too long");
        assert_eq!(judge(Code::DeadlineExceeded, 3, Some(ms(2))), None, "allowed less time than the SLA");
        assert_eq!(judge(Code::DeadlineExceeded, 3, Some(ms(10))), late, "given up in advance");
        assert_eq!(judge(Code::DeadlineExceeded, 3, None), late);
        assert_eq!(judge(Code::ResourceExhausted, 0, None), Some(Err(Miss::Shed)));
        assert_eq!(judge(Code::Internal, 0, None), Some(Err(Miss::Failed)));
        assert_eq!(judge(Code::InvalidArgument, 99, None), None);
    }

    #[test]
    fn a_batch_is_measured_but_not_under_the_sla() {
        let limit = Some(Duration::from_millis(10));
        let sla = Sla::new(limit);
        sla.finished(Code::Ok, Duration::from_millis(50), None, false, None, None);
        sla.finished(Code::Ok, Duration::from_millis(50), None, true, limit, None);
        sla.finished(Code::Ok, Duration::from_millis(5), None, false, limit, None);
        assert_eq!(sla.totals(), (2, 1));
        assert_eq!(
            [By::Model, By::Fallback, By::Refused].map(|by| sla.latency[by as usize].histogram.read().1),
            [2, 1, 0]
        );
    }
}
