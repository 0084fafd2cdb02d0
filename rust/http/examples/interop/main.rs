//! gRPC's interoperability service behind this crate's layers, for the interoperability clients of other
//! implementations: `cargo run --package scorer-http --example interop` prints the address that it serves on.

mod messages;
#[path = "../testing/mod.rs"]
mod testing;

use std::error::Error;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use scorer_http::unary;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use messages::{
    EchoStatus, Empty, Payload, SimpleRequest, SimpleResponse, StreamingInputCallRequest,
    StreamingInputCallResponse, StreamingOutputCallRequest, StreamingOutputCallResponse,
};
use testing::{Service, serve, with_metadata};

/// The cases send 271,828 bytes in one message.
const LIMIT: usize = 1 << 20;
const INITIAL: HeaderName = HeaderName::from_static("x-grpc-test-echo-initial");
const TRAILING: HeaderName = HeaderName::from_static("x-grpc-test-echo-trailing-bin");

fn main() -> Result<(), Box<dyn Error>> {
    let service = Service(Arc::new(|request| Box::pin(answer(request))));
    serve(service, |address| writeln!(std::io::stdout(), "{address}"))
}

async fn answer(request: Request<Incoming>) -> Response<Body> {
    let headers = echoed(request.headers(), &INITIAL);
    let trailers = echoed(request.headers(), &TRAILING);
    let method =
        request.uri().path().strip_prefix("/grpc.testing.TestService/").unwrap_or_default().to_owned();
    let response = match method.as_str() {
        "EmptyCall" => unary::message::<Empty, _>(request, testing::bounds(LIMIT))
            .await
            .map(|empty| unary::reply(&empty)),
        "UnaryCall" => unary_call(request).await.map(|reply| unary::reply(&reply)),
        "StreamingInputCall" => {
            let service = tower::service_fn(streaming_input_call);
            Ok(Grpc::new(ProstCodec::default()).client_streaming(service, request).await)
        }
        "StreamingOutputCall" => {
            let service = tower::service_fn(streaming_output_call);
            Ok(Grpc::new(ProstCodec::default()).server_streaming(service, request).await)
        }
        "FullDuplexCall" => {
            let service = tower::service_fn(full_duplex_call);
            Ok(Grpc::new(ProstCodec::default()).streaming(service, request).await)
        }
        _ => Err(Status::unimplemented("no such method here")),
    };
    with_metadata(response.unwrap_or_else(Status::into_http), &headers, &trailers)
}

fn echoed(headers: &HeaderMap, name: &HeaderName) -> Vec<(HeaderName, HeaderValue)> {
    headers.get(name).map(|value| (name.clone(), value.clone())).into_iter().collect()
}

fn check(status: Option<EchoStatus>) -> Result<(), Status> {
    match status {
        Some(EchoStatus { code, message }) if code != 0 => Err(Status::new(Code::from_i32(code), message)),
        _ => Ok(()),
    }
}

fn payload(size: i32) -> Result<Option<Payload>, Status> {
    let size = usize::try_from(size).map_err(|_| Status::invalid_argument("a size is not negative"))?;
    Ok(Some(Payload { kind: 0, body: vec![0; size] }))
}

async fn unary_call(request: Request<Incoming>) -> Result<SimpleResponse, Status> {
    let message: SimpleRequest = unary::message(request, testing::bounds(LIMIT)).await?;
    check(message.response_status)?;
    let server_id = if message.fill_server_id { "the only one".to_owned() } else { String::new() };
    Ok(SimpleResponse { payload: payload(message.response_size)?, server_id })
}

async fn streaming_input_call(
    request: tonic::Request<Streaming<StreamingInputCallRequest>>,
) -> Result<tonic::Response<StreamingInputCallResponse>, Status> {
    let mut messages = request.into_inner();
    let mut size = 0;
    while let Some(message) = messages.message().await? {
        size += message.payload.map_or(0, |payload| payload.body.len());
    }
    let aggregated_payload_size =
        i32::try_from(size).map_err(|_| Status::out_of_range("the sum is too large"))?;
    Ok(tonic::Response::new(StreamingInputCallResponse { aggregated_payload_size }))
}

type Outputs = ReceiverStream<Result<StreamingOutputCallResponse, Status>>;

async fn streaming_output_call(
    request: tonic::Request<StreamingOutputCallRequest>,
) -> Result<tonic::Response<Outputs>, Status> {
    let request = request.into_inner();
    Ok(outputs(tokio_stream::once(Ok(request))))
}

async fn full_duplex_call(
    request: tonic::Request<Streaming<StreamingOutputCallRequest>>,
) -> Result<tonic::Response<Outputs>, Status> {
    Ok(outputs(request.into_inner()))
}

/// Answers each request with the payloads that it asks for, as it comes.
fn outputs<S>(mut requests: S) -> tonic::Response<Outputs>
where
    S: tokio_stream::Stream<Item = Result<StreamingOutputCallRequest, Status>> + Send + Unpin + 'static,
{
    let (replies, outputs) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            if let Err(status) = reply_to(request, &replies).await {
                // Without a receiver the call was cancelled.
                let _ = replies.send(Err(status)).await;
                return;
            }
        }
    });
    tonic::Response::new(ReceiverStream::new(outputs))
}

async fn reply_to(
    request: Result<StreamingOutputCallRequest, Status>,
    replies: &tokio::sync::mpsc::Sender<Result<StreamingOutputCallResponse, Status>>,
) -> Result<(), Status> {
    let request = request?;
    check(request.response_status)?;
    for parameters in request.response_parameters {
        let pause = Duration::from_micros(parameters.interval_us.try_into().unwrap_or(0));
        tokio::time::sleep(pause).await;
        let reply = StreamingOutputCallResponse { payload: payload(parameters.size)? };
        replies.send(Ok(reply)).await.map_err(|_| Status::cancelled("the call was cancelled"))?;
    }
    Ok(())
}
