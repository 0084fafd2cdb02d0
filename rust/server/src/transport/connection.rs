//! Serves one HTTP/2 connection until it ends, ages out, or the server drains.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::turns::Turns;
use super::{Dispatch, preface};

/// A peer that has not spoken HTTP/2 by then is not coming.
const PREFACE_WITHIN: Duration = Duration::from_secs(5);
/// Advertised, so that a client opens another connection or waits; more are REFUSED_STREAM.
const MAX_CONCURRENT_STREAMS: u32 = 256;
/// Streams that a peer may reset before we have looked at them; beyond it is told to calm down and cut off.
/// h2 allows 20, which an honest client exceeds as soon as its requests time out together. One turn of
/// reading ([`super::turns`]) brings fewer than this many, so only a defect of ours would reach it.
const MAX_PENDING_RESETS: usize = 4096;
/// Frames for streams that are over already, in a connection's whole life; beyond it is cut off. h2 allows
/// 1,024, which one client in a hundred of whose calls times out uses up within minutes. Each costs us a reset
/// frame and nothing else: work for a stream that is gone is dropped with it.
const MAX_STRAY_FRAMES: usize = 1 << 20;
/// Metadata of one request; ours needs a few hundred bytes.
const MAX_HEADER_LIST: u32 = 16 << 10;
/// A stream may send one whole message without waiting for a window update ...
const STREAM_WINDOW: u32 = 1 << 20;
/// ... and a connection four of them.
const CONNECTION_WINDOW: u32 = 4 << 20;
/// What one slow reader can make us hold per stream.
const MAX_SEND_BUFFER: usize = 256 << 10;
/// A dead peer is noticed within interval + timeout.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_WITHIN: Duration = Duration::from_secs(5);
/// Connections are renewed, so that load spreads again after replicas come and go.
const MAX_AGE: Duration = Duration::from_secs(600);
/// Streams of an aged connection have this long to end.
const AGE_GRACE: Duration = Duration::from_secs(10);

/// How a connection ended, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Closed by the peer, by age, or by the drain.
    Closed,
    /// Never spoke HTTP/2.
    NoPreface,
    /// Broke an HTTP/2 rule or a limit, or the socket failed.
    Failed,
}

/// Serves `io` with `dispatch`. `spread` in `[0, 1)` moves the connection's end of life, so that
/// connections opened together do not end together.
pub(crate) async fn serve<IO>(
    io: IO,
    dispatch: Dispatch,
    mut draining: watch::Receiver<bool>,
    spread: f64,
) -> End
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = tokio::select! {
        read = timeout(PREFACE_WITHIN, preface::read(io)) => match read {
            Ok(Ok(io)) => io,
            Ok(Err(_)) | Err(_) => return End::NoPreface,
        },
        _ = draining.wait_for(|draining| *draining) => return End::Closed,
    };
    let (io, turn) = Turns::new(io);
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            // gRPC has no use for a date.
            .auto_date_header(false)
            .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_STRAY_FRAMES)
            .max_header_list_size(MAX_HEADER_LIST)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(MAX_SEND_BUFFER)
            .keep_alive_interval(KEEP_ALIVE_EVERY)
            .keep_alive_timeout(KEEP_ALIVE_WITHIN)
            .serve_connection(TokioIo::new(io), dispatch)
    );
    let mut age = pin!(sleep(MAX_AGE.mul_f64(1.0 + 0.1 * spread)));
    let ended = |result: Result<(), hyper::Error>| if result.is_ok() { End::Closed } else { End::Failed };

    let aged = tokio::select! {
        result = poll_fn(|context| {
            turn.begin();
            connection.as_mut().poll(context)
        }) => return ended(result),
        _ = draining.wait_for(|draining| *draining) => false,
        () = age.as_mut() => true,
    };
    // GOAWAY: the peer opens no more streams here, those that run may end.
    connection.as_mut().graceful_shutdown();
    if aged {
        timeout(AGE_GRACE, connection).await.map_or(End::Closed, ended)
    } else {
        // The drain has its own limit, after which this task is aborted.
        ended(connection.await)
    }
}
