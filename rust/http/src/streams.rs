//! Runs the task of each stream, and ends it if the peer does not take the reply.

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

/// What the parts of one stream's task share.
struct Current {
    phase: Cell<Phase>,
    conduct: Arc<Conduct>,
}

/// What a stream has got to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The service answers, or its reply is not complete: the stream waits for the server.
    Answering,
    /// A part of the reply, counted from one, is handed over: the stream waits for the peer.
    Sending(u64),
}

/// Notes that the message of this task's request did not come in time.
pub(crate) fn message_is_late() {
    let _ = STREAM.try_with(|stream| stream.conduct.unfinished());
}

/// Spawns streams.
#[derive(Clone)]
pub(crate) struct Streams {
    conduct: Arc<Conduct>,
    reply_timeout: Duration,
}

pin_project! {
    /// One stream: the service's future, then the transfer of the reply.
    struct Stream<F> {
        #[pin]
        future: F,
        streams: Streams,
        // Set while a part of the reply waits for the peer, with its number.
        waiting: Option<(u64, Pin<Box<Sleep>>)>,
    }

    impl<F> PinnedDrop for Stream<F> {
        fn drop(this: Pin<&mut Self>) {
            this.project().streams.conduct.stream_ends();
        }
    }
}

/// The body of a reply; notes which parts were handed over.
pub(crate) struct Noted<B> {
    body: B,
    parts: u64,
}

// === impl Streams ===

impl Streams {
    /// Of a connection. A part of a reply that the peer has not taken after `reply_timeout` ends its stream.
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
        // Dropping the future resets the stream and gives back what its reply held.
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
        // Only a stream's task polls its reply.
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
