//! Until when an evaluation may run: the core asks between chunks of trees.

use std::cell::Cell;
use std::time::Instant;

use scorer_admission::{Reply, ReplyCell};
use scorer_core::budget::Budget;

/// Chunks between two looks at the clock: 256 trees, some microseconds.
const EVERY: u32 = 4;

/// Spent when the time has come, or when somebody else has answered.
pub(crate) struct Until<'a> {
    finish_by: Option<Instant>,
    cell: Option<&'a ReplyCell>,
    asked: Cell<u32>,
    spent: Cell<bool>,
}

// === impl Until ===

impl<'a> Until<'a> {
    pub(crate) fn new(finish_by: Option<Instant>, cell: Option<&'a ReplyCell>) -> Until<'a> {
        Until { finish_by, cell, asked: Cell::new(0), spent: Cell::new(false) }
    }

    /// Looks now, whenever it looked last.
    pub(crate) fn is_over(&self) -> bool {
        let over = self.cell.is_some_and(|cell| cell.state() != Reply::Pending)
            || self.finish_by.is_some_and(|at| Instant::now() >= at);
        self.spent.set(self.spent.get() || over);
        self.spent.get()
    }
}

impl Budget for Until<'_> {
    fn spent(&self) -> bool {
        let asked = self.asked.get() + 1;
        self.asked.set(asked);
        if asked.is_multiple_of(EVERY) { self.is_over() } else { self.spent.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_at_the_clock_now_and_then_and_stays_spent() {
        let until = Until::new(Some(Instant::now()), None);
        let asked: Vec<bool> = (0..6).map(|_| until.spent()).collect();
        assert_eq!(asked, [false, false, false, true, true, true]);
        assert!(!Until::new(None, None).is_over());
    }

    #[test]
    fn ends_when_somebody_else_has_answered() {
        let cell = ReplyCell::new();
        let until = Until::new(None, Some(&cell));
        assert!(!until.is_over());
        cell.claim(Reply::Cancelled).unwrap();
        assert!(until.is_over());
    }
}
