//! The outcome of work that a task waits for: exactly one, decided by the first of result, deadline and cancellation.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use scorer_admission::{Reply, ReplyCell};
use tokio::sync::oneshot;

/// Shared by the task, the thread that works and the watchdog.
pub(crate) struct Completion<T> {
    pub(crate) cell: ReplyCell,
    sender: Mutex<Option<oneshot::Sender<Completed<T>>>>,
}

/// What the work came to.
pub(crate) enum Outcome<T> {
    /// The result, in time.
    Done(T),
    /// It was not done in time; a later result is discarded.
    TimedOut,
}

/// What the work came to, and since when that is known.
pub(crate) type Completed<T> = (Outcome<T>, Instant);

/// The task's side. Dropping it cancels the work.
pub(crate) struct Receiver<T> {
    completion: Arc<Completion<T>>,
    receiver: oneshot::Receiver<Completed<T>>,
}

/// Something that has a deadline.
pub(crate) trait Expire: Send + Sync {
    /// The deadline has passed.
    fn expire(&self);
}

// === impl Outcome ===

impl<T, E> Outcome<Result<T, E>> {
    /// The error of a result, or the outcome without it.
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

    /// Completes the work with its result. `Err`: the outcome was decided otherwise, and the result is discarded.
    pub(crate) fn complete(&self, result: T) -> Result<(), Reply> {
        self.cell.claim(Reply::Model)?;
        self.send(Outcome::Done(result));
        Ok(())
    }

    /// Lets the task know that there will be no outcome.
    pub(crate) fn abandon(&self) {
        drop(self.take_sender());
    }

    fn send(&self, outcome: Outcome<T>) {
        if let Some(sender) = self.take_sender() {
            // A task that has just been dropped has no use for it.
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
    /// Waits for the outcome; `None` if the work was dropped undone.
    pub(crate) async fn wait(mut self) -> Option<Completed<T>> {
        (&mut self.receiver).await.ok()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Without effect once the outcome is decided.
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
