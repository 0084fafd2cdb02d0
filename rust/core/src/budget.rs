//! The time for an evaluation, as the core sees it: a condition to stop.
//!
//! The core has no clock. A caller that has one passes a [`Budget`]; forests check it between chunks of 64 trees, so that
//! an evaluation whose caller no longer waits ends within a microsecond or so.

/// Decides when an evaluation has to stop.
pub trait Budget {
    /// True once the evaluation has to stop; from then on always true.
    fn spent(&self) -> bool;
}

/// A budget that is never spent: offline scoring, golden cases, tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unlimited;

impl Budget for Unlimited {
    #[inline]
    fn spent(&self) -> bool {
        false
    }
}

/// The budget was spent before the evaluation was done: there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time to evaluate in was spent before the last tree")]
pub struct OutOfTime;
