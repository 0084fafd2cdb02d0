//! The cost that an admitted request holds, which is returned exactly once.

use std::ops::Deref;

use super::admit::{Admission, Hold};
use super::time::Nanos;
use super::verdict::{Place, Queue, Served, ShedReason, Start};

/// The cost that one admitted request holds. It is not `Clone`, and [`Admission::finish`] and [`Admission::cancel`]
/// consume it. A [`Permit`] ensures that one of them is called.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a dropped ticket never returns its cost; wrap it in a Permit"]
pub struct Ticket {
    pub(super) checkpoint: u32,
    pub(super) rows: u32,
    /// Slot of the cost estimate that this request contributes to.
    pub(super) slot: u16,
    pub(super) bundle: u64,
    pub(super) queue: Queue,
    pub(super) place: Place,
    pub(super) enforced: bool,
    pub(super) held: Hold,
    pub(super) would_shed: Option<ShedReason>,
    /// Number of rows between two readings of the clock.
    pub(super) chunk: u32,
    /// Expected work per row.
    pub(super) row: u64,
    /// Expected remaining work, which is accounted to its queue.
    pub(super) cost: u64,
    /// The longest part of the work that cannot be interrupted.
    pub(super) span: u64,
    /// 95th percentile of the expected service time.
    pub(super) cautious: u64,
    pub(super) arrived: Nanos,
    /// Latest time of an answer that meets the SLA, in every mode.
    pub(super) due: Nanos,
    pub(super) deadline: Nanos,
    pub(super) finish_by: Nanos,
    /// The second evaluation of the request, whose cost is part of `cost`.
    pub(super) then: Option<Second>,
}

/// The part of a ticket for a second evaluation of the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Second {
    pub(super) checkpoint: u32,
    pub(super) slot: u16,
    pub(super) bundle: u64,
    pub(super) cost: u64,
    pub(super) cautious: u64,
}

/// A [`Ticket`] that is cancelled when it is dropped. `A` is a reference to the admission: `&Admission`,
/// `Arc<Admission>`, or a handle that derefs to one.
#[derive(Debug)]
pub struct Permit<A: Deref<Target = Admission>> {
    admission: A,
    grant: Grant,
    /// The ticket; `None` after it was finished.
    ticket: Option<Ticket>,
}

/// The terms of a ticket, which do not change while it is held.
#[derive(Clone, Copy, Debug)]
struct Grant {
    place: Place,
    queue: Queue,
    finish_by: Nanos,
    deadline: Nanos,
    chunk_rows: u32,
    would_shed: Option<ShedReason>,
}

// === impl Ticket ===

impl Ticket {
    /// The place where the request runs.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    /// The queue in which the request waits if it runs on the pool.
    #[must_use]
    pub fn queue(&self) -> Queue {
        self.queue
    }

    /// Returns the time at which the evaluation must be stopped. [`Nanos::MAX`] if the SLA is not enforced and the
    /// caller has set no deadline.
    #[must_use]
    pub fn finish_by(&self) -> Nanos {
        self.finish_by
    }

    /// Returns the deadline of the reply, or [`Nanos::MAX`] as for [`Ticket::finish_by`].
    #[must_use]
    pub fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// Returns the number of rows to evaluate before other work may run; at least 1.
    #[must_use]
    pub fn chunk_rows(&self) -> u32 {
        self.chunk
    }

    /// In mode observe, the reason for which mode enforce would have shed this request.
    #[must_use]
    pub fn would_shed(&self) -> Option<ShedReason> {
        self.would_shed
    }
}

// === impl Permit ===

impl<A: Deref<Target = Admission>> Permit<A> {
    /// Wraps a ticket.
    pub fn new(admission: A, ticket: Ticket) -> Permit<A> {
        let grant = Grant {
            place: ticket.place(),
            queue: ticket.queue(),
            finish_by: ticket.finish_by(),
            deadline: ticket.deadline(),
            chunk_rows: ticket.chunk_rows(),
            would_shed: ticket.would_shed(),
        };
        Permit { admission, grant, ticket: Some(ticket) }
    }

    /// The place where the request runs.
    #[must_use]
    pub fn place(&self) -> Place {
        self.grant.place
    }

    /// The queue in which the request waits if it runs on the pool.
    #[must_use]
    pub fn queue(&self) -> Queue {
        self.grant.queue
    }

    /// See [`Ticket::finish_by`].
    #[must_use]
    pub fn finish_by(&self) -> Nanos {
        self.grant.finish_by
    }

    /// See [`Ticket::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Nanos {
        self.grant.deadline
    }

    /// Returns the number of rows to evaluate before other work may run; at least 1.
    #[must_use]
    pub fn chunk_rows(&self) -> u32 {
        self.grant.chunk_rows
    }

    /// In mode observe, the reason for which mode enforce would have shed this request.
    #[must_use]
    pub fn would_shed(&self) -> Option<ShedReason> {
        self.grant.would_shed
    }

    /// Takes the permit of the second evaluation out of this one; see [`Admission::split`].
    pub fn split(&mut self) -> Option<Permit<A>>
    where
        A: Clone,
    {
        let ticket = self.admission.split(self.ticket.as_mut()?)?;
        Some(Permit::new(self.admission.clone(), ticket))
    }

    /// See [`Admission::start`].
    pub fn start(&mut self, now: Nanos) -> Start {
        match &mut self.ticket {
            Some(ticket) => self.admission.start(now, ticket),
            None => Start::TooLate,
        }
    }

    /// See [`Admission::progress`].
    pub fn progress(&mut self, rows: u32) {
        if let Some(ticket) = &mut self.ticket {
            self.admission.progress(ticket, rows);
        }
    }

    /// See [`Admission::finish`].
    pub fn finish(mut self, now: Nanos, served: Served) {
        if let Some(ticket) = self.ticket.take() {
            self.admission.finish(now, ticket, served);
        }
    }
}

impl<A: Deref<Target = Admission>> Drop for Permit<A> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.admission.cancel(ticket);
        }
    }
}
