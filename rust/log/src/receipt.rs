//! The fate of one record on its way to the writer thread.
//!
//! ```text
//! WAITING ── the writer stages it ──▶ WRITING ── write(2) returns ──▶ DONE
//!    │                                   │
//!    └─ dropped ──▶ WITHDRAWN            └─ dropped ──▶ LATE ── write(2) returns ──▶ DONE, and withdrawn on record
//! ```
//!
//! A caller that no longer waits drops its [`Receipt`]. A record that is still queued is then never written. One whose
//! write is under way may reach the log although its caller reports that it did not: the writer thread then appends a
//! `WithdrawnRecord` before any other record, so that readers know.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::LogError;

/// Resolves to a record's sequence once the record is in the log, as its durability demands. Dropping it withdraws the
/// record.
#[must_use = "dropping a receipt withdraws its record"]
#[derive(Debug)]
pub struct Receipt(Arc<Slot>);

/// A record and its fate, shared by its caller and the writer thread.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) payload: Vec<u8>,
    /// The record is done once it is on stable storage.
    pub(crate) sync: bool,
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    waker: Option<Waker>,
}

#[derive(Debug)]
enum Phase {
    Waiting,
    Writing,
    /// The receipt was dropped while the record waited.
    Withdrawn,
    /// The receipt was dropped while the record was being written.
    Late,
    /// Empty once the result was taken.
    Done(Option<Result<u64, LogError>>),
}

/// The writer's end of a slot. Dropped without a result, it reports that the log is closed.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Slot>);

/// What became of a receipt while its record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The result was handed over, or waits to be taken.
    Informed,
    /// The caller has given up: it reports that the record is not in the log.
    Gone,
}

pub(crate) fn slot(payload: Vec<u8>, sync: bool) -> (Ticket, Receipt) {
    let state = Mutex::new(State { phase: Phase::Waiting, waker: None });
    let slot = Arc::new(Slot { payload, sync, state, done: Condvar::new() });
    (Ticket(Arc::clone(&slot)), Receipt(slot))
}

// === impl Slot ===

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Ticket ===

impl Ticket {
    pub(crate) fn slot(&self) -> &Slot {
        &self.0
    }

    /// Takes the record for writing; false if it was withdrawn.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.0.lock();
        if matches!(state.phase, Phase::Waiting) {
            state.phase = Phase::Writing;
        }
        matches!(state.phase, Phase::Writing)
    }

    /// Hands the result to the caller.
    pub(crate) fn finish(&self, result: Result<u64, LogError>) -> Caller {
        let mut state = self.0.lock();
        match state.phase {
            Phase::Waiting | Phase::Writing => {
                state.phase = Phase::Done(Some(result));
                let waker = state.waker.take();
                drop(state);
                self.0.done.notify_all();
                if let Some(waker) = waker {
                    waker.wake();
                }
                Caller::Informed
            }
            Phase::Late => {
                state.phase = Phase::Done(None);
                Caller::Gone
            }
            Phase::Withdrawn | Phase::Done(_) => Caller::Informed,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.finish(Err(LogError::Closed));
    }
}

// === impl Receipt ===

impl Receipt {
    /// Blocks until the record is in the log. Not for threads of an asynchronous runtime: await the receipt there.
    ///
    /// # Errors
    /// The record is not in the log, except for `NotDurable`, where it is but may not outlive a power loss.
    pub fn wait(self) -> Result<u64, LogError> {
        let state = self.0.lock();
        let pending = |state: &mut State| !matches!(state.phase, Phase::Done(_));
        let mut state = self.0.done.wait_while(state, pending).unwrap_or_else(PoisonError::into_inner);
        state.take()
    }
}

impl Future for Receipt {
    type Output = Result<u64, LogError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        if matches!(state.phase, Phase::Done(_)) {
            return Poll::Ready(state.take());
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.waker = None;
        match state.phase {
            Phase::Waiting => state.phase = Phase::Withdrawn,
            Phase::Writing => state.phase = Phase::Late,
            Phase::Withdrawn | Phase::Late | Phase::Done(_) => {}
        }
    }
}

// === impl State ===

impl State {
    fn take(&mut self) -> Result<u64, LogError> {
        match &mut self.phase {
            Phase::Done(result) => result.take().unwrap_or(Err(LogError::Closed)),
            Phase::Waiting | Phase::Writing | Phase::Withdrawn | Phase::Late => Err(LogError::Closed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(receipt: &mut Receipt) -> Poll<Result<u64, LogError>> {
        Pin::new(receipt).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_result_is_handed_over_once() {
        let (ticket, mut receipt) = slot(b"record".to_vec(), false);
        assert!(poll(&mut receipt).is_pending());
        assert!(ticket.begin());
        assert!(poll(&mut receipt).is_pending());
        assert_eq!(ticket.finish(Ok(7)), Caller::Informed);
        assert!(matches!(poll(&mut receipt), Poll::Ready(Ok(7))));
    }

    #[test]
    fn a_record_that_is_withdrawn_while_it_waits_is_not_written() {
        let (ticket, receipt) = slot(Vec::new(), false);
        drop(receipt);
        assert!(!ticket.begin());
        assert_eq!(ticket.finish(Err(LogError::Closed)), Caller::Informed);
    }

    #[test]
    fn the_writer_learns_that_a_caller_left_during_the_write() {
        let (ticket, receipt) = slot(Vec::new(), false);
        assert!(ticket.begin());
        drop(receipt);
        assert_eq!(ticket.finish(Ok(1)), Caller::Gone);
    }

    #[test]
    fn a_result_that_came_in_time_is_no_withdrawal_even_if_nobody_takes_it() {
        let (ticket, receipt) = slot(Vec::new(), false);
        assert!(ticket.begin());
        assert_eq!(ticket.finish(Ok(1)), Caller::Informed);
        drop(receipt);
        drop(ticket);
    }

    #[test]
    fn a_writer_that_ends_leaves_no_caller_waiting() {
        let (ticket, receipt) = slot(Vec::new(), false);
        let waiting = std::thread::spawn(move || receipt.wait());
        drop(ticket);
        assert!(matches!(waiting.join().unwrap(), Err(LogError::Closed)));
    }
}
