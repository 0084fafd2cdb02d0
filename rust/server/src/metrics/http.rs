//! `/metrics`, `/ready` and `/live` over HTTP/1.1, on a thread and runtime of their own: a scrape takes
//! nothing from the threads that answer requests.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::services::Services;

/// Scrapers at once; one above waits in the backlog.
const CONNECTIONS: usize = 16;
/// A scraper that takes longer is cut off.
const WITHIN: Duration = Duration::from_secs(10);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until `stop` holds true. The listener must be non-blocking.
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
    // Fails only without a reactor, which this runtime has.
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let next = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            next = next => next,
            // Also while every slot is taken: a slow scraper must not hold up the end of the server.
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let services = Arc::clone(&services);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let response = answer(&services, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(WITHIN)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A scraper's own failure concerns only the scraper.
            let _ = timeout(WITHIN, connection).await;
            drop(slot);
        });
    }
}

fn answer(services: &Arc<Services>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        response.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/live" => text(StatusCode::OK, "live\n"),
        "/ready" if services.health.is_ready() => text(StatusCode::OK, "ready\n"),
        "/ready" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        "/metrics" => match super::render(services) {
            Ok(page) => {
                let mut response = Response::new(Full::from(page));
                response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(OPEN_METRICS));
                response
            }
            // Writing to a string fails only where the encoder does.
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
