//! Messages that need more memory than their size, and unknown fields.

use http_body_util::Full;
use hyper::body::Bytes;
use prost::Message as _;
use scorer_proto::v1::{NoopRequest, ScoreResponse};
use scorer_server::{Server, ServerConfig};
use serde_json::json;
use tonic::Code;

use crate::frames::{Attack, DATA, END_HEADERS, HEADERS, NOOP, another, frame, request};
use crate::honest::{Honest, alone, hits, resident};
use crate::support::{FRAUD, Setup, config, eventually, patience, raw, score, start, start_with};

fn call(path: &str, message: &[u8]) -> http::Request<Full<Bytes>> {
    let mut body = vec![0];
    body.extend_from_slice(&(message.len() as u32).to_be_bytes());
    body.extend_from_slice(message);
    http::Request::post(format!("http://scorer{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::from(body))
        .unwrap()
}

/// Two bytes on the wire are decoded to a struct of about a hundred bytes.
///
/// Fault case 28.
#[tokio::test(flavor = "multi_thread")]
async fn decode_bombs_are_refused() {
    let _alone = alone().await;
    let live = start();
    let pool = {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        config["role"] = json!("shadow");
        let server = Server::start(ServerConfig::from_json(&config.to_string()).unwrap()).unwrap();
        Setup { server, directory, fraud: String::new(), action: String::new() }
    };
    let honest = Honest::start(&live).await;
    let infer = "/inference.GRPCInferenceService/ModelInfer";
    let observe = "/scorer.v1.ShadowService/Observe";
    let named = {
        let features = [0x0a, 0].repeat(120_000);
        let mut message = vec![0x1a];
        prost::encoding::encode_varint(features.len() as u64, &mut message);
        message.extend_from_slice(&features);
        message
    };
    for (setup, path, message) in [
        (&live, infer, [0x2a, 0].repeat(524_000)),
        (&live, infer, [0x32, 0].repeat(524_000)),
        (&live, infer, [0x3a, 0].repeat(524_000)),
        (&live, "/scorer.v1.ScoringService/Score", named.clone()),
        (&live, "/scorer.v1.ScoringService/SelectAction", named),
        (&pool, observe, [0x1a, 0].repeat(1 << 20)),
        (&pool, observe, [0x12, 0].repeat(1 << 20)),
    ] {
        let address = &setup.server.addresses().grpc[0];
        let request = call(path, &message);
        let before = resident();
        let (_, code, text) = raw(address, request).await;
        assert_eq!(code, Some(Code::ResourceExhausted as i32), "{path}: {text}");
        let grown = resident().saturating_sub(before + message.len());
        assert!(grown <= 8 << 20, "{path}: {grown} bytes");
    }
    let address = &live.server.addresses().grpc[0];
    let message = [0x2a, 0].repeat(524_000);
    let (_, code, text) =
        raw(address, call("/inference.GRPCInferenceService/ModelStreamInfer", &message)).await;
    assert_eq!(code, Some(Code::ResourceExhausted as i32), "{text}");
    honest.all_succeeded().await;
    assert_eq!(hits(&live, "decoded_bytes").await, 6);
    assert_eq!(hits(&pool, "decoded_bytes").await, 2);
}

/// Messages without their last byte, on as many streams as possible.
///
/// Fault case 88.
#[tokio::test(flavor = "multi_thread")]
async fn messages_in_flight_have_a_limit_of_bytes() {
    let _alone = alone().await;
    let setup = start_with(|config| {
        config["max_inflight_bytes"] = json!(8 << 20);
        config["max_inflight_bytes_per_peer"] = json!(4 << 20);
        config["body_timeout_ms"] = json!(5000);
    });
    let honest = Honest::start(&setup).await;
    for path in [NOOP, "/inference.GRPCInferenceService/ModelStreamInfer"] {
        let (attacker, before) = (another(), resident());
        let mut attacks: Vec<_> = (0..16).map(|_| Attack::connect(&setup, Some(attacker), &[])).collect();
        let attacks = tokio::task::spawn_blocking(move || {
            for attack in &mut attacks {
                for stream in (1..32).step_by(2) {
                    let mut bytes = Vec::new();
                    frame(&mut bytes, HEADERS, END_HEADERS, stream, &request(path, &[]));
                    let message = [&[0, 0, 4, 0, 0][..], &[0; 250_000]].concat();
                    for part in message.chunks(16 << 10) {
                        frame(&mut bytes, DATA, 0, stream, part);
                    }
                    attack.send(&bytes);
                }
            }
            attacks
        })
        .await
        .unwrap();
        let wait = patience("the limit acts");
        while hits(&setup, "max_inflight_bytes_per_peer").await == 0 {
            wait();
        }
        let grown = resident().saturating_sub(before);
        assert!(grown <= 24 << 20, "{path}: {grown} bytes");
        // There is still room for messages of another peer.
        let payload = vec![7; 200_000];
        setup.client().await.noop(NoopRequest { payload }).await.unwrap();
        drop(attacks);
        eventually("no request is in flight", || setup.server.status().inflight == 0).await;
    }
    honest.all_succeeded().await;
    assert_eq!(hits(&setup, "max_inflight_bytes").await, 0);
}

/// Nesting that is deeper than that of any message.
///
/// Fault case 27.
#[tokio::test(flavor = "multi_thread")]
async fn deep_nesting_is_refused() {
    let setup = start();
    let address = &setup.server.addresses().grpc[0];
    // Groups of an unknown field, once never closed and once closed.
    for message in
        [[0xa3, 0x06].repeat(50_000), [[0xa3, 0x06].repeat(50_000), [0xa4, 0x06].repeat(50_000)].concat()]
    {
        let (_, code, text) = raw(address, call("/scorer.v1.ScoringService/Score", &message)).await;
        assert_eq!(code, Some(Code::Internal as i32), "{text}");
    }
    setup.client().await.score(score("after", 1.0)).await.unwrap();
}

/// A newer client sends fields that this server does not know, and an older one omits fields.
///
/// Fault case 32.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_are_ignored_and_missing_ones_are_refused() {
    let setup = start();
    let mut client = setup.client().await;
    let known: ScoreResponse = client.score(score("known", 1.0)).await.unwrap().into_inner();
    let address = &setup.server.addresses().grpc[0];
    let mut message = score("unknown", 1.0).encode_to_vec();
    // Field 1000 as varint, 64 bits, bytes and 32 bits.
    message.extend_from_slice(&[0xc0, 0x3e, 1]);
    message.extend_from_slice(&[0xc1, 0x3e, 1, 2, 3, 4, 5, 6, 7, 8]);
    message.extend_from_slice(&[0xc2, 0x3e, 3, b'a', b'b', b'c']);
    message.extend_from_slice(&[0xc5, 0x3e, 1, 2, 3, 4]);
    let (_, code, text) = raw(address, call("/scorer.v1.ScoringService/Score", &message)).await;
    assert_eq!(code, Some(0), "{text}");
    let again = client.score(score("unknown", 1.0)).await.unwrap().into_inner();
    assert_eq!(again.score.to_bits(), known.score.to_bits(), "unknown fields must change nothing");
    // Missing fields are checked as values: no checkpoint, and no features.
    let (_, code, _) = raw(address, call("/scorer.v1.ScoringService/Score", &[])).await;
    assert_eq!(code, Some(Code::NotFound as i32));
    let mut without = vec![0x0a, FRAUD.len() as u8];
    without.extend_from_slice(FRAUD.as_bytes());
    let (_, code, _) = raw(address, call("/scorer.v1.ScoringService/Score", &without)).await;
    assert_eq!(code, Some(Code::InvalidArgument as i32));
}
