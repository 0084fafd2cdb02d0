//! The places of explanations, and their queue.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::pool::{Pool, Work};
use crate::rejection::Rejection;

/// The queue of explanations. Its threads serve nothing else, and the threads that answer do not serve it.
pub(crate) struct Desk {
    pool: Pool,
    occupied: Arc<AtomicUsize>,
    limit: usize,
}

/// The place of an explanation that waits or runs. Dropping it frees the place.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Desk {
    /// Creates a queue with so many places.
    pub(crate) fn new(limit: usize) -> Desk {
        Desk { pool: Pool::default(), occupied: Arc::default(), limit }
    }

    /// Occupies a place.
    ///
    /// # Errors
    /// Every place is occupied.
    pub(crate) fn enter(&self) -> Result<Place, Rejection> {
        // The place exists before the check, so a rejection frees it too.
        let before = self.occupied.fetch_add(1, AcqRel);
        let place = Place(Arc::clone(&self.occupied));
        if before >= self.limit {
            return Err(Rejection::ExplanationsFull { limit: self.limit });
        }
        Ok(place)
    }

    pub(crate) fn push(&self, work: Box<dyn Work>) {
        self.pool.push(work);
    }

    /// Number of occupied places.
    pub(crate) fn occupied(&self) -> usize {
        self.occupied.load(Relaxed)
    }

    pub(crate) fn serve(&self) {
        self.pool.serve();
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn run_one(&self) -> bool {
        self.pool.run_one()
    }

    /// Rejects what waits and ends the threads.
    pub(crate) fn close(&self) {
        self.pool.close();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, AcqRel);
    }
}
