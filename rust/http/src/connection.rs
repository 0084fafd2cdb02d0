//! Serves one HTTP/2 connection until the peer closes it, it reaches its maximal age, or the server drains.

use std::any::Any;
use std::pin::pin;
use std::time::Instant;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::read_quota::Limited;
use crate::tls::HandshakeFailure;
use crate::{Handler, Settings, preface};

/// How a connection ended.
#[derive(Debug)]
pub enum ConnectionEnd {
    /// It was closed by the peer, by age, or by the drain.
    Closed,
    /// The TLS handshake failed.
    NoHandshake(HandshakeFailure),
    /// The peer did not speak HTTP/2.
    NoPreface,
    /// The peer broke a rule or a limit of HTTP/2, or the socket failed.
    Failed,
    /// The connection's task panicked, with this payload.
    Panicked(Box<dyn Any + Send>),
}

/// Serves `io` with `handler`. `jitter` in `[0, 1)` lengthens the connection's life by up to 10 %.
pub(crate) async fn serve<IO, H>(
    io: IO,
    handler: H,
    settings: &Settings,
    mut draining: watch::Receiver<bool>,
    jitter: f64,
) -> ConnectionEnd
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    H: Handler,
{
    let io = tokio::select! {
        read = timeout(settings.preface_timeout, preface::read(io)) => match read {
            Ok(Ok(io)) => io,
            Ok(Err(_)) | Err(_) => return ConnectionEnd::NoPreface,
        },
        _ = draining.wait_for(|draining| *draining) => return ConnectionEnd::Closed,
    };
    let (io, quota) = Limited::new(io, settings.read_quota);
    let service = service_fn(move |request: Request<Incoming>| handler.handle(request, Instant::now()));
    let mut connection = pin!(
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            // gRPC has no use for a date.
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
    let mut age = pin!(sleep(settings.max_age.mul_f64(1.0 + 0.1 * jitter)));

    let aged = tokio::select! {
        result = quota.drive(connection.as_mut()) => return end(result),
        _ = draining.wait_for(|draining| *draining) => false,
        () = age.as_mut() => true,
    };
    // GOAWAY: the peer opens no more streams on this connection, and its open streams may end.
    connection.as_mut().graceful_shutdown();
    let ending = quota.drive(connection.as_mut());
    if aged {
        timeout(settings.age_grace, ending).await.map_or(ConnectionEnd::Closed, end)
    } else {
        // The drain has a limit of its own, after which this task is aborted.
        end(ending.await)
    }
}

fn end(result: Result<(), hyper::Error>) -> ConnectionEnd {
    if result.is_ok() { ConnectionEnd::Closed } else { ConnectionEnd::Failed }
}

#[cfg(test)]
mod tests;
