//! The states of one record from its caller to the log.
//!
//! ```text
//! WAITING ── the writer stages it ──▶ WRITING ── write(2) returns ──▶ DONE
//!    │                                   │
//!    └─ dropped ──▶ WITHDRAWN            └─ dropped ──▶ LATE ── write(2) returns ──▶ WITHDRAWN, also on record
//! ```
//!
//! A caller that no longer waits drops its [`Receipt`], or a timer withdraws the record at the caller's deadline. A
//! record that is still queued is then never written. A record that is being written may reach the log although its
//! caller reports that it did not. The writer thread then appends a `WithdrawnRecord` before any other record, so that
//! readers ignore the record.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::error::LogError;
use crate::sync::{self, Mutex, MutexGuard};

/// A future that resolves to a record's sequence when the record is in the log with its durability. Dropping it
/// withdraws the record.
#[must_use = "dropping a receipt withdraws its record"]
#[derive(Debug)]
pub struct Receipt(Arc<Slot>);

/// A record and its state, shared by its caller and the writer thread.
#[derive(Debug)]
pub struct Slot {
    pub(crate) payload: Vec<u8>,
    /// Whether the record is done only when it is on stable storage.
    pub(crate) sync: bool,
    state: Mutex<State>,
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
    /// The record was withdrawn while it waited.
    Withdrawn,
    /// The record was withdrawn while it was being written.
    Late,
    /// The result; empty after it was taken.
    Done(Option<Result<u64, LogError>>),
}

/// The writer's end of a slot. Dropped without a result, it reports that the log is closed.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Slot>);

/// The state of a receipt after its record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The result was passed to the caller, or waits to be taken.
    Informed,
    /// The caller no longer waits, and reports that the record is not in the log.
    Gone,
}

pub(crate) fn slot(payload: Vec<u8>, sync: bool) -> (Ticket, Receipt) {
    let state = Mutex::new(State { phase: Phase::Waiting, waker: None });
    let slot = Arc::new(Slot { payload, sync, state });
    (Ticket(Arc::clone(&slot)), Receipt(slot))
}

// === impl Slot ===

impl Slot {
    /// Withdraws the record if it is not yet in the log. Its receipt resolves to [`LogError::Withdrawn`].
    pub fn withdraw(&self) {
        let mut state = self.lock();
        state.phase = match state.phase {
            Phase::Waiting => Phase::Withdrawn,
            Phase::Writing => Phase::Late,
            Phase::Withdrawn | Phase::Late | Phase::Done(_) => return,
        };
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Ticket ===

impl Ticket {
    pub(crate) fn slot(&self) -> &Slot {
        &self.0
    }

    /// Marks the record as being written. Returns false if it was withdrawn.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.0.lock();
        if matches!(state.phase, Phase::Waiting) {
            state.phase = Phase::Writing;
        }
        matches!(state.phase, Phase::Writing)
    }

    /// Passes the result to the caller.
    pub(crate) fn finish(&self, result: Result<u64, LogError>) -> Caller {
        let mut state = self.0.lock();
        match state.phase {
            Phase::Waiting | Phase::Writing => {
                state.phase = Phase::Done(Some(result));
                let waker = state.waker.take();
                drop(state);
                if let Some(waker) = waker {
                    waker.wake();
                }
                Caller::Informed
            }
            Phase::Late => {
                // The receipt may still be polled, so the record stays withdrawn whatever its result.
                state.phase = Phase::Withdrawn;
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
    /// Returns the slot, with which a timer can withdraw the record at the caller's deadline. It does not keep the
    /// record alive.
    #[must_use]
    pub fn slot(&self) -> Weak<Slot> {
        Arc::downgrade(&self.0)
    }

    /// Blocks until the record is in the log. Threads of an asynchronous runtime must await the receipt instead.
    ///
    /// # Errors
    /// The record does not count: it is not in the log or, if it was written (`NotDurable`, `Withdrawn`), the log
    /// appends its withdrawal as soon as it can write.
    pub fn wait(self) -> Result<u64, LogError> {
        self.block(None)
    }

    /// Blocks as [`Receipt::wait`] does, for at most `limit`, after which the record is withdrawn.
    ///
    /// # Errors
    /// Fails as [`Receipt::wait`] does, and with `Withdrawn` after `limit`.
    pub fn wait_for(self, limit: Duration) -> Result<u64, LogError> {
        self.block(Some(Instant::now() + limit))
    }

    fn block(mut self, until: Option<Instant>) -> Result<u64, LogError> {
        let waker = Waker::from(Arc::new(Unpark(sync::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(result) = Pin::new(&mut self).poll(&mut context) {
                return result;
            }
            let Some(until) = until else {
                sync::park();
                continue;
            };
            match until.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => sync::park_timeout(left),
                _ => self.0.withdraw(),
            }
        }
    }
}

/// Wakes a thread that blocks on a receipt.
struct Unpark(sync::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Future for Receipt {
    type Output = Result<u64, LogError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        match &mut state.phase {
            Phase::Done(result) => return Poll::Ready(result.take().unwrap_or(Err(LogError::Closed))),
            Phase::Withdrawn | Phase::Late => return Poll::Ready(Err(LogError::Withdrawn)),
            Phase::Waiting | Phase::Writing => {}
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        // No task is left to wake.
        self.0.lock().waker = None;
        self.0.withdraw();
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
    fn a_late_result_does_not_change_what_the_caller_of_a_withdrawn_record_is_told() {
        for result in [Ok(1), Err(LogError::Closed)] {
            let (ticket, mut receipt) = slot(Vec::new(), false);
            assert!(ticket.begin());
            receipt.slot().upgrade().unwrap().withdraw();
            assert_eq!(ticket.finish(result), Caller::Gone);
            assert_eq!(ticket.finish(Err(LogError::Closed)), Caller::Informed, "it is told once");
            drop(ticket);
            assert!(matches!(poll(&mut receipt), Poll::Ready(Err(LogError::Withdrawn))));
        }
    }

    #[test]
    fn a_withdrawn_record_wakes_its_caller() {
        for (write_began, finished) in [(false, Caller::Informed), (true, Caller::Gone)] {
            let (ticket, receipt) = slot(Vec::new(), false);
            if write_began {
                assert!(ticket.begin());
            }
            let slot = receipt.slot().upgrade().unwrap();
            let waiting = std::thread::spawn(move || receipt.wait());
            slot.withdraw();
            assert!(matches!(waiting.join().unwrap(), Err(LogError::Withdrawn)));
            assert!(!ticket.begin());
            assert_eq!(ticket.finish(Ok(1)), finished);
        }
    }

    #[test]
    fn a_bounded_wait_withdraws_the_record() {
        let (ticket, receipt) = slot(Vec::new(), false);
        assert!(matches!(receipt.wait_for(Duration::ZERO), Err(LogError::Withdrawn)));
        assert!(!ticket.begin());
        let (ticket, receipt) = slot(Vec::new(), false);
        ticket.finish(Ok(3));
        assert!(matches!(receipt.wait_for(Duration::ZERO), Ok(3)));
    }

    #[test]
    fn a_withdrawal_after_the_write_changes_nothing() {
        let (ticket, mut receipt) = slot(Vec::new(), false);
        let slot = receipt.slot().upgrade().unwrap();
        assert_eq!(ticket.finish(Ok(1)), Caller::Informed);
        slot.withdraw();
        assert!(matches!(poll(&mut receipt), Poll::Ready(Ok(1))));
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
