//! Runs the task of each stream, and ends it if the peer does not read the reply.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use pin_project_lite::pin_project;
use tokio::time::{Sleep, sleep};

use crate::Limit;
use crate::conduct::Conduct;

tokio::task_local! {
    /// The stream of this task.
    static STREAM: Current;
}

/// The state that the parts of one stream's task share.
struct Current {
    phase: Cell<Phase>,
    conduct: Arc<Conduct>,
}

/// The phase of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The stream waits for the server: the service is answering, or its reply is not complete.
    Answering,
    /// The stream waits for the peer: the part of the reply with this number, from one, has been passed to HTTP/2.
    Sending(u64),
}

/// Counts that the message of this task's request did not arrive in time.
pub(crate) fn message_is_late() {
    let _ = STREAM.try_with(|stream| stream.conduct.unfinished());
}

/// Spawns the tasks of streams.
#[derive(Clone)]
pub(crate) struct Streams {
    conduct: Arc<Conduct>,
    reply_timeout: Duration,
}

pin_project! {
    /// The task of one stream: the service's future, then the transfer of the reply.
    struct Stream<F> {
        #[pin]
        future: F,
        streams: Streams,
        // The number and timer of the part of the reply that waits for the peer, if there is one.
        waiting: Option<(u64, Pin<Box<Sleep>>)>,
    }

    impl<F> PinnedDrop for Stream<F> {
        fn drop(this: Pin<&mut Self>) {
            this.project().streams.conduct.stream_ends();
        }
    }
}

/// The body of a reply, which records the parts that were passed to HTTP/2.
pub(crate) struct Noted<B> {
    body: B,
    parts: u64,
}

// === impl Streams ===

impl Streams {
    /// Creates the spawner of a connection. If the peer has not read a part of a reply after `reply_timeout`, its
    /// stream ends.
    pub(crate) fn new(conduct: Arc<Conduct>, reply_timeout: Duration) -> Streams {
        Streams { conduct, reply_timeout }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, future: F) {
        self.conduct.stream_begins();
        let stream = Stream { future, streams: self.clone(), waiting: None };
        let current = Current { phase: Cell::new(Phase::Answering), conduct: Arc::clone(&self.conduct) };
        tokio::spawn(STREAM.scope(current, stream));
    }
}

// === impl Stream ===

impl<F: Future<Output = ()>> Future for Stream<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let (streams, waiting) = (this.streams, this.waiting);
        if this.future.poll(context).is_ready() {
            return Poll::Ready(());
        }
        let Phase::Sending(part) = STREAM.with(|stream| stream.phase.get()) else {
            *waiting = None;
            return Poll::Pending;
        };
        if waiting.as_ref().is_none_or(|(since, _)| *since != part) {
            *waiting = Some((part, Box::pin(sleep(streams.reply_timeout))));
        }
        if let Some((_, timer)) = waiting {
            ready!(timer.as_mut().poll(context));
        }
        // Dropping the future resets the stream and frees the memory of its reply.
        streams.conduct.report(Limit::Reply);
        streams.conduct.unfinished();
        Poll::Ready(())
    }
}

// === impl Noted ===

impl<B> Noted<B> {
    pub(crate) fn new(body: B) -> Noted<B> {
        Noted { body, parts: 0 }
    }
}

impl<B: Body + Unpin> Body for Noted<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let phase = if polled.is_pending() {
            Phase::Answering
        } else {
            self.parts += 1;
            Phase::Sending(self.parts)
        };
        // Only a stream's task polls its reply, so the task-local value exists.
        let _ = STREAM.try_with(|stream| stream.phase.set(phase));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
