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

use crate::state::Shared;

/// Scrapers at once; one above waits in the backlog.
const CONNECTIONS: usize = 16;
/// A scraper that takes longer is cut off.
const WITHIN: Duration = Duration::from_secs(10);
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until `stop` holds true. The listener must be non-blocking.
pub(crate) fn start(
    listener: TcpListener,
    shared: Arc<Shared>,
    stop: watch::Receiver<bool>,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("scorer-metrics".to_owned()).spawn(move || {
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        runtime.block_on(run(listener, slots, stop, move |request| answer(&shared, request)));
    })
}

/// Serves with `answer`. Every connection holds one of `slots`.
async fn run<A>(listener: TcpListener, slots: Arc<Semaphore>, mut stop: watch::Receiver<bool>, answer: A)
where
    A: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Send + Sync + 'static,
{
    // Fails only without a reactor, which this runtime has.
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
    let answer = Arc::new(answer);
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
        let answer = Arc::clone(&answer);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let response = answer(&request);
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

fn answer(shared: &Arc<Shared>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        response.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/live" => text(StatusCode::OK, "live\n"),
        "/ready" if shared.health.is_ready() => text(StatusCode::OK, "ready\n"),
        "/ready" => text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        "/metrics" => match super::render(shared) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn slow_scrapers_do_not_hold_up_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = watch::channel(false);
        let taken = Arc::new(Semaphore::new(0));
        let running = tokio::spawn(run(listener, taken, stopped, |_| text(StatusCode::OK, "")));
        tokio::task::yield_now().await;
        stop.send(true).unwrap();
        timeout(WITHIN, running).await.expect("the end does not wait for a scraper").unwrap();
    }
}
