//! A pool of working memory that is reused between calls.

use std::sync::{Mutex, PoisonError};

/// Largest number of values that are kept. If more calls run concurrently, they allocate more values.
const KEPT: usize = 8;

/// Values, each of which one call at a time takes from the pool and returns to it.
pub(super) struct Pool<T>(Mutex<Vec<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<T> Pool<T> {
    /// Takes a value from the pool, or makes a new one.
    pub(super) fn take(&self, make: impl FnOnce() -> T) -> T {
        // The lock is held only for a push or a pop, so a panic cannot leave the vector in an inconsistent state.
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(make)
    }

    /// Returns a value to the pool. The next call uses it without a reset.
    pub(super) fn give(&self, value: T) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(value);
        }
    }
}
