//! The time limit of an evaluation, expressed as a condition to stop.
//!
//! An evaluation reads no clock, unless the times of nodes are measured. A caller that has a limit passes a [`Budget`].
//! Forests check it between chunks of 64 trees,
//! so an evaluation whose caller no longer waits ends within about a microsecond.

/// Decides when an evaluation has to stop.
pub trait Budget {
    /// Returns true once the evaluation has to stop, and on every later call.
    fn spent(&self) -> bool;
}

/// A budget that is never spent, for offline scoring, golden cases and tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unlimited;

impl Budget for Unlimited {
    #[inline]
    fn spent(&self) -> bool {
        false
    }
}

/// The budget was spent before the evaluation ended, so there is no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the time to evaluate in was spent before the last tree")]
pub struct OutOfTime;
