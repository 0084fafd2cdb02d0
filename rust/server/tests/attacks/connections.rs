//! Connections that are too many, idle, silent, or that never read.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::time::Duration;

use scorer_proto::v1::NoopRequest;
use serde_json::json;

use crate::frames::{
    Attack, DATA, ELSEWHERE, END_HEADERS, END_STREAM, HEADERS, NOOP, PING, WINDOW_UPDATE, another, frame,
    parse, request, tcp,
};
use crate::honest::{Honest, alone, hits, resident};
use crate::support::{Client, eventually, get, patience, start_with};

/// A peer that sends requests and reads none of their replies is disconnected after `write_timeout_ms`.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_stops_reading_is_disconnected() {
    let _alone = alone().await;
    let setup = start_with(|config| config["write_timeout_ms"] = json!(1000));
    let mut attack = Attack::connect(&setup, None, &[(4, i32::MAX as u32)]);
    let honest = Honest::start(&setup).await;
    let before = resident();
    let grown = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        frame(&mut bytes, WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes());
        attack.send(&bytes);
        // Noop returns its payload.
        let payload = [&[0, 0, 0, 0x27, 0x13, 0x0a, 0x90, 0x4e][..], &[7; 10_000]].concat();
        for number in 0..2000 {
            let mut bytes = Vec::new();
            frame(&mut bytes, HEADERS, END_HEADERS, 1 + 2 * number, &request(NOOP, &[]));
            frame(&mut bytes, DATA, END_STREAM, 1 + 2 * number, &payload);
            if !attack.send(&bytes) {
                break;
            }
        }
        attack.wait_until_ended();
        resident().saturating_sub(before)
    })
    .await
    .unwrap();
    honest.all_succeeded().await;
    assert!(grown <= 16 << 20, "{grown} bytes");
    assert!(hits(&setup, "write_timeout").await > 0);
}

/// One peer cannot use up all connections, and probes are answered while it tries.
///
/// Fault case 42.
#[tokio::test(flavor = "multi_thread")]
async fn one_peer_gets_only_its_share_of_connections() {
    let _alone = alone().await;
    let setup = start_with(|config| config["max_connections_per_peer"] = json!(64));
    let honest = Honest::start(&setup).await;
    let address = setup.server.addresses().grpc[0].clone();
    let (metrics, before) = (setup.server.addresses().metrics.clone().unwrap(), resident());
    let held = tokio::task::spawn_blocking(move || {
        // One after the other, so that the number of open files of the test stays small.
        let mut held = Vec::new();
        for round in 0..40 {
            held.truncate(200);
            for _ in 0..250 {
                let mut stream = tcp(&address, Some(ELSEWHERE));
                match round % 3 {
                    // No bytes, half of a TLS hello, half of a preface.
                    0 => {}
                    1 => _ = stream.write_all(b"\x16\x03\x01\x02\x00\x01\x00"),
                    _ => _ = stream.write_all(b"PRI * HTTP/2.0\r\n"),
                }
                held.push(stream);
            }
        }
        held
    })
    .await
    .unwrap();
    assert_eq!(get(&metrics, "/live").await.0, 200);
    assert!(setup.server.status().connections <= 64 + 5);
    setup.client().await.noop(NoopRequest::default()).await.unwrap();
    honest.all_succeeded().await;
    assert!(resident().saturating_sub(before) <= 16 << 20);
    assert!(hits(&setup, "max_connections_per_peer").await > 0);
    // Connections that do not start HTTP/2 are closed after two seconds.
    eventually("silent connections are closed", || setup.server.status().connections <= 5).await;
    assert!(hits(&setup, "preface_timeout").await > 0);
    drop(held);
}

/// Returns whether the server serves a new connection from this address, that is, sends its SETTINGS.
fn is_served(address: &str, from: IpAddr) -> bool {
    let mut stream = tcp(address, Some(from));
    let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.read_exact(&mut [0; 9]).is_ok()
}

/// A peer that opens connections faster than allowed is refused at accept. Another peer is not.
///
/// Fault case 42.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_opened_repeatedly_are_refused() {
    let _alone = alone().await;
    let setup = start_with(|config| {
        config["max_connections_per_peer"] = json!(50);
        config["connections_per_second_per_peer"] = json!(1);
        config["trusted_networks"] = json!(["127.9.0.0/16"]);
    });
    let honest = Honest::start(&setup).await;
    let address = setup.server.addresses().grpc[0].clone();
    let before = resident();
    let (served, elsewhere, trusted) = tokio::task::spawn_blocking(move || {
        let attacker = another();
        let served = (0..2000).filter(|_| is_served(&address, attacker)).count();
        let balancer = "127.9.0.1".parse().unwrap();
        let trusted = (0..200).filter(|_| is_served(&address, balancer)).count();
        (served, is_served(&address, another()), trusted)
    })
    .await
    .unwrap();
    assert!((50..500).contains(&served), "{served} of 2000");
    assert!(elsewhere);
    assert_eq!(trusted, 200);
    honest.all_succeeded().await;
    assert!(resident().saturating_sub(before) <= 16 << 20);
    assert!(hits(&setup, "connections_per_second").await > 1000);
}

/// A peer whose connection was closed for a violation may open no other connection for a while, but keeps its
/// others.
///
/// Fault case 40.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_violates_the_protocol_has_to_wait() {
    let _alone = alone().await;
    let setup = start_with(|config| config["misuse_pause_seconds"] = json!(3600));
    let address = setup.server.addresses().grpc[0].clone();
    let attacker = another();
    let mut earlier = Attack::connect(&setup, Some(attacker), &[]);
    let mut attack = Attack::connect(&setup, Some(attacker), &[]);
    let answer = tokio::task::spawn_blocking(move || {
        let mut ping = Vec::new();
        frame(&mut ping, PING, 0, 0, &[0; 8]);
        while attack.send(&ping.repeat(1000)) {}
        attack.wait_until_ended();
        let wait = patience("the attacker is refused");
        while is_served(&address, attacker) {
            wait();
        }
        assert!(is_served(&address, another()));
        // The earlier connection is still served.
        let mut call = Vec::new();
        frame(&mut call, HEADERS, END_HEADERS, 1, &request(NOOP, &[]));
        frame(&mut call, DATA, END_STREAM, 1, &[0; 5]);
        earlier.send(&call);
        earlier.read_until(|bytes| {
            parse(bytes).iter().any(|(kind, _, stream, _)| (*kind, *stream) == (HEADERS, 1))
        })
    })
    .await
    .unwrap();
    assert!(parse(&answer).iter().any(|(kind, _, stream, _)| (*kind, *stream) == (HEADERS, 1)));
    assert!(hits(&setup, "misuse_pause").await > 0 && hits(&setup, "control_frames").await == 1);
    let events = setup.server.events();
    let event = events.iter().find(|event| event.contains("peer_paused")).unwrap();
    assert!(event.contains("control_frames") && event.contains(&attacker.to_string()), "{event}");
}

/// Unused connections are closed when the server has too many connections.
///
/// Fault case 42.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_closed_under_load() {
    let _alone = alone().await;
    let setup = start_with(|config| config["max_connections"] = json!(8));
    let idle: Vec<_> = (0..8).map(|_| Attack::connect(&setup, Some(ELSEWHERE), &[])).collect();
    eventually("all places are taken", || setup.server.status().connections == 8).await;
    let endpoint = format!("http://{}", setup.server.addresses().grpc[0]);
    let mut client = Client::new(tonic::transport::Endpoint::from_shared(endpoint).unwrap().connect_lazy());
    let wait = patience("an idle connection gives way");
    while client.noop(NoopRequest::default()).await.is_err() {
        wait();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(hits(&setup, "idle_timeout").await > 0);
    drop(idle);
}

/// Many slow scrapers affect neither the metrics for others nor answers.
///
/// Fault case 92.
#[tokio::test(flavor = "multi_thread")]
async fn scrape_storms_do_not_affect_others() {
    let _alone = alone().await;
    let setup = start_with(|_| ());
    let honest = Honest::start(&setup).await;
    let metrics = setup.server.addresses().metrics.clone().unwrap();
    let address = metrics.clone();
    let idle = tokio::task::spawn_blocking(move || {
        let mut idle = Vec::new();
        for number in 0..200 {
            let from = (number % 2 == 0).then_some(ELSEWHERE);
            let mut stream = tcp(&address, from);
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
            idle.push(stream);
        }
        idle
    })
    .await
    .unwrap();
    assert_eq!(get(&metrics, "/ready").await.0, 200);
    let (status, page) = get(&metrics, "/metrics").await;
    assert!(status == 200 && page.contains("scorer_requests_arrived"));
    let address = metrics.clone();
    tokio::task::spawn_blocking(move || {
        for _ in 0..500 {
            let mut stream = tcp(&address, Some(ELSEWHERE));
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: scorer\r\nconnection: close\r\n\r\n");
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text);
        }
    })
    .await
    .unwrap();
    assert_eq!(get(&metrics, "/live").await.0, 200);
    honest.all_succeeded().await;
    assert!(hits(&setup, "metrics_connections").await > 0);
    drop(idle);
}
