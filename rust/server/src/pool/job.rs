//! What all work on the pool has in common: its ticket, its time, and where its task waits.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use scorer_admission::{Queue, Reply};

use super::{Expire, Meeting, Told, Work};
use crate::answer::admit::Ticket;
use crate::answer::budget::Until;
use crate::refusal::Refusal;
use crate::state::Shared;

/// One request's work. Dropped undone, its task is told that nothing will come.
pub(crate) struct Job<T> {
    checkpoint: usize,
    pub(crate) meeting: Arc<Meeting<T>>,
    /// Taken when the work ends.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) queue: Queue,
    finish_by: Option<Instant>,
}

/// Has the pool do `work` and waits for it, until the ticket's time is over.
///
/// # Errors
/// The server stopped first.
pub(crate) async fn evaluate<T: Send + 'static, W: Work + 'static>(
    shared: &Shared,
    checkpoint: usize,
    ticket: Ticket,
    work: impl FnOnce(Job<T>) -> W,
) -> Result<Told<T>, Refusal> {
    let (meeting, waiting) = Meeting::new();
    let (queue, finish_by) = match ticket.ticket() {
        Some(ticket) => (ticket.queue(), shared.admission.instant(ticket.finish_by())),
        None => (Queue::Last, None),
    };
    if let Some(at) = finish_by {
        let meeting: Arc<dyn Expire> = Arc::clone(&meeting) as _;
        shared.watchdog.watch(at, Arc::downgrade(&meeting));
    }
    let job = Job { checkpoint, meeting, ticket: Some(ticket), queue, finish_by };
    shared.pool.push(Box::new(work(job)));
    waiting.wait().await.ok_or(Refusal::Draining)
}

// === impl Job ===

impl<T> Job<T> {
    /// The time that it has.
    pub(crate) fn until(&self) -> Until<'_> {
        Until::new(self.finish_by, Some(&self.meeting.cell))
    }

    /// What was evaluated came after `first` had answered, and is discarded.
    pub(crate) fn discarded(&self, shared: &Shared, first: Reply) {
        if first == Reply::Fallback {
            shared.metrics.checkpoint(self.checkpoint).sla.late_results.fetch_add(1, Relaxed);
        }
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        // Nothing to abandon once it has been told.
        self.meeting.abandon();
    }
}
