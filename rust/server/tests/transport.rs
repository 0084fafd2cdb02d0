//! Deadlines, limits, other protocols and sockets.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::support::*;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use scorer_proto::v1::{NoopRequest, ScoreBatchRequest};
use scorer_server::{BindError, Fault, Server, ServerConfig, ServerError};
use serde_json::json;
use tonic::Code;
use tonic::transport::Endpoint;

fn with_timeout(values: &[&str]) -> http::Request<Full<hyper::body::Bytes>> {
    let mut request = framed("Noop", 0, &[]);
    for value in values {
        request.headers_mut().append("grpc-timeout", value.parse().unwrap());
    }
    request
}

/// Fault cases 1, 2, 3.
#[tokio::test(flavor = "multi_thread")]
async fn deadlines() {
    let setup = start();
    let address = setup.server.addresses().grpc[0].clone();
    for (values, code, words) in [
        (&[] as &[&str], 0, ""),
        (&["1S"], 0, ""),
        (&["99999999H"], 0, ""),
        (&["0n"], 4, "the deadline passed"),
        (&["1n"], 4, "the deadline passed"),
        (&["5x"], 3, "is malformed"),
        (&["123456789S"], 3, "is malformed"),
        (&["-1S"], 3, "is malformed"),
        (&[""], 3, "is malformed"),
        (&["1S", "1S"], 3, "given twice"),
    ] {
        let (status, found, message) = raw(&address, with_timeout(values)).await;
        // A nanosecond has passed when the work would start. Noop has no work, so it may also be answered.
        let in_time = *values == ["1n"] && found == Some(0);
        assert!(in_time || (status, found) == (200, Some(code)), "{values:?}: {found:?} {message}");
        assert!(in_time || message.contains(words), "{values:?}: {message}");
    }
}

/// Fault case 2.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_request_is_not_evaluated() {
    let setup = start();
    let address = setup.server.addresses().grpc[0].clone();
    let message = select("late", 1.0).encode_to_vec();
    let mut request = framed("SelectAction", message.len() as u32, &message);
    request.headers_mut().insert("grpc-timeout", "1n".parse().unwrap());
    let (_, code, _) = raw(&address, request).await;
    assert_eq!(code, Some(Code::DeadlineExceeded as i32));
    assert!(setup.decisions().is_empty());
}

/// Fault case 29.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_is_not_waited_for() {
    let setup = start();
    let address = setup.server.addresses().grpc[0].clone();
    // A header that announces 100 bytes, and a body that ends early.
    let (_, code, message) = raw(&address, framed("Score", 100, b"abc")).await;
    assert!(code.is_some_and(|code| code != 0), "{message}");
    // A body that stays open ends at the caller's deadline.
    let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::handshake(
        hyper_util::rt::TokioExecutor::new(),
        hyper_util::rt::TokioIo::new(stream),
    )
    .await
    .unwrap();
    tokio::spawn(connection);
    let (frames, body) =
        tokio::sync::mpsc::channel::<Result<hyper::body::Frame<hyper::body::Bytes>, std::io::Error>>(1);
    let body = http_body_util::StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(body));
    let request = http::Request::post("http://scorer/scorer.v1.ScoringService/Score")
        .header("content-type", "application/grpc")
        .header("grpc-timeout", "50m")
        .body(body)
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "4");
    drop(frames);
}

/// Fault case 29.
#[tokio::test(flavor = "multi_thread")]
async fn messages_above_the_limit_are_resource_exhausted() {
    let setup = start_with(|config| {
        config["max_message_bytes"] = json!(4096);
        config["max_batch_bytes"] = json!(4096);
    });
    let mut client = setup.client().await;
    client.noop(NoopRequest { payload: vec![0; 4000] }).await.unwrap();
    let status = client.noop(NoopRequest { payload: vec![0; 5000] }).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("4096"), "{}", status.message());
    let large = ScoreBatchRequest { values: vec![0.0; 10_000], ..batch("", 0, &[]) };
    assert_eq!(client.score_batch(large).await.unwrap_err().code(), Code::ResourceExhausted);
    // A header with a length of 4 GiB allocates nothing.
    let address = setup.server.addresses().grpc[0].clone();
    let (_, code, _) = raw(&address, framed("Score", u32::MAX, b"")).await;
    assert_eq!(code, Some(Code::ResourceExhausted as i32));
    client.noop(NoopRequest::default()).await.expect("the connection must remain open");
    assert!(setup.metrics().await.contains("code=\"RESOURCE_EXHAUSTED\"} "));
}

/// Fault cases 26, 30, 33.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_are_refused_and_the_connection_remains() {
    let setup = start();
    let address = setup.server.addresses().grpc[0].clone();
    for body in [&b"\xff\xff\xff\xff"[..], b"\x0a\x7fshort", b"\x0b", b"\x12\x02\xff\xfe"] {
        let (status, code, _) = raw(&address, framed("Score", body.len() as u32, body)).await;
        assert_eq!((status, code), (200, Some(Code::Internal as i32)), "{body:?}");
    }
    let mut compressed = framed("Score", 0, &[]);
    *compressed.body_mut() = Full::from(vec![1, 0, 0, 0, 0]);
    assert_eq!(raw(&address, compressed).await.1, Some(Code::Internal as i32));
    let mut gzip = framed("Score", 0, &[]);
    gzip.headers_mut().insert("grpc-encoding", "gzip".parse().unwrap());
    assert_eq!(raw(&address, gzip).await.1, Some(Code::Unimplemented as i32));
    assert_eq!(raw(&address, framed("Nope", 0, &[])).await.1, Some(Code::Unimplemented as i32));
    let mut elsewhere = framed("Noop", 0, &[]);
    *elsewhere.uri_mut() = "http://scorer/scorer.v1.ControlService/GetStatus".parse().unwrap();
    assert_eq!(raw(&address, elsewhere).await.1, Some(Code::Unimplemented as i32));
    let mut get = framed("Noop", 0, &[]);
    *get.method_mut() = http::Method::GET;
    assert_eq!(raw(&address, get).await.0, 405);
    let mut json = framed("Noop", 0, &[]);
    json.headers_mut().insert("content-type", "application/json".parse().unwrap());
    assert_eq!(raw(&address, json).await.0, 415);
    setup.client().await.noop(NoopRequest::default()).await.unwrap();
}

/// Fault case 33.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_grpc_is_answered_although_its_body_does_not_end() {
    let setup = start();
    let address = setup.server.addresses().grpc[0].clone();
    // One byte and then none, and more bytes than are read of such a body.
    for length in [1, 64 << 10] {
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let (frames, body) =
            tokio::sync::mpsc::channel::<Result<hyper::body::Frame<hyper::body::Bytes>, std::io::Error>>(1);
        frames.send(Ok(hyper::body::Frame::data(vec![b'a'; length].into()))).await.unwrap();
        let body = http_body_util::StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(body));
        let request = http::Request::post("http://scorer/").body(body).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), 415);
        let text = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(
            text,
            "This server answers gRPC, whose content-type is application/grpc or application/grpc+proto.\n"
        );
        drop(frames);
    }
}

/// Fault case 31.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_be_sent_in_parts_but_must_be_complete_and_single() {
    let setup = start();
    let message = NoopRequest { payload: vec![7; 50] }.encode_to_vec();
    let whole = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    for (bytes, code) in [
        (whole.clone(), Code::Ok),
        (whole[..20].to_vec(), Code::Internal),
        (whole[..3].to_vec(), Code::Internal),
        // gRPC's code for a wrong number of messages.
        (Vec::new(), Code::Unimplemented),
        ([whole.clone(), whole].concat(), Code::Unimplemented),
    ] {
        let pieces: Vec<_> = bytes
            .into_iter()
            .map(|byte| {
                Ok::<_, std::io::Error>(hyper::body::Frame::data(hyper::body::Bytes::from(vec![byte])))
            })
            .collect();
        let body = http_body_util::StreamBody::new(tokio_stream::iter(pieces));
        let stream = tokio::net::TcpStream::connect(&setup.server.addresses().grpc[0]).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let response = sender.send_request(framed("Noop", 0, &[]).map(|_| body)).await.unwrap();
        let (head, body) = response.into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
        let found = head.headers.get("grpc-status").or(trailers.get("grpc-status")).unwrap();
        assert_eq!(Code::from_bytes(found.as_bytes()), code);
        connection.abort();
    }
}

/// Fault case 33.
#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_are_refused_and_counted() {
    let setup = start();
    let address = setup.server.addresses().grpc[0].clone();
    let sent = tokio::task::spawn_blocking(move || {
        for head in
            [&b"GET / HTTP/1.1\r\nhost: scorer\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
        {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(head).unwrap();
            let mut rest = Vec::new();
            // The connection is closed or reset at once.
            let _ = stream.read_to_end(&mut rest);
            assert!(rest.is_empty());
        }
    });
    sent.await.unwrap();
    // The server counts a connection after it has closed it.
    let wait = patience("the refused connections are counted");
    while !setup.metrics().await.contains("scorer_connections_no_preface_total 2") {
        wait();
    }
    setup.client().await.noop(NoopRequest::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_above_the_cap_are_closed_and_places_are_released() {
    let setup = start_with(|config| config["max_connections"] = json!(2));
    let first = setup.client().await;
    let mut second = setup.client().await;
    second.noop(NoopRequest::default()).await.unwrap();
    let address = setup.server.addresses().grpc[0].clone();
    let third = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest
    });
    assert!(third.await.unwrap().is_empty(), "the connection must be closed without a reply");
    assert!(setup.metrics().await.contains("scorer_connections_refused_total 1"));
    drop(first);
    let endpoint = Endpoint::from_shared(format!("http://{}", setup.server.addresses().grpc[0])).unwrap();
    let mut third = Client::new(endpoint.connect_lazy());
    let wait = patience("the third connection is accepted");
    while third.noop(NoopRequest::default()).await.is_err() {
        wait();
        tokio::task::yield_now().await;
    }
    second.noop(NoopRequest::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_above_the_cap_are_refused_before_they_are_read() {
    let setup = start_with(|config| config["max_inflight"] = json!(1));
    let mut client = setup.client().await;
    let barrier = Arc::new(Barrier::new(2));
    setup.server.inject("slow", Fault::Meet(Arc::clone(&barrier)));
    let meet = |barrier: &Arc<Barrier>| {
        let barrier = Arc::clone(barrier);
        tokio::task::spawn_blocking(move || barrier.wait())
    };
    let mut other = client.clone();
    let slow = tokio::spawn(async move { other.score(score("slow", 1.0)).await });
    meet(&barrier).await.unwrap();
    let status = client.score(score("s", 1.0)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("1 requests are in flight, the limit"), "{}", status.message());
    assert_eq!(setup.server.status().inflight, 1);
    meet(&barrier).await.unwrap();
    slow.await.unwrap().unwrap();
    // The place is free when the reply has been sent, which the client may detect slightly earlier.
    eventually("no request is in flight", || setup.server.status().inflight == 0).await;
    client.score(score("t", 1.0)).await.unwrap();
}

/// Fault case 6.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_releases_its_place() {
    let setup = start();
    let client = setup.client().await;
    for number in 0..200 {
        let mut client = client.clone();
        let id = format!("c{number}");
        let request = tokio::spawn(async move { client.select_action(select(&id, 1.0)).await });
        if number % 2 == 0 {
            tokio::task::yield_now().await;
        }
        request.abort();
        let _ = request.await;
    }
    let mut client = client;
    client.noop(NoopRequest::default()).await.unwrap();
    eventually("no request is in flight", || setup.server.status().inflight == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_serves_like_tcp_and_is_removed_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scorer.sock");
    let setup = start_with(|config| {
        config["listen"] = serde_json::Value::Null;
        config["uds"] = json!(path);
    });
    assert_eq!(setup.server.addresses().grpc, [format!("unix:{}", path.display())]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut client = Client::new(unix_channel(&path).await);
    client.score(score("s", 1.0)).await.unwrap();
    let mut second = config(directory.path());
    second["uds"] = json!(path);
    let error = Server::start(ServerConfig::from_json(&second.to_string()).unwrap()).unwrap_err();
    assert!(matches!(error, ServerError::Bind(BindError::SocketInUse { .. })), "{error}");
    client.score(score("t", 1.0)).await.expect("the first server must not be affected");
    setup.server.drain(Duration::from_secs(5));
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_is_named_at_the_start() {
    let setup = start();
    let start = |change: &dyn Fn(&mut serde_json::Value)| {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        change(&mut config);
        Server::start(ServerConfig::from_json(&config.to_string()).unwrap()).unwrap_err().to_string()
    };
    let taken = setup.server.addresses().grpc[0].clone();
    let error = start(&|config| config["listen"] = json!(taken));
    assert!(error.contains(&format!("listen {taken}")) && error.contains("stop the process"), "{error}");
    let taken = setup.server.addresses().metrics.clone().unwrap();
    let error = start(&|config| config["metrics_listen"] = json!(taken));
    assert!(error.contains(&format!("metrics_listen {taken}")), "{error}");
    let log = setup.directory.path().join("log");
    let error = start(&|config| config["log"] = json!({"dir": log}));
    assert!(error.contains(&log.display().to_string()) && error.contains("another process"), "{error}");
    let error = start(&|config| config["listen"] = json!("no-port"));
    assert!(error.contains("listen no-port"), "{error}");
    for error in [
        start(&|config| config["listen"] = json!("192.0.2.1:0")),
        start(&|config| config["uds"] = json!("/nonexistent/s")),
    ] {
        assert!(!error.contains('\n') && error.contains("; "), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_resets_affects_no_other_client() {
    let setup = start();
    let address = setup.server.addresses().grpc[0].clone();
    let flood = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(&address).unwrap();
        let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        for number in 0..20_000_u32 {
            let id = (2 * number + 1).to_be_bytes();
            // HEADERS, complete: POST http://a/ ...
            frames.extend_from_slice(&[0, 0, 6, 1, 5, id[0], id[1], id[2], id[3]]);
            frames.extend_from_slice(&[0x83, 0x86, 0x84, 0x41, 1, b'a']);
            // ... and RST_STREAM with CANCEL.
            frames.extend_from_slice(&[0, 0, 4, 3, 0, id[0], id[1], id[2], id[3], 0, 0, 0, 8]);
        }
        // The server may close the connection meanwhile.
        let _ = stream.write_all(&frames);
    });
    let mut client = setup.client().await;
    let mut number = 0;
    while !flood.is_finished() || number < 100 {
        number += 1;
        client.score(score(&format!("s{number}"), 1.0)).await.unwrap();
    }
    flood.await.unwrap();
    eventually("one connection is left", || setup.server.status().connections <= 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_time_out_together_keep_their_connection() {
    let setup = start();
    let client = setup.client().await;
    let requests: Vec<_> = (0..200)
        .map(|number| {
            let mut client = client.clone();
            tokio::spawn(async move { client.select_action(select(&format!("r{number}"), 1.0)).await })
        })
        .collect();
    requests.iter().for_each(tokio::task::JoinHandle::abort);
    for request in requests {
        let _ = request.await;
    }
    client.clone().noop(NoopRequest::default()).await.unwrap();
    assert!(setup.metrics().await.contains("scorer_connections_failed_total 0"));
}
