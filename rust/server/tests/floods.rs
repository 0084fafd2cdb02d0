//! Clients that send and reset requests faster than they can be answered.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::*;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;

fn frame(to: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    to.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

/// Headers of a POST to Noop, as literals that do not use the dynamic table.
fn headers() -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (name, value) in [
        (":path", "/scorer.v1.ScoringService/Noop"),
        (":authority", "scorer"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// Reads frames until the response to a PING or GOAWAY; returns true for the response.
fn answers_ping(stream: &mut TcpStream) -> bool {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).unwrap();
        match head[3] {
            PING if head[4] == 1 => return true,
            GOAWAY => return false,
            _ => {}
        }
    }
}

/// Opens a connection and completes its handshake.
fn connect(setup: &Setup) -> TcpStream {
    let mut stream = TcpStream::connect(&setup.server.addresses().grpc[0]).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut hello, SETTINGS, 0, 0, &[]);
    frame(&mut hello, PING, 0, 0, &[1; 8]);
    stream.write_all(&hello).unwrap();
    assert!(answers_ping(&mut stream));
    stream
}

/// Requests that were cancelled while they waited in the client are sent together: HEADERS and RST_STREAM.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_cancels_thousands_of_requests_at_once_keeps_its_connection() {
    let setup = start();
    let mut stream = connect(&setup);
    let block = headers();
    let mut flood = Vec::new();
    for number in 0..20_000_u32 {
        frame(&mut flood, HEADERS, 4, 1 + 2 * number, &block);
        frame(&mut flood, RST_STREAM, 0, 1 + 2 * number, &8_u32.to_be_bytes());
    }
    frame(&mut flood, PING, 0, 0, &[2; 8]);
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || writer.write_all(&flood));
    assert!(answers_ping(&mut stream), "the server sent GOAWAY");
    writing.join().unwrap().unwrap();
    let mut client = setup.client().await;
    client.noop(scorer_proto::v1::NoopRequest::default()).await.unwrap();
    // The requests that were cancelled last may still be in progress.
    eventually("no request is in flight", || setup.server.status().inflight == 0).await;
}

/// Data that a client still sends for answered requests fails no call, because its connection is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_arrive_after_their_answer_fail_no_call() {
    let setup = start();
    let mut block = headers();
    // A request with an expired deadline is answered before its body is read.
    block.extend_from_slice(b"\x00\x0cgrpc-timeout\x020n");
    let mut sent = 0;
    for _ in 0..4 {
        let mut stream = connect(&setup);
        let mut ended = false;
        let mut number = 0;
        while !ended && sent < 8000 {
            let mut flood = Vec::new();
            for next in number..number + 50 {
                frame(&mut flood, HEADERS, 4, 1 + 2 * next, &block);
            }
            frame(&mut flood, PING, 0, 0, &[3; 8]);
            stream.write_all(&flood).unwrap();
            ended = !answers_ping(&mut stream);
            flood.clear();
            for late in number..number + 50 {
                frame(&mut flood, DATA, 1, 1 + 2 * late, &[0, 0, 0, 0, 0]);
            }
            stream.write_all(&flood).unwrap();
            number += 50;
            sent += 50;
        }
    }
    let metrics = setup.metrics().await;
    assert!(
        metrics.contains("scorer_limit_hits_total{limit=\"http2\"} 0"),
        "an error ended a connection: {metrics}"
    );
    setup.client().await.noop(scorer_proto::v1::NoopRequest::default()).await.unwrap();
}
