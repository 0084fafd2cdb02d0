//! Time to evaluate in, as the core sees it: something that says when to stop.
//!
//! The core has no clock. Whoever owns one passes a [`Budget`]; forests ask it between chunks of 64 trees, so that
//! an evaluation whose answer nobody waits for any more ends within a microsecond or so.

/// Says when an evaluation has to stop.
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
