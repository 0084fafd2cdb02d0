//! Working memory that is kept between calls.

use std::sync::{Mutex, PoisonError};

/// Most values that are kept: calls at once beyond that make their own.
const KEPT: usize = 8;

/// Values that one call at a time takes out and gives back.
pub(super) struct Pool<T>(Mutex<Vec<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<T> Pool<T> {
    /// One that was given back, or a new one.
    pub(super) fn take(&self, make: impl FnOnce() -> T) -> T {
        // The lock is held for a push or a pop, neither of which leaves a vector half changed.
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.unwrap_or_else(make)
    }

    /// Keeps a value that is as good as new.
    pub(super) fn give(&self, value: T) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(value);
        }
    }
}
