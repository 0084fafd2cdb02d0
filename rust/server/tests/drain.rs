//! Requests in flight during a drain.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure here is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use h2::client::{ResponseFuture, SendRequest};
use hyper::body::Bytes;
use prost::Message as _;
use scorer_proto::v1::ScoreBatchResponse;
use tokio::net::TcpStream;

/// Far above the time that the drain needs.
const LIMIT: Duration = Duration::from_secs(60);

/// Several read quotas.
const PADDING: usize = 64 << 10;
/// A field that no message has; the server skips it.
const UNKNOWN: u32 = 100;

/// Encodes a message and pads it to more than 64 KiB.
fn padded(message: &impl prost::Message) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    prost::encoding::bytes::encode(UNKNOWN, &vec![7_u8; PADDING], &mut bytes);
    bytes
}

/// Waits until the server reports `count` requests in flight.
async fn in_flight(setup: &Setup, count: usize) {
    until(|| setup.server.status().inflight >= count).await;
}

async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, wait).await.expect("the server does not reach the state");
}

/// A call of which a part of the body was sent.
struct Half {
    response: ResponseFuture,
    stream: h2::SendStream<Bytes>,
    rest: Bytes,
}

async fn connect(setup: &Setup) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(&setup.server.addresses().grpc[0]).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Starts a call of `method` and sends the first half of `message`.
async fn half(client: &mut SendRequest<Bytes>, method: &str, message: &[u8]) -> Half {
    let mut frame = vec![0];
    frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
    frame.extend_from_slice(message);
    let mut frame = Bytes::from(frame);
    std::future::poll_fn(|context| client.poll_ready(context)).await.unwrap();
    let request = http::Request::post(format!("http://scorer/scorer.v1.ScoringService/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let (response, mut stream) = client.send_request(request, false).unwrap();
    let rest = frame.split_off(frame.len() / 2);
    stream.send_data(frame, false).unwrap();
    Half { response, stream, rest }
}

/// Sends the rest of the body; returns the message of the reply. The call must end with status OK.
async fn finish(call: Half) -> Bytes {
    let Half { response, mut stream, rest } = call;
    stream.send_data(rest, true).unwrap();
    let mut body = response.await.unwrap().into_body();
    let mut reply = Vec::new();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        reply.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.unwrap().expect("the reply has trailers");
    assert_eq!(trailers["grpc-status"], "0");
    Bytes::from(reply).split_off(5)
}

/// Starts the drain and returns when the server reports it.
async fn drain(setup: &Arc<Setup>) -> tokio::task::JoinHandle<()> {
    let own = Arc::clone(setup);
    let drained = tokio::task::spawn_blocking(move || own.server.drain(LIMIT));
    until(|| setup.server.status().state != "SERVING").await;
    drained
}

fn assert_complete(setup: &Setup) {
    let stopped = setup.events().into_iter().find(|event| event["event"] == "stopped").unwrap();
    assert_eq!(stopped["complete"], true, "{stopped}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_that_is_partly_sent_is_answered() {
    let setup = Arc::new(start());
    let fingerprint = fingerprint(&mut setup.client().await, FRAUD).await;
    let mut client = connect(&setup).await;
    let rows: Vec<[f32; 3]> = (0..900).map(|row| [row as f32, 1.0, 0.0]).collect();
    let call = half(&mut client, "ScoreBatch", &padded(&batch("half-sent", fingerprint, &rows))).await;
    in_flight(&setup, 1).await;
    let drained = drain(&setup).await;
    let reply = tokio::time::timeout(LIMIT, finish(call)).await.expect("the batch is answered");
    assert_eq!(ScoreBatchResponse::decode(reply).unwrap().scores.len(), rows.len());
    drop(client);
    drained.await.unwrap();
    assert_complete(&setup);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_flight_on_eight_connections_are_all_answered() {
    let setup = Arc::new(start());
    let (connections, per_connection) = (8, 32);
    let mut clients = Vec::new();
    let mut calls = Vec::new();
    for connection in 0..connections {
        let mut client = connect(&setup).await;
        for number in 0..per_connection {
            let message = padded(&score(&format!("{connection}-{number}"), 1.0));
            calls.push(half(&mut client, "Score", &message).await);
        }
        clients.push(client);
    }
    in_flight(&setup, connections * per_connection).await;
    let drained = drain(&setup).await;
    let finishing: Vec<_> = calls.into_iter().map(|call| tokio::spawn(finish(call))).collect();
    for call in finishing {
        tokio::time::timeout(LIMIT, call).await.expect("every call is answered").unwrap();
    }
    drop(clients);
    drained.await.unwrap();
    assert_complete(&setup);
    assert_eq!(setup.decisions().len(), connections * per_connection);
}
