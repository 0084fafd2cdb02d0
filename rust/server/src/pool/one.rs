//! One evaluation on the pool.

use std::time::Instant;

use scorer_admission::{Outcome, Queue, Reply, Served, Start};

use super::{Expire as _, Job, Work};
use crate::answer::budget::Until;
use crate::state::Shared;

/// Runs once: gets the time it has, and says whether the model answered.
pub(crate) struct One<T, F> {
    job: Job<T>,
    evaluate: Option<F>,
}

// === impl One ===

impl<T, F: FnOnce(&Shared, &Until<'_>) -> (T, Outcome)> One<T, F> {
    pub(crate) fn new(job: Job<T>, evaluate: F) -> One<T, F> {
        One { job, evaluate: Some(evaluate) }
    }
}

impl<T: Send, F: FnOnce(&Shared, &Until<'_>) -> (T, Outcome) + Send> Work for One<T, F> {
    fn queue(&self) -> Queue {
        self.job.queue
    }

    fn run(&mut self, shared: &Shared) -> bool {
        let (Some(mut ticket), Some(evaluate)) = (self.job.ticket.take(), self.evaluate.take()) else {
            return false;
        };
        let began = Instant::now();
        if self.job.meeting.cell.state() != Reply::Pending {
            return false;
        }
        if ticket.start(shared.admission.nanos(began)) == Start::TooLate {
            self.job.meeting.expire();
            return false;
        }
        let (result, outcome) = evaluate(shared, &self.job.until());
        let now = Instant::now();
        let outcome = match self.job.meeting.give(result) {
            Ok(()) => outcome,
            Err(first) => {
                self.job.discarded(shared, first);
                Outcome::Fallback
            }
        };
        ticket.finish(shared.admission.nanos(now), Served { exec: (now - began).into(), outcome });
        false
    }
}
