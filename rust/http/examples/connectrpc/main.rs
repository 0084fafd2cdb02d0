//! The conformance service of connectrpc.com behind this crate's layers. `connectconformance` starts the program, writes
//! to its standard input how to serve, and reads from its standard output where it does.

mod messages;
#[path = "../testing/mod.rs"]
mod testing;

use std::error::Error as StdError;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::{Bytes, Incoming};
use prost::Message;
use prost_types::Any;
use scorer_http::{message_status, not_grpc, unary};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use messages::{
    BidiStreamRequest, Error, Header, Payload, Reply, RequestInfo, RpcStatus, ServerCompatRequest,
    ServerCompatResponse, ServerStreamRequest, StreamDefinition, UnaryDefinition, UnaryRequest,
};
use testing::{Service, serve, with_metadata};

const PACKAGE: &str = "connectrpc.conformance.v1";
/// Where the suite sets no limit.
const LIMIT: usize = 4 << 20;

type Metadata = Vec<(HeaderName, HeaderValue)>;
type Replies = ReceiverStream<Result<Reply, Status>>;

fn main() -> Result<(), Box<dyn StdError>> {
    let mut length = [0; 4];
    std::io::stdin().read_exact(&mut length)?;
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    std::io::stdin().read_exact(&mut message)?;
    let wanted = ServerCompatRequest::decode(message.as_slice())?;
    if wanted.use_tls {
        return Err("the suite is run without TLS".into());
    }
    let limit = if wanted.message_receive_limit == 0 { LIMIT } else { wanted.message_receive_limit as usize };
    let service = Service(Arc::new(move |request| Box::pin(answer(request, limit))));
    serve(service, |address| {
        let response = ServerCompatResponse { host: address.ip().to_string(), port: address.port().into() };
        let mut out = std::io::stdout();
        out.write_all(&(response.encoded_len() as u32).to_be_bytes())?;
        out.write_all(&response.encode_to_vec())?;
        out.flush()
    })
}

async fn answer(request: Request<Incoming>, limit: usize) -> Response<Body> {
    if let Some(status) = not_grpc::status(&request) {
        return not_grpc::answer(status, request.into_body()).await;
    }
    let info = RequestInfo {
        request_headers: headers_of(request.headers()),
        timeout_ms: timeout_ms(request.headers()),
        requests: Vec::new(),
    };
    let prefix = format!("/{PACKAGE}.ConformanceService/");
    let method = request.uri().path().strip_prefix(&prefix).unwrap_or_default().to_owned();
    match method.as_str() {
        "Unary" | "IdempotentUnary" => {
            let message = unary::message::<UnaryRequest, _>(request, testing::bounds(limit)).await;
            match message {
                Ok(message) => unary_answer(&format!("{method}Request"), vec![message], info).await,
                Err(status) => status.into_http(),
            }
        }
        "ClientStream" => client_stream(request, info, limit).await,
        "ServerStream" => server_stream(request, info, limit).await,
        "BidiStream" => bidi_stream(request, info, limit).await,
        _ => Status::unimplemented("no such method here").into_http(),
    }
}

/// Answers one or several requests with what the first of them defines.
async fn unary_answer(kind: &str, requests: Vec<UnaryRequest>, mut info: RequestInfo) -> Response<Body> {
    info.requests = requests.iter().map(|request| any(kind, request)).collect();
    let definition = requests.into_iter().next().and_then(|request| request.response_definition);
    let UnaryDefinition { response_headers, response_data, error, response_trailers, response_delay_ms } =
        definition.unwrap_or_default();
    pause(response_delay_ms).await;
    let response = match error {
        Some(error) => status(error, Some(info)).into_http(),
        None => unary::reply(&reply(response_data, Some(info))),
    };
    with_metadata(response, &metadata(&response_headers), &metadata(&response_trailers))
}

/// Reads a client's stream with tonic, then answers as a unary call.
async fn client_stream(request: Request<Incoming>, info: RequestInfo, limit: usize) -> Response<Body> {
    let (answers, answer) = tokio::sync::oneshot::channel();
    let answers = std::sync::Mutex::new(Some(answers));
    let read = tower::service_fn(move |request: tonic::Request<Streaming<UnaryRequest>>| {
        let answers = answers.lock().ok().and_then(|mut answers| answers.take());
        let info = info.clone();
        async move {
            let mut messages = request.into_inner();
            let mut requests = Vec::new();
            while let Some(message) = messages.message().await.map_err(message_status::of_stream)? {
                requests.push(message);
            }
            let answer = unary_answer("ClientStreamRequest", requests, info).await;
            if let Some(answers) = answers {
                // The receiver waits in this call.
                let _ = answers.send(answer);
            }
            Ok(tonic::Response::new(Reply::default()))
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<Reply, UnaryRequest>::default()).max_decoding_message_size(limit);
    let response = grpc.client_streaming(read, request).await;
    answer.await.unwrap_or(response)
}

async fn server_stream(request: Request<Incoming>, mut info: RequestInfo, limit: usize) -> Response<Body> {
    let message: ServerStreamRequest = match unary::message(request, testing::bounds(limit)).await {
        Ok(message) => message,
        Err(status) => return status.into_http(),
    };
    info.requests = vec![any("ServerStreamRequest", &message)];
    let definition = message.response_definition.unwrap_or_default();
    let (sender, replies) = mpsc::channel(1);
    let (headers, trailers) =
        (metadata(&definition.response_headers), metadata(&definition.response_trailers));
    tokio::spawn(async move { send_all(&sender, definition, info).await });
    with_metadata(streamed(replies), &headers, &trailers)
}

async fn bidi_stream(request: Request<Incoming>, info: RequestInfo, limit: usize) -> Response<Body> {
    let (tell, defined) = tokio::sync::oneshot::channel();
    let tell = std::sync::Mutex::new(Some(tell));
    let service = tower::service_fn(move |request: tonic::Request<Streaming<BidiStreamRequest>>| {
        let tell = tell.lock().ok().and_then(|mut tell| tell.take());
        let info = info.clone();
        async move {
            let mut messages = request.into_inner();
            let (sender, replies) = mpsc::channel(1);
            let first = messages.message().await.map_err(message_status::of_stream)?;
            let definition = first.as_ref().and_then(|first| first.response_definition.clone());
            if let (Some(tell), Some(definition)) = (tell, &definition) {
                let headers = metadata(&definition.response_headers);
                // The receiver waits in this call.
                let _ = tell.send((headers, metadata(&definition.response_trailers)));
            }
            tokio::spawn(async move {
                if let Err(status) = converse(first, messages, definition, info, &sender).await {
                    // Without a receiver the call was cancelled.
                    let _ = sender.send(Err(status)).await;
                }
            });
            Ok(tonic::Response::new(ReceiverStream::new(replies)))
        }
    });
    let codec = ProstCodec::<Reply, BidiStreamRequest>::default();
    let response = Grpc::new(codec).max_decoding_message_size(limit).streaming(service, request).await;
    let (headers, trailers) = defined.await.unwrap_or_default();
    with_metadata(response, &headers, &trailers)
}

/// Answers each request as it comes, or all of them at the end, as the first defines.
async fn converse(
    first: Option<BidiStreamRequest>,
    mut messages: Streaming<BidiStreamRequest>,
    definition: Option<StreamDefinition>,
    mut info: RequestInfo,
    sender: &mpsc::Sender<Result<Reply, Status>>,
) -> Result<(), Status> {
    let full_duplex = first.as_ref().is_some_and(|first| first.full_duplex);
    let mut definition = definition.unwrap_or_default();
    let mut data = std::mem::take(&mut definition.response_data).into_iter();
    let mut sent = 0;
    let mut next = first;
    while let Some(message) = next {
        info.requests.push(any("BidiStreamRequest", &message));
        if full_duplex {
            let Some(data) = data.next() else { break };
            pause(definition.response_delay_ms).await;
            let seen = std::mem::take(&mut info.requests);
            let told = if sent == 0 {
                RequestInfo { requests: seen, ..info.clone() }
            } else {
                RequestInfo { requests: seen, ..RequestInfo::default() }
            };
            send(sender, reply(data, Some(told))).await?;
            sent += 1;
        }
        next = messages.message().await.map_err(message_status::of_stream)?;
    }
    definition.response_data = data.collect();
    if sent == 0 {
        send_all(sender, definition, info).await;
    } else {
        for data in std::mem::take(&mut definition.response_data) {
            pause(definition.response_delay_ms).await;
            send(sender, reply(data, None)).await?;
        }
        if let Some(error) = definition.error {
            return Err(status(error, None));
        }
    }
    Ok(())
}

/// Sends the replies that a definition lists, the first with what was received, then its error.
async fn send_all(
    sender: &mpsc::Sender<Result<Reply, Status>>,
    definition: StreamDefinition,
    info: RequestInfo,
) {
    let mut info = Some(info);
    for data in definition.response_data {
        pause(definition.response_delay_ms).await;
        if send(sender, reply(data, info.take())).await.is_err() {
            return;
        }
    }
    if let Some(error) = definition.error {
        // Without a receiver the call was cancelled.
        let _ = sender.send(Err(status(error, info))).await;
    }
}

async fn send(sender: &mpsc::Sender<Result<Reply, Status>>, reply: Reply) -> Result<(), Status> {
    sender.send(Ok(reply)).await.map_err(|_| Status::cancelled("the call was cancelled"))
}

/// A reply of tonic's from messages that come.
fn streamed(replies: mpsc::Receiver<Result<Reply, Status>>) -> Response<Body> {
    use tonic::codec::{Codec as _, EncodeBody};
    let replies: Replies = ReceiverStream::new(replies);
    let encoder = ProstCodec::<Reply, Reply>::default().encoder();
    let body = EncodeBody::new_server(
        encoder,
        replies,
        None,
        tonic::codec::SingleMessageCompressionOverride::default(),
        None,
    );
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn reply(data: Vec<u8>, request_info: Option<RequestInfo>) -> Reply {
    Reply { payload: Some(Payload { data, request_info }) }
}

/// The status of an error, with what was received among its details.
fn status(mut error: Error, info: Option<RequestInfo>) -> Status {
    if let Some(info) = info {
        error.details.push(any("ConformancePayload.RequestInfo", &info));
    }
    let message = error.message.unwrap_or_default();
    let details = RpcStatus { code: error.code, message: message.clone(), details: error.details };
    Status::with_details(Code::from_i32(error.code), message, Bytes::from(details.encode_to_vec()))
}

fn any(kind: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{PACKAGE}.{kind}"), value: message.encode_to_vec() }
}

async fn pause(ms: u32) {
    tokio::time::sleep(Duration::from_millis(ms.into())).await;
}

fn headers_of(map: &HeaderMap) -> Vec<Header> {
    let value = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    map.keys()
        .map(|name| Header { name: name.to_string(), value: map.get_all(name).iter().map(value).collect() })
        .collect()
}

/// The headers that can be sent as they are.
fn metadata(headers: &[Header]) -> Metadata {
    let pairs = headers.iter().flat_map(|header| header.value.iter().map(move |value| (&header.name, value)));
    pairs.filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?))).collect()
}

fn timeout_ms(headers: &HeaderMap) -> Option<i64> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: i64 = digits.parse().ok()?;
    Some(match unit {
        "H" => number * 3_600_000,
        "M" => number * 60_000,
        "S" => number * 1000,
        "m" => number,
        "u" => number / 1000,
        _ => number / 1_000_000,
    })
}
