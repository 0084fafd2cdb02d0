//! The outcome of work that a task waits for. There is exactly one outcome: the first of result, deadline and
//! cancellation.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use scorer_admission::{Reply, ReplyCell};
use tokio::sync::oneshot;

/// The shared state of the task, the working thread and the watchdog.
pub(crate) struct Completion<T> {
    pub(crate) cell: ReplyCell,
    sender: Mutex<Option<oneshot::Sender<Completed<T>>>>,
}

/// The outcome of work.
pub(crate) enum Outcome<T> {
    /// The result, in time.
    Done(T),
    /// The work did not end in time. A later result is discarded.
    TimedOut,
}

/// The outcome, and the time at which it was determined.
pub(crate) type Completed<T> = (Outcome<T>, Instant);

/// The waiting task's end. Dropping it cancels the work.
pub(crate) struct Receiver<T> {
    completion: Arc<Completion<T>>,
    receiver: oneshot::Receiver<Completed<T>>,
}

/// Work that has a deadline.
pub(crate) trait Expire: Send + Sync {
    /// Called when the deadline has passed.
    fn expire(&self);
}

// === impl Outcome ===

impl<T, E> Outcome<Result<T, E>> {
    /// Returns the error of a result, otherwise the outcome.
    pub(crate) fn transpose(self) -> Result<Outcome<T>, E> {
        match self {
            Outcome::Done(result) => result.map(Outcome::Done),
            Outcome::TimedOut => Ok(Outcome::TimedOut),
        }
    }
}

// === impl Completion ===

impl<T> Completion<T> {
    pub(crate) fn new() -> (Arc<Completion<T>>, Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        let completion = Arc::new(Completion { cell: ReplyCell::new(), sender: Mutex::new(Some(sender)) });
        (Arc::clone(&completion), Receiver { completion, receiver })
    }

    /// Completes the work with its result. Returns `Err` if there was another outcome first; the result is then
    /// discarded.
    pub(crate) fn complete(&self, result: T) -> Result<(), Reply> {
        self.cell.claim(Reply::Model)?;
        self.send(Outcome::Done(result));
        Ok(())
    }

    /// Wakes the task without an outcome.
    pub(crate) fn abandon(&self) {
        drop(self.take_sender());
    }

    fn send(&self, outcome: Outcome<T>) {
        if let Some(sender) = self.take_sender() {
            // The send fails only if the task has been dropped meanwhile.
            let _ = sender.send((outcome, Instant::now()));
        }
    }

    fn take_sender(&self) -> Option<oneshot::Sender<Completed<T>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T: Send> Expire for Completion<T> {
    fn expire(&self) {
        if self.cell.claim(Reply::Fallback).is_ok() {
            self.send(Outcome::TimedOut);
        }
    }
}

// === impl Receiver ===

impl<T> Receiver<T> {
    /// Waits for the outcome. Returns `None` if the work was dropped before it was done.
    pub(crate) async fn wait(mut self) -> Option<Completed<T>> {
        (&mut self.receiver).await.ok()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // This has no effect after the outcome was determined.
        let _ = self.completion.cell.claim(Reply::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_decides_and_later_results_are_refused() {
        let (completion, receiver) = Completion::new();
        completion.expire();
        assert_eq!(completion.complete(1), Err(Reply::Fallback));
        assert!(matches!(receiver.wait().await, Some((Outcome::TimedOut, _))));

        let (completion, receiver) = Completion::new();
        assert_eq!(completion.complete(2), Ok(()));
        completion.expire();
        assert!(matches!(receiver.wait().await, Some((Outcome::Done(2), _))));

        let (completion, receiver) = Completion::new();
        drop(receiver);
        assert_eq!(completion.complete(3), Err(Reply::Cancelled));

        let (completion, receiver) = Completion::<u8>::new();
        completion.abandon();
        assert!(receiver.wait().await.is_none());
    }
}
