//! Serves a test-only service behind the layers that the server uses: accept loop, connection, codecs.
#![allow(dead_code, reason = "each example uses its own part of this")]

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use scorer_http::unary::Bounds;
use scorer_http::{Acceptor, ConnectionEnd, ConnectionEvents, Handler, Limit, Peer, Rate, Settings, bind};
use scorer_os::tcp::TcpListener;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;

/// A reply under way.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Answers with a function.
#[derive(Clone)]
pub(crate) struct Service(pub(crate) Arc<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>);

impl Handler for Service {
    type Body = Body;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn for_peer(&self, _: Peer) -> Service {
        self.clone()
    }

    fn handle(&self, request: Request<Incoming>, _: Instant) -> Self::Future {
        let answering = (self.0)(request);
        Box::pin(async move { Ok(answering.await) })
    }
}

/// What the messages of the tests may be: of any content, up to `length` bytes.
pub(crate) fn bounds(length: usize) -> Bounds<'static> {
    Bounds {
        length,
        decoded: usize::MAX,
        is_within: |_, _| true,
        arrived: &|_| Ok(()),
        until: Instant::now() + Duration::from_secs(10),
        limited: &|_| {},
    }
}

struct Unreported;

impl ConnectionEvents for Unreported {
    fn accept_failed(&self, _: &io::Error, _: bool) {}
    fn limited(&self, _: Limit) {}
    fn opened(&self) {}
    fn closed(&self, _: ConnectionEnd) {}
}

/// Serves on a free port of 127.0.0.1 until the process ends; calls `ready` with the address.
pub(crate) fn serve(
    service: Service,
    ready: impl FnOnce(SocketAddr) -> io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    // The suites open a connection for nearly every case.
    let connection_rate = Rate { burst: 1 << 20, per_second: 1 << 20 };
    let settings = Settings { connection_rate, ..Settings::default() };
    let listener = bind::tcp("listen", "127.0.0.1:0", &settings)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        // Never sent: the process is ended from outside.
        let (_drain, draining) = watch::channel(false);
        let acceptor = Acceptor::new(service, Arc::new(Unreported), settings, draining);
        let listener = TcpListener::from_std(listener)?;
        ready(address)?;
        acceptor.run(listener).await;
        Ok(())
    })
}

/// Adds metadata to a reply: `headers` before the messages, `trailers` after them.
pub(crate) fn with_metadata(
    mut response: Response<Body>,
    headers: &[(HeaderName, HeaderValue)],
    trailers: &[(HeaderName, HeaderValue)],
) -> Response<Body> {
    for (name, value) in headers {
        response.headers_mut().append(name, value.clone());
    }
    if response.body().is_end_stream() {
        // A reply of a status alone has one block of headers for both.
        for (name, value) in trailers {
            response.headers_mut().append(name, value.clone());
        }
        return response;
    }
    let trailers = trailers.to_vec();
    response.map(|body| Body::new(WithTrailers { body, trailers }))
}

/// A body whose trailers are extended.
struct WithTrailers {
    body: Body,
    trailers: Vec<(HeaderName, HeaderValue)>,
}

impl hyper::body::Body for WithTrailers {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            frame.map(|frame| match frame.into_trailers() {
                Ok(mut trailers) => {
                    extend(&mut trailers, &self.trailers);
                    Frame::trailers(trailers)
                }
                Err(frame) => frame,
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn extend(map: &mut HeaderMap, metadata: &[(HeaderName, HeaderValue)]) {
    for (name, value) in metadata {
        map.append(name, value.clone());
    }
}
