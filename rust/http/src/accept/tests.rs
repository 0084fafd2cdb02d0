//! The accept loop over a real socket.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Instant;

use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use tokio::sync::Notify;

use super::*;
use crate::{Limit, bind};

/// Panics for the path `/panic`, on the task of the connection.
#[derive(Clone)]
struct Fragile;

impl Handler for Fragile {
    type Body = Empty<Bytes>;
    type Future = Ready<Result<Response<Empty<Bytes>>, Infallible>>;

    fn for_peer(&self, _: Peer) -> Fragile {
        Fragile
    }

    fn handle(&self, request: Request<Incoming>, _: Instant) -> Self::Future {
        assert!(request.uri().path() != "/panic", "as the test demands");
        ready(Ok(Response::new(Empty::new())))
    }
}

#[derive(Default)]
struct Recorder {
    lines: Mutex<Vec<String>>,
    closed: Notify,
}

impl Recorder {
    fn record(&self, line: impl Into<String>) {
        self.lines.lock().unwrap().push(line.into());
    }
}

impl ConnectionEvents for Recorder {
    fn accept_failed(&self, error: &io::Error, _: bool) {
        self.record(error.to_string());
    }

    fn limited(&self, limit: Limit) {
        self.record(limit.as_str());
    }

    fn opened(&self) {
        self.record("opened");
    }

    fn closed(&self, end: ConnectionEnd) {
        self.record(match end {
            ConnectionEnd::Panicked(panic) => format!("panicked: {}", panic.downcast_ref::<&str>().unwrap()),
            end => format!("{end:?}"),
        });
        self.closed.notify_one();
    }
}

/// Sends one request on a separate connection; returns whether it was answered.
async fn call(address: SocketAddr, path: &str) -> bool {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = Request::post(format!("http://scorer{path}")).body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    let answered = response.await.is_ok();
    connection.abort();
    answered
}

/// Fault case 84.
#[tokio::test]
async fn a_panic_on_a_connection_is_reported_and_frees_its_slot() {
    let listener = bind::tcp("listen", "127.0.0.1:0", &Settings::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let events = Arc::new(Recorder::default());
    let (drain, draining) = watch::channel(false);
    let settings = Settings { max_connections: 1, ..Settings::default() };
    let acceptor = Acceptor::new(Fragile, Arc::clone(&events), settings, draining);
    let running = tokio::spawn(acceptor.run(TcpListener::from_std(listener).unwrap()));
    assert!(!call(address, "/panic").await);
    events.closed.notified().await;
    // The only slot is free again.
    assert!(call(address, "/").await);
    events.closed.notified().await;
    drain.send(true).unwrap();
    running.await.unwrap();
    let lines = events.lines.lock().unwrap();
    assert_eq!(lines[..2], ["opened", "panicked: as the test demands"]);
    assert_eq!(lines.iter().filter(|line| *line == "opened").count(), lines.len() / 2, "{lines:?}");
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn connections_are_opened_a_few_at_a_time() {
    let mut opened = Opened::new(2);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        assert_eq!(opened.pause(), None);
        opened.one_more();
        assert_eq!(opened.pause(), None);
        opened.one_more();
        pauses.push(opened.pause());
        tokio::time::advance(Duration::from_micros(400)).await;
        pauses.push(opened.pause());
        tokio::time::advance(Duration::from_micros(600)).await;
    }
    let (whole, rest) = (Some(Duration::from_millis(1)), Some(Duration::from_micros(600)));
    assert_eq!(pauses, [whole, rest].repeat(4));
    // A later connection starts with a full allowance and does not wait.
    opened.one_more();
    tokio::time::advance(OPENING).await;
    opened.one_more();
    assert_eq!(opened.pause(), None);
}
