//! Serves one HTTP/2 connection until the peer closes it, it reaches its maximal age or a limit, or the server drains.

use std::any::Any;
use std::error::Error as _;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{self, Poll, ready};
use std::time::{Duration, Instant};

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Sleep, sleep, timeout};

use crate::conduct::{Conduct, Traffic};
use crate::read_quota::Limited;
use crate::slots::Slots;
use crate::streams::{Noted, Streams};
use crate::tls::HandshakeFailure;
use crate::{ConnectionEvents, Handler, Limit, Settings, preface};

/// How a connection ended.
#[derive(Debug)]
pub enum ConnectionEnd {
    /// It was closed by the peer, because of its age, or by the drain.
    Closed,
    /// The TLS handshake failed.
    NoHandshake(HandshakeFailure),
    /// The peer did not speak HTTP/2.
    NoPreface,
    /// The peer reached a limit.
    Limited(Limit),
    /// The peer broke a rule of HTTP/2, or the socket failed.
    Failed,
    /// The connection's task panicked, with this payload.
    Panicked(Box<dyn Any + Send>),
}

/// The parts of the listener that a connection uses.
pub(crate) struct Context {
    pub(crate) settings: Arc<Settings>,
    pub(crate) events: Arc<dyn ConnectionEvents>,
    pub(crate) slots: Arc<Slots>,
    pub(crate) draining: watch::Receiver<bool>,
    /// A number in `[0, 1)` that extends the connection's age limit by up to 10 %.
    pub(crate) jitter: f64,
}

/// The reason why a connection is ended gracefully.
enum Farewell {
    Drain,
    Aged,
    Idle,
    Strays,
}

/// Serves `io` with `handler`.
pub(crate) async fn serve<IO, H>(io: IO, handler: H, context: Context) -> ConnectionEnd
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    H: Handler,
{
    let Context { settings, events, slots, mut draining, jitter } = context;
    let io = tokio::select! {
        read = timeout(settings.preface_timeout, preface::read(io)) => match read {
            Ok(Ok(io)) => io,
            Ok(Err(_)) => return ConnectionEnd::NoPreface,
            Err(_) => {
                events.limited(Limit::Preface);
                return ConnectionEnd::NoPreface;
            }
        },
        _ = draining.wait_for(|draining| *draining) => return ConnectionEnd::Closed,
    };
    let conduct = Conduct::new(events, settings.max_unfinished);
    let (io, quota) = Limited::new(io, &settings, Traffic::new(Arc::clone(&conduct), &settings));
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = handler.handle(request, Instant::now());
        async move { Ok::<_, std::convert::Infallible>(answer.await?.map(Noted::new)) }
    });
    let streams = Streams::new(Arc::clone(&conduct), settings.reply_timeout);
    let mut connection = pin!(
        http2::Builder::new(streams)
            .timer(TokioTimer::new())
            // gRPC does not use the date header.
            .auto_date_header(false)
            .max_concurrent_streams(settings.max_concurrent_streams)
            .max_pending_accept_reset_streams(settings.max_pending_resets)
            .max_local_error_reset_streams(settings.max_stray_frames)
            .max_header_list_size(settings.max_header_list)
            .initial_stream_window_size(settings.stream_window)
            .initial_connection_window_size(settings.connection_window)
            .max_send_buf_size(settings.max_send_buffer)
            .keep_alive_interval(settings.keep_alive_interval)
            .keep_alive_timeout(settings.keep_alive_timeout)
            .serve_connection(TokioIo::new(io), service)
    );
    let mut debt = Debt::new(&conduct, settings.write_timeout);
    let mut exceeded = pin!(conduct.exceeded());

    let farewell = {
        let mut age = pin!(sleep(settings.max_age.mul_f64(1.0 + 0.1 * jitter)));
        let mut idle = pin!(idle(&conduct, &settings, &slots));
        let strays = || conduct.strays() >= settings.max_stray_frames / 2;
        tokio::select! {
            result = poll_fn(|context| debt.drive(quota.drive(connection.as_mut()), strays, context)) => match result {
                Driven::Ended(result) => return end(&conduct, result),
                Driven::Strays => Farewell::Strays,
            },
            limit = exceeded.as_mut() => return limited(&conduct, limit),
            _ = draining.wait_for(|draining| *draining) => Farewell::Drain,
            () = age.as_mut() => Farewell::Aged,
            () = idle.as_mut() => Farewell::Idle,
        }
    };
    match farewell {
        Farewell::Idle => conduct.report(Limit::Idle),
        Farewell::Strays => conduct.report(Limit::StrayFrames),
        Farewell::Drain | Farewell::Aged => {}
    }
    conduct.leave();
    // This sends GOAWAY: the peer opens no more streams on the connection, and its open streams can end.
    connection.as_mut().graceful_shutdown();
    let ending = async {
        tokio::select! {
            result = quota.drive(connection.as_mut()) => end(&conduct, result),
            limit = exceeded.as_mut() => limited(&conduct, limit),
        }
    };
    match farewell {
        // The drain has its own time limit, after which this task is aborted.
        Farewell::Drain => ending.await,
        _ => timeout(settings.age_grace, ending).await.unwrap_or(ConnectionEnd::Closed),
    }
}

/// Resolves when the connection has had no request for too long.
async fn idle(conduct: &Conduct, settings: &Settings, slots: &Slots) {
    let tick = settings.crowded_idle_timeout;
    let mut seen = conduct.idle_since();
    let mut ticks = 0;
    loop {
        sleep(tick).await;
        let now = conduct.idle_since();
        if now.is_none() || now != seen {
            (seen, ticks) = (now, 0);
            continue;
        }
        ticks += 1;
        if slots.is_crowded() || tick * ticks >= settings.idle_timeout {
            return;
        }
    }
}

fn limited(conduct: &Conduct, limit: Limit) -> ConnectionEnd {
    conduct.report(limit);
    ConnectionEnd::Limited(limit)
}

fn end(conduct: &Conduct, result: Result<(), hyper::Error>) -> ConnectionEnd {
    let Err(error) = result else { return ConnectionEnd::Closed };
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    // A GOAWAY of the peer is not a limit of this server.
    let calmed =
        |error: &h2::Error| !error.is_remote() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
    if source.is_some_and(calmed) { limited(conduct, Limit::Protocol) } else { ConnectionEnd::Failed }
}

/// Checks that the peer reads the bytes that wait for it.
struct Debt<'a> {
    conduct: &'a Conduct,
    within: Duration,
    timer: Pin<Box<Sleep>>,
    /// Value of [`Conduct::taken`] when the timer was set; `None` while no bytes wait for the peer.
    taken: Option<(u64, u64)>,
}

/// The reason why a connection is no longer polled.
enum Driven {
    Ended(Result<(), hyper::Error>),
    Strays,
}

// === impl Debt ===

impl<'a> Debt<'a> {
    fn new(conduct: &'a Conduct, within: Duration) -> Debt<'a> {
        Debt { conduct, within, timer: Box::pin(sleep(within)), taken: None }
    }

    /// Polls a connection, then checks whether its peer reads.
    fn drive(
        &mut self,
        connection: impl Future<Output = Result<(), hyper::Error>>,
        strays: impl Fn() -> bool,
        context: &mut task::Context<'_>,
    ) -> Poll<Driven> {
        if let Poll::Ready(result) = pin!(connection).poll(context) {
            return Poll::Ready(Driven::Ended(result));
        }
        if strays() {
            return Poll::Ready(Driven::Strays);
        }
        while self.conduct.owes() {
            let taken = Some(self.conduct.taken());
            if self.taken.is_none() {
                self.taken = taken;
                self.timer.as_mut().reset(tokio::time::Instant::now() + self.within);
            }
            ready!(self.timer.as_mut().poll(context));
            if self.taken == taken {
                self.conduct.exceed(Limit::Write);
                return Poll::Pending;
            }
            self.taken = None;
        }
        self.taken = None;
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
