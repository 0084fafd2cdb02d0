//! HTTP/2 connections that come back by themselves.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::Uri;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tonic::body::Body;
use tonic::client::Grpc;

use crate::target::{Stream, Target};

/// Room for replies in flight, so that flow control is the server's and never the generator's.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const MAX_REPLY_BYTES: usize = 64 << 20;
/// Between attempts to connect again.
const RECONNECT: Duration = Duration::from_millis(50);
/// What the first connection may take.
const FIRST_CONNECT: Duration = Duration::from_secs(5);

/// A connection of a worker thread; empty while it is being made again.
#[derive(Clone)]
pub(crate) struct Connection(Rc<RefCell<Option<Wire>>>);

impl Connection {
    /// Connects, and keeps connecting again whenever the connection is lost. Needs a `LocalSet`.
    pub(crate) async fn open(target: &Target) -> std::io::Result<Connection> {
        let first = tokio::time::timeout(FIRST_CONNECT, handshake(target))
            .await
            .map_err(|_| std::io::Error::new(std::io::ErrorKind::TimedOut, "no connection within 5 s"))??;
        let connection = Connection(Rc::new(RefCell::new(Some(first.0))));
        tokio::task::spawn_local(keep(connection.clone(), target.clone(), first.1));
        Ok(connection)
    }

    /// A client for one request, or `None` while there is no connection.
    pub(crate) fn client(&self, origin: &Uri) -> Option<Grpc<Wire>> {
        let wire = self.0.borrow().clone()?;
        Some(Grpc::with_origin(wire, origin.clone()).max_decoding_message_size(MAX_REPLY_BYTES))
    }
}

type Driver = Pin<Box<dyn Future<Output = Result<(), hyper::Error>>>>;

async fn keep(connection: Connection, target: Target, mut driver: Driver) {
    loop {
        // Why it ended shows in the statuses of the requests that it carried.
        let _ended = driver.await;
        connection.0.replace(None);
        driver = loop {
            tokio::time::sleep(RECONNECT).await;
            if let Ok((wire, next)) = handshake(&target).await {
                connection.0.replace(Some(wire));
                break next;
            }
        };
    }
}

async fn handshake(target: &Target) -> std::io::Result<(Wire, Driver)> {
    match target.connect().await? {
        Stream::Tcp(stream) => start(stream).await,
        Stream::Unix(stream) => start(stream).await,
    }
}

async fn start<S>(stream: S) -> std::io::Result<(Wire, Driver)>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake::<_, Body>(TokioIo::new(stream))
        .await
        .map_err(std::io::Error::other)?;
    Ok((Wire(sender), Box::pin(driver)))
}

/// One connection's sending half, as tonic wants it. No buffer or task stands in between.
#[derive(Clone)]
pub(crate) struct Wire(SendRequest<Body>);

impl tower::Service<http::Request<Body>> for Wire {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
