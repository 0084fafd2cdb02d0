//! HTTP/2 connections that come back by themselves.
//!
//! On `h2` itself: of what a client library adds, a generator needs nothing, and it must not be what a run
//! measures.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::target::{Stream, Target};

/// Room for replies in flight, so that flow control is the server's and never the generator's.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Streams given up whose late replies are still recognised; beyond it one would end the connection.
const GIVEN_UP: usize = 100_000;
/// Between attempts to connect again.
const RECONNECT: Duration = Duration::from_millis(50);
/// What the first connection may take.
const FIRST_CONNECT: Duration = Duration::from_secs(5);

/// A connection of a worker thread; empty while it is being made again.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Mutex<Option<SendRequest<Bytes>>>>);

impl Connection {
    /// Connects, and keeps connecting again whenever the connection is lost.
    pub(crate) async fn open(target: &Target) -> std::io::Result<Connection> {
        let (sender, driver) = within_patience(handshake(target)).await?;
        let connection = Connection(Arc::new(Mutex::new(Some(sender))));
        tokio::spawn(keep(connection.clone(), target.clone(), driver));
        Ok(connection)
    }

    /// What sends on it, or `None` while there is no connection.
    pub(crate) fn sender(&self) -> Option<SendRequest<Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, sender: Option<SendRequest<Bytes>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sender;
    }
}

/// The first connection decides whether the run can begin, so the wait for it is bounded.
pub(crate) async fn within_patience<T>(
    connecting: impl Future<Output = std::io::Result<T>>,
) -> std::io::Result<T> {
    tokio::time::timeout(FIRST_CONNECT, connecting)
        .await
        .map_err(|_| std::io::Error::new(std::io::ErrorKind::TimedOut, "no connection within 5 s"))?
}

/// Moves the connection's bytes until it ends.
type Driver = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

async fn keep(connection: Connection, target: Target, mut driver: Driver) {
    loop {
        // Why it ended shows in how the requests that it carried ended.
        driver.await;
        connection.set(None);
        driver = loop {
            tokio::time::sleep(RECONNECT).await;
            if let Ok((sender, next)) = handshake(&target).await {
                connection.set(Some(sender));
                break next;
            }
        };
    }
}

async fn handshake(target: &Target) -> std::io::Result<(SendRequest<Bytes>, Driver)> {
    match target.connect().await? {
        Stream::Tcp(stream) => start(stream).await,
        Stream::Tls(stream) => start(stream).await,
        Stream::Unix(stream) => start(stream).await,
    }
}

async fn start<S>(stream: S) -> std::io::Result<(SendRequest<Bytes>, Driver)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = Builder::new()
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_reset_streams(GIVEN_UP)
        .handshake::<_, Bytes>(stream)
        .await
        .map_err(std::io::Error::other)?;
    Ok((sender, Box::pin(async move { drop(connection.await) })))
}
