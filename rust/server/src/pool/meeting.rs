//! Where a request's task and its evaluation meet: one reply, whoever is first.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use scorer_admission::{Reply, ReplyCell};
use tokio::sync::oneshot;

/// Shared by the task, the pool's thread and the watchdog.
pub(crate) struct Meeting<T> {
    pub(crate) cell: ReplyCell,
    tell: Mutex<Option<oneshot::Sender<Told<T>>>>,
}

/// What the task learns.
pub(crate) enum Met<T> {
    /// The evaluation, in time.
    Done(T),
    /// It was not done in time; whatever comes of it now is discarded.
    Late,
}

/// What the task learns, and since when it could be known.
pub(crate) type Told<T> = (Met<T>, Instant);

/// The task's side. Dropped, the caller has gone.
pub(crate) struct Waiting<T> {
    meeting: Arc<Meeting<T>>,
    told: oneshot::Receiver<Told<T>>,
}

/// Something whose time can be over.
pub(crate) trait Expire: Send + Sync {
    /// Its time is over now.
    fn expire(&self);
}

// === impl Meeting ===

impl<T> Meeting<T> {
    pub(crate) fn new() -> (Arc<Meeting<T>>, Waiting<T>) {
        let (tell, told) = oneshot::channel();
        let meeting = Arc::new(Meeting { cell: ReplyCell::new(), tell: Mutex::new(Some(tell)) });
        (Arc::clone(&meeting), Waiting { meeting, told })
    }

    /// The evaluation is done. `Err`: somebody else was first, and this is discarded.
    pub(crate) fn give(&self, result: T) -> Result<(), Reply> {
        self.cell.claim(Reply::Model)?;
        self.tell(Met::Done(result));
        Ok(())
    }

    /// There will be no evaluation.
    pub(crate) fn abandon(&self) {
        drop(self.sender());
    }

    fn tell(&self, what: Met<T>) {
        if let Some(tell) = self.sender() {
            // The task may just have been dropped; it then has no use for it.
            let _ = tell.send((what, Instant::now()));
        }
    }

    fn sender(&self) -> Option<oneshot::Sender<Told<T>>> {
        self.tell.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<T: Send> Expire for Meeting<T> {
    fn expire(&self) {
        if self.cell.claim(Reply::Fallback).is_ok() {
            self.tell(Met::Late);
        }
    }
}

// === impl Waiting ===

impl<T> Waiting<T> {
    /// What became of it; `None` if nothing ever will.
    pub(crate) async fn wait(mut self) -> Option<Told<T>> {
        (&mut self.told).await.ok()
    }
}

impl<T> Drop for Waiting<T> {
    fn drop(&mut self) {
        // Too late once it has been told.
        let _ = self.meeting.cell.claim(Reply::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_one_is_heard_and_the_others_are_told() {
        let (meeting, waiting) = Meeting::new();
        meeting.expire();
        assert_eq!(meeting.give(1), Err(Reply::Fallback));
        assert!(matches!(waiting.wait().await, Some((Met::Late, _))));

        let (meeting, waiting) = Meeting::new();
        assert_eq!(meeting.give(2), Ok(()));
        meeting.expire();
        assert!(matches!(waiting.wait().await, Some((Met::Done(2), _))));

        let (meeting, waiting) = Meeting::new();
        drop(waiting);
        assert_eq!(meeting.give(3), Err(Reply::Cancelled));

        let (meeting, waiting) = Meeting::<u8>::new();
        meeting.abandon();
        assert!(waiting.wait().await.is_none());
    }
}
