//! The deadline of an evaluation, which the core checks between chunks of trees.

use std::cell::Cell;
use std::time::Instant;

use scorer_admission::{Reply, ReplyCell};
use scorer_core::budget::Budget;

/// Number of chunks between two reads of the clock: 256 trees, which take some microseconds.
const EVERY: u32 = 4;

/// A budget that is spent when the time is over or the request has been answered otherwise.
pub(crate) struct Deadline<'a> {
    finish_by: Option<Instant>,
    cell: Option<&'a ReplyCell>,
    asked: Cell<u32>,
    spent: Cell<bool>,
}

// === impl Deadline ===

impl<'a> Deadline<'a> {
    pub(crate) fn new(finish_by: Option<Instant>, cell: Option<&'a ReplyCell>) -> Deadline<'a> {
        Deadline { finish_by, cell, asked: Cell::new(0), spent: Cell::new(false) }
    }

    /// Reads the clock now, regardless of the last reading.
    pub(crate) fn is_over(&self) -> bool {
        let over = self.cell.is_some_and(|cell| cell.state() != Reply::Pending)
            || self.finish_by.is_some_and(|at| Instant::now() >= at);
        self.spent.set(self.spent.get() || over);
        self.spent.get()
    }
}

impl Budget for Deadline<'_> {
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
    fn reads_the_clock_every_few_chunks_and_stays_spent() {
        let deadline = Deadline::new(Some(Instant::now()), None);
        let asked: Vec<bool> = (0..6).map(|_| deadline.spent()).collect();
        assert_eq!(asked, [false, false, false, true, true, true]);
        assert!(!Deadline::new(None, None).is_over());
    }

    #[test]
    fn ends_when_the_request_has_been_answered_otherwise() {
        let cell = ReplyCell::new();
        let deadline = Deadline::new(None, Some(&cell));
        assert!(!deadline.is_over());
        cell.claim(Reply::Cancelled).unwrap();
        assert!(deadline.is_over());
    }
}
