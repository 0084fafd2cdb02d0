//! Stage 2: whether the server takes the request on. For now one cap on what is in flight over all
//! connections; cost, predicted wait and tiers belong here.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::refusal::Refusal;

/// Counts requests in flight against one limit.
#[derive(Debug)]
pub(crate) struct Admission {
    inflight: AtomicUsize,
    limit: usize,
}

/// One admitted request; gives its place back when dropped, however the request ends.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Admission>);

// === impl Admission ===

impl Admission {
    pub(crate) fn new(limit: usize) -> Arc<Admission> {
        Arc::new(Admission { inflight: AtomicUsize::new(0), limit })
    }

    pub(crate) fn admit(self: &Arc<Admission>) -> Result<Permit, Refusal> {
        // The permit exists before the check, so that a refusal gives its place back as well.
        let before = self.inflight.fetch_add(1, AcqRel);
        let permit = Permit(Arc::clone(self));
        if before < self.limit { Ok(permit) } else { Err(Refusal::Overloaded { limit: self.limit }) }
    }

    pub(crate) fn inflight(&self) -> usize {
        self.inflight.load(Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.inflight.fetch_sub(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact_and_every_place_comes_back() {
        let admission = Admission::new(2);
        let first = admission.admit().unwrap();
        let _second = admission.admit().unwrap();
        assert_eq!(admission.admit().err(), Some(Refusal::Overloaded { limit: 2 }));
        assert_eq!(admission.inflight(), 2);
        drop(first);
        assert!(admission.admit().is_ok());
        assert_eq!(admission.inflight(), 1);
    }
}
