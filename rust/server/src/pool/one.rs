//! One evaluation on the pool.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_core::admission::{Outcome, Queue, Reply, Served, Start};

use super::{Expire, Meeting, Met, Work};
use crate::answer::admit::Ticket;
use crate::answer::budget::Until;
use crate::refusal::Refusal;
use crate::state::Shared;

/// What evaluates: gets the time it has, and says whether the model answered.
type Evaluate<T> = Box<dyn FnOnce(&Shared, &Until<'_>) -> (T, Outcome) + Send>;

struct One<T> {
    checkpoint: usize,
    meeting: Arc<Meeting<T>>,
    ticket: Option<Ticket>,
    queue: Queue,
    finish_by: Option<Instant>,
    evaluate: Option<Evaluate<T>>,
}

/// Evaluates on the pool and waits for it, until the ticket's time is over.
///
/// # Errors
/// The server stopped first.
pub(crate) async fn evaluate<T: Send + 'static>(
    shared: &Shared,
    checkpoint: usize,
    ticket: Ticket,
    evaluate: Evaluate<T>,
) -> Result<Met<T>, Refusal> {
    let (meeting, waiting) = Meeting::new();
    let (queue, finish_by) = match ticket.ticket() {
        Some(ticket) => (ticket.queue(), shared.admission.instant(ticket.finish_by())),
        None => (Queue::Last, None),
    };
    if let Some(at) = finish_by {
        let meeting: Arc<dyn Expire> = Arc::clone(&meeting) as _;
        shared.watchdog.watch(at, Arc::downgrade(&meeting));
    }
    let (ticket, evaluate) = (Some(ticket), Some(evaluate));
    shared.pool.push(Box::new(One { checkpoint, meeting, ticket, queue, finish_by, evaluate }));
    waiting.wait().await.ok_or(Refusal::Draining)
}

impl<T: Send> Work for One<T> {
    fn queue(&self) -> Queue {
        self.queue
    }

    fn run(&mut self, shared: &Shared) -> bool {
        let (Some(mut ticket), Some(evaluate)) = (self.ticket.take(), self.evaluate.take()) else {
            return false;
        };
        let began = Instant::now();
        if self.meeting.cell.state() != Reply::Pending {
            return false;
        }
        if ticket.start(shared.admission.nanos(began)) == Start::TooLate {
            self.meeting.expire();
            return false;
        }
        let until = Until::new(self.finish_by, Some(&self.meeting.cell));
        let (result, outcome) = evaluate(shared, &until);
        let now = Instant::now();
        let outcome = match self.meeting.give(result) {
            Ok(()) => outcome,
            Err(first) => {
                if first == Reply::Fallback {
                    shared.metrics.checkpoint(self.checkpoint).sla.late_results.fetch_add(1, Relaxed);
                }
                Outcome::Fallback
            }
        };
        let exec = (now - began).into();
        ticket.finish(shared.admission.nanos(now), Served { exec, outcome });
        false
    }
}

impl<T> Drop for One<T> {
    fn drop(&mut self) {
        // Nothing to abandon once it has been given.
        self.meeting.abandon();
    }
}
