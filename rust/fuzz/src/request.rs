//! One request message with a grpc-timeout, sent through every layer of the real server.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::serving;

/// The methods. The first byte of the input selects one.
pub const METHODS: [&str; 19] = [
    "scorer.v1.ScoringService/Score",
    "scorer.v1.ScoringService/ScoreBatch",
    "scorer.v1.ScoringService/SelectAction",
    "scorer.v1.ScoringService/ReportOutcome",
    "scorer.v1.ScoringService/Describe",
    "scorer.v1.ScoringService/Noop",
    "scorer.v1.ShadowService/Observe",
    "inference.GRPCInferenceService/ModelInfer",
    "inference.GRPCInferenceService/ModelStreamInfer",
    "inference.GRPCInferenceService/ModelMetadata",
    "inference.GRPCInferenceService/ModelConfig",
    "inference.GRPCInferenceService/ModelReady",
    "inference.GRPCInferenceService/ServerMetadata",
    "inference.GRPCInferenceService/RepositoryIndex",
    "inference.GRPCInferenceService/ModelStatistics",
    "grpc.health.v1.Health/Check",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "scorer.v1.ScoringService/Explain",
];
/// Length of the longest value of grpc-timeout that is sent.
const LONGEST_TIMEOUT: usize = 12;
/// Time limit for a reply. The limit of the server for a request without a deadline is 5 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// The connection of a client, and the runtime that drives it.
struct Client {
    runtime: Runtime,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// Sends a request. The first byte of the input selects the method, the second is the length of the value of
/// grpc-timeout, which follows. The rest is the message. Checks that the reply reports no internal error.
pub fn run(data: &[u8]) {
    thread_local! {
        static CLIENT: RefCell<Client> = RefCell::new(Client::new());
    }
    let Some((&[method, length], rest)) = data.split_first_chunk::<2>() else { return };
    let (time, message) = rest.split_at(usize::from(length).min(LONGEST_TIMEOUT).min(rest.len()));
    let mut frame = vec![0];
    frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
    frame.extend_from_slice(message);
    let mut request = Request::post(format!("http://fuzz/{}", METHODS[usize::from(method) % METHODS.len()]))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if !time.is_empty() {
        let Ok(value) = HeaderValue::from_bytes(time) else { return };
        request = request.header("grpc-timeout", value);
    }
    let request = request.body(Full::from(frame)).expect("the parts of the request are valid");
    let status = CLIENT.with_borrow_mut(|client| client.call(request));
    if status
        .is_some_and(|(_, text)| text.starts_with("internal error") || text.starts_with("internal%20error"))
    {
        panic!("internal error: {:?}", serving::server().server.events());
    }
}

impl Client {
    fn new() -> Client {
        Client {
            runtime: Builder::new_current_thread().enable_all().build().expect("a runtime"),
            sender: None,
        }
    }

    /// Returns the status and its message; `None` if the connection was closed.
    fn call(&mut self, request: Request<Full<Bytes>>) -> Option<(String, String)> {
        let Client { runtime, sender } = self;
        let reply = runtime.block_on(async {
            let mut connected = match sender.take().filter(|sender| !sender.is_closed()) {
                Some(sender) => sender,
                None => connect().await,
            };
            let exchange = async {
                let (head, body) = connected.send_request(request).await.ok()?.into_parts();
                let trailers = body.collect().await.ok()?.trailers().cloned().unwrap_or_default();
                let field = |name: &str| {
                    let value = head.headers.get(name).or(trailers.get(name));
                    value
                        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
                        .unwrap_or_default()
                };
                Some((field("grpc-status"), field("grpc-message")))
            };
            let reply = timeout(PATIENCE, exchange).await.expect("the server answers in time");
            *sender = Some(connected);
            reply
        });
        drop(serving::server().server.events());
        reply
    }
}

async fn connect() -> SendRequest<Full<Bytes>> {
    let stream = UnixStream::connect(&serving::server().socket).await.expect("the server accepts");
    let (sender, connection) =
        handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("the handshake succeeds");
    tokio::spawn(connection);
    sender
}
