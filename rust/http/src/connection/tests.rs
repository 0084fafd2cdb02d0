//! Graceful shutdown over an in-memory connection.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use tokio::io::DuplexStream;
use tokio::task::yield_now;

use super::*;
use crate::Peer;
use crate::conduct::tests::Ignored;

/// Answers with the number of bytes of the request's body, in decimal digits.
#[derive(Clone)]
struct Count;

impl Handler for Count {
    type Body = Full<Bytes>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

    fn for_peer(&self, _: Peer) -> Count {
        Count
    }

    fn handle(&self, request: Request<Incoming>, _: Instant) -> Self::Future {
        Box::pin(async move {
            let length = request.into_body().collect().await.unwrap().to_bytes().len();
            Ok(Response::new(Full::from(length.to_string())))
        })
    }
}

/// Counts the polls of a future.
struct Polls<F> {
    future: Pin<Box<F>>,
    count: Arc<AtomicUsize>,
}

impl<F: Future> Future for Polls<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.count.fetch_add(1, Relaxed);
        self.future.as_mut().poll(context)
    }
}

struct Setup {
    client: h2::client::SendRequest<Bytes>,
    server: tokio::task::JoinHandle<ConnectionEnd>,
    drain: watch::Sender<bool>,
    polls: Arc<AtomicUsize>,
}

async fn start(settings: Settings) -> Setup {
    // Larger than the data of a test, as the kernel's buffers are.
    let (ours, theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(8 << 20);
    let (drain, draining) = watch::channel(false);
    let polls = Arc::new(AtomicUsize::new(0));
    let slots = Arc::new(Slots::new(&settings));
    let events = Arc::new(Ignored) as _;
    let context = super::Context { settings: Arc::new(settings), events, slots, draining, jitter: 0.0 };
    let serving = serve(ours, Count, context);
    let server = tokio::spawn(Polls { future: Box::pin(serving), count: Arc::clone(&polls) });
    let (client, connection) = h2::client::handshake(theirs).await.unwrap();
    tokio::spawn(connection);
    Setup { client, server, drain, polls }
}

/// Runs every task that is ready, until none is.
async fn settle() {
    for _ in 0..2000 {
        yield_now().await;
    }
}

/// Waits for `future` for at most as long as a working connection needs. The limit is a number of turns, as
/// time is paused.
async fn soon<F: Future>(future: F) -> F::Output {
    let turns = async {
        for _ in 0..20 {
            settle().await;
        }
    };
    tokio::select! {
        output = future => output,
        () = turns => panic!("the connection makes no progress"),
    }
}

type Call = (h2::client::ResponseFuture, h2::SendStream<Bytes>);

const BODY: usize = 64 << 10;

/// Opens a stream and sends the first half of its body.
async fn half(client: &mut h2::client::SendRequest<Bytes>) -> Call {
    std::future::poll_fn(|context| client.poll_ready(context)).await.unwrap();
    let request = Request::post("http://scorer/count").body(()).unwrap();
    let (response, mut stream) = client.send_request(request, false).unwrap();
    stream.send_data(Bytes::from(vec![1; BODY / 2]), false).unwrap();
    (response, stream)
}

/// Sends the second half and returns what the server counted.
async fn rest((response, mut stream): Call) -> usize {
    stream.send_data(Bytes::from(vec![2; BODY / 2]), true).unwrap();
    let mut body = soon(response).await.unwrap().into_body();
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        text.extend_from_slice(&data.unwrap());
    }
    String::from_utf8(text).unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_open_at_a_drain_are_answered_whole() {
    let mut setup = start(Settings::default()).await;
    let mut calls = Vec::new();
    for _ in 0..32 {
        calls.push(half(&mut setup.client).await);
    }
    settle().await;
    setup.drain.send(true).unwrap();
    settle().await;
    for call in calls {
        assert_eq!(rest(call).await, BODY);
    }
    drop(setup.client);
    assert!(matches!(soon(setup.server).await.unwrap(), ConnectionEnd::Closed));
}

#[tokio::test(start_paused = true)]
async fn streams_of_an_aged_connection_are_answered_whole() {
    let settings = Settings { max_age: Duration::from_secs(2), ..Settings::default() };
    let mut setup = start(settings).await;
    let call = half(&mut setup.client).await;
    settle().await;
    tokio::time::advance(Duration::from_secs(3)).await;
    settle().await;
    assert_eq!(rest(call).await, BODY);
    drop(setup.client);
    assert!(matches!(soon(setup.server).await.unwrap(), ConnectionEnd::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_draining_connection_that_waits_for_its_peer_is_not_polled() {
    let mut setup = start(Settings::default()).await;
    let call = half(&mut setup.client).await;
    settle().await;
    setup.drain.send(true).unwrap();
    settle().await;
    let before = setup.polls.load(Relaxed);
    settle().await;
    assert_eq!(setup.polls.load(Relaxed), before, "polls of a connection with nothing to do");
    assert_eq!(rest(call).await, BODY);
    // 64 KiB in quotas of 16 KiB, and a few polls per frame that is written.
    let polls = setup.polls.load(Relaxed);
    assert!(polls < 100, "{polls} polls for one call");
}
