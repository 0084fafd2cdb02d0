//! `/metrics`, `/ready` and `/live` over HTTP/1.1, on a separate thread and runtime, so that a scrape does not use the
//! threads that answer requests.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use scorer_http::{Limit, Peer};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::services::Services;

/// Greatest number of connections. A further one replaces the oldest of the peer that has the most.
const CONNECTIONS: usize = 64;
/// Greatest number of connections of one peer. A further one replaces its oldest.
const CONNECTIONS_PER_PEER: usize = 16;
/// Time limit for the request's header.
const HEADER_WITHIN: Duration = Duration::from_secs(2);
/// Time limit of a connection.
const WITHIN: Duration = Duration::from_secs(10);
/// Number of pages that are rendered per second. Further scrapes return the latest page.
const PAGES_PER_SECOND: u32 = 20;
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until `stop` becomes true. The listener must be non-blocking.
pub(crate) fn start(
    listener: TcpListener,
    services: Arc<Services>,
    stop: watch::Receiver<bool>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("scorer-metrics".to_owned()).spawn(move || {
        runtime.block_on(run(listener, services, stop));
    })
}

async fn run(listener: TcpListener, services: Arc<Services>, mut stop: watch::Receiver<bool>) {
    // This fails only without a reactor, which the runtime has.
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let mut open = Open::default();
    let pages = Arc::new(Mutex::new(Pages::new()));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let peer = Peer::of_address(peer.ip());
        if open.make_room(peer) {
            services.counters.limited(Limit::MetricsConnections);
        }
        let (services, pages) = (Arc::clone(&services), Arc::clone(&pages));
        let serving = tokio::spawn(async move {
            let service = service_fn(move |request| {
                let response = answer(&services, &pages, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_WITHIN)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A failure of a scraper's connection affects only that scraper.
            let _ = timeout(WITHIN, connection).await;
        });
        open.connections.push_back((peer, serving.abort_handle()));
    }
}

/// The open connections, oldest first.
#[derive(Default)]
struct Open {
    connections: VecDeque<(Peer, AbortHandle)>,
}

// === impl Open ===

impl Open {
    /// Closes a connection if there is no room for another one of `peer`. Returns whether it closed one.
    fn make_room(&mut self, peer: Peer) -> bool {
        self.connections.retain(|(_, serving)| !serving.is_finished());
        let mut by_peer: HashMap<Peer, usize> = HashMap::new();
        self.connections.iter().for_each(|(peer, _)| *by_peer.entry(*peer).or_default() += 1);
        let crowded = if by_peer.get(&peer).is_some_and(|count| *count >= CONNECTIONS_PER_PEER) {
            Some(peer)
        } else if self.connections.len() >= CONNECTIONS {
            by_peer.into_iter().max_by_key(|(_, count)| *count).map(|(peer, _)| peer)
        } else {
            None
        };
        let oldest =
            crowded.and_then(|crowded| self.connections.iter().position(|(peer, _)| *peer == crowded));
        match oldest.and_then(|place| self.connections.remove(place)) {
            Some((_, serving)) => {
                serving.abort();
                true
            }
            None => false,
        }
    }
}

/// The page of metrics, rendered at most [`PAGES_PER_SECOND`] times per second.
struct Pages {
    last: Bytes,
    second: Instant,
    written: u32,
}

// === impl Pages ===

impl Pages {
    fn new() -> Pages {
        Pages { last: Bytes::new(), second: Instant::now(), written: 0 }
    }

    fn get(&mut self, services: &Arc<Services>) -> Result<Bytes, fmt::Error> {
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.written) = (Instant::now(), 0);
        }
        if self.written < PAGES_PER_SECOND {
            self.written += 1;
            self.last = super::render(services)?.into();
        }
        Ok(self.last.clone())
    }
}

fn answer(
    services: &Arc<Services>,
    pages: &Mutex<Pages>,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        response.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/live" => text(StatusCode::OK, "live\n"),
        "/ready" if services.health.is_ready() => text(StatusCode::OK, "ready\n"),
        "/ready" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        "/metrics" => match pages.lock().unwrap_or_else(PoisonError::into_inner).get(services) {
            Ok(page) => {
                let mut response = Response::new(Full::from(page));
                response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(OPEN_METRICS));
                response
            }
            // Writing to a string fails only if the encoder fails.
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n"),
        },
        _ => text(StatusCode::NOT_FOUND, "there are /metrics, /ready and /live\n"),
    }
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
