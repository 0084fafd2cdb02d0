//! HTTP/1.1 for servers that speak no gRPC: a pool of connections, one request at a time on each.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

use crate::connection::within_patience;
use crate::target::{Stream, Target};

/// Connections of one caller on one thread. A request without a free one waits, and is charged for it.
pub(crate) struct Pool {
    target: Target,
    free: Semaphore,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Pool {
    /// Connects all of them.
    pub(crate) async fn open(target: &Target, connections: usize) -> std::io::Result<Pool> {
        let mut idle = Vec::with_capacity(connections);
        for _ in 0..connections {
            idle.push(within_patience(connect(target)).await?);
        }
        Ok(Pool { target: target.clone(), free: Semaphore::new(connections), idle: Mutex::new(idle) })
    }

    /// Sends one request and reads its whole reply. Dropped before its end, it takes its connection with it.
    pub(crate) async fn call(&self, request: Request<Full<Bytes>>) -> Result<Bytes, &'static str> {
        let _place = self.free.acquire().await.map_err(|_| "not_connected")?;
        // The server may have closed a connection that idled.
        let kept = self.idle().pop().filter(|sender| !sender.is_closed());
        let mut sender = match kept {
            Some(sender) => sender,
            None => connect(&self.target).await.map_err(|_| "not_connected")?,
        };
        sender.ready().await.map_err(|_| "connection_lost")?;
        let reply = sender.send_request(request).await.map_err(|_| "connection_lost")?;
        let status = reply.status();
        let body = reply.into_body().collect().await.map_err(|_| "connection_lost")?.to_bytes();
        self.idle().push(sender);
        match status {
            StatusCode::OK => Ok(body),
            StatusCode::TOO_MANY_REQUESTS => Err("HTTP_429"),
            StatusCode::SERVICE_UNAVAILABLE => Err("HTTP_503"),
            status if status.is_client_error() => Err("HTTP_4xx"),
            _ => Err("HTTP_5xx"),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<SendRequest<Full<Bytes>>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn connect(target: &Target) -> std::io::Result<SendRequest<Full<Bytes>>> {
    match target.connect().await? {
        Stream::Tcp(stream) => start(stream).await,
        Stream::Tls(stream) => start(stream).await,
        Stream::Unix(stream) => start(stream).await,
    }
}

async fn start<S>(stream: S) -> std::io::Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
    // How it ends shows in the requests that it carries.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}
