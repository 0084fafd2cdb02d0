//! Streams that are opened and not finished, and frames without a stream.

use std::time::Duration;

use serde_json::json;

use crate::frames::{
    Attack, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, NOOP, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, another, frame, parse, request,
};
use crate::honest::{Honest, alone, hits, resident};
use crate::support::{Setup, eventually, start, start_with};

/// `SETTINGS_INITIAL_WINDOW_SIZE`.
const WINDOW: u16 = 4;
const MIB: usize = 1 << 20;

/// Sets short limits, so that tests do not wait long.
fn impatient() -> Setup {
    start_with(|config| {
        config["body_timeout_ms"] = json!(300);
        config["reply_timeout_ms"] = json!(300);
        config["write_timeout_ms"] = json!(1000);
    })
}

/// Runs a blocking attack while honest clients call.
async fn beside_honest<T: Send + 'static>(setup: &Setup, attack: impl FnOnce() -> T + Send + 'static) -> T {
    let honest = Honest::start(setup).await;
    let done = tokio::task::spawn_blocking(attack).await.unwrap();
    honest.all_succeeded().await;
    done
}

/// Returns 256 calls of Noop with a payload of five bytes.
fn calls(more: &[(&str, &str)], body: bool) -> Vec<u8> {
    let block = request(NOOP, more);
    let mut bytes = Vec::new();
    for number in 0..256 {
        frame(&mut bytes, HEADERS, END_HEADERS, 1 + 2 * number, &block);
        if body {
            let message = [0, 0, 0, 0, 7, 10, 5, 1, 2, 3, 4, 5];
            frame(&mut bytes, DATA, END_STREAM, 1 + 2 * number, &message);
        }
    }
    bytes
}

/// Replies that are never read do not occupy a place for long.
///
/// Fault case 13.
#[tokio::test(flavor = "multi_thread")]
async fn replies_that_are_not_read_are_reset() {
    let _alone = alone().await;
    for window in [0, 1] {
        let setup = impatient();
        let attacker = another();
        let mut attacks: Vec<_> =
            (0..8).map(|_| Attack::connect(&setup, Some(attacker), &[(WINDOW, window)])).collect();
        beside_honest(&setup, move || {
            for attack in &mut attacks {
                attack.send(&calls(&[], true));
            }
            attacks.iter_mut().for_each(|attack| _ = attack.read_to_end());
        })
        .await;
        eventually("no request is in flight", || setup.server.status().inflight == 0).await;
        // Without a window the stream waits. With a window of one byte, HTTP/2 has accepted the reply.
        let limit = if window == 0 { "reply_timeout" } else { "write_timeout" };
        assert!(hits(&setup, limit).await > 0, "{limit}");
    }
}

/// Messages that never arrive do not occupy a place for long, with any deadline of their caller.
///
/// Fault case 4.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_do_not_arrive_time_out() {
    let _alone = alone().await;
    for timeout in ["9999H", "99999999H"] {
        let setup = impatient();
        let attacker = another();
        let mut attacks: Vec<_> = (0..8).map(|_| Attack::connect(&setup, Some(attacker), &[])).collect();
        beside_honest(&setup, move || {
            for attack in &mut attacks {
                attack.send(&calls(&[("grpc-timeout", timeout)], false));
            }
            attacks.iter_mut().for_each(|attack| _ = attack.read_to_end());
        })
        .await;
        eventually("no request is in flight", || setup.server.status().inflight == 0).await;
        assert!(hits(&setup, "body_timeout").await > 0 && hits(&setup, "unfinished_requests").await > 0);
    }
}

/// Frames for closed streams, from a peer that does not read.
///
/// Fault cases 38, 40.
#[tokio::test(flavor = "multi_thread")]
async fn stray_frames_end_the_connection() {
    let _alone = alone().await;
    let setup = impatient();
    let mut attack = Attack::connect(&setup, None, &[]);
    let honest = Honest::start(&setup).await;
    let before = resident();
    let grown = tokio::task::spawn_blocking(move || {
        let mut first = Vec::new();
        // This stream closes all lower ones.
        frame(&mut first, HEADERS, END_HEADERS | END_STREAM, 2_100_001, &request(NOOP, &[]));
        attack.send(&first);
        let mut most = 0;
        for start in 0..1024_u32 {
            let mut flood = Vec::with_capacity(9 * 1024);
            for number in 0..1024 {
                frame(&mut flood, DATA, 0, 1 + 2 * (start * 1024 + number), &[]);
            }
            if !attack.send(&flood) {
                break;
            }
            most = most.max(resident().saturating_sub(before));
        }
        attack.wait_until_ended();
        most.max(resident().saturating_sub(before))
    })
    .await
    .unwrap();
    honest.all_succeeded().await;
    assert!(grown <= 16 * MIB, "{grown} bytes");
    assert!(hits(&setup, "stray_frames").await > 0);
}

/// Sends up to `pairs` requests, each followed by a frame that ends it, until the server ends the connection. Asserts
/// that memory stays and that no request is left.
async fn flood_of_pairs(setup: &Setup, pairs: u32, kind: u8, payload: [u8; 4]) {
    let mut attack = Attack::connect(setup, None, &[]);
    let before = resident();
    beside_honest(setup, move || {
        let block = request(NOOP, &[]);
        for start in 0..pairs / 100 {
            let mut flood = Vec::new();
            for number in 0..100 {
                let stream = 1 + 2 * (start * 100 + number);
                frame(&mut flood, HEADERS, END_HEADERS, stream, &block);
                frame(&mut flood, kind, 0, stream, &payload);
            }
            if !attack.send(&flood) {
                break;
            }
        }
        attack.read_to_end();
    })
    .await;
    assert!(resident().saturating_sub(before) <= 16 * MIB);
    eventually("no request is in flight", || setup.server.status().inflight == 0).await;
}

/// Requests that the server must reset, because a window update of zero is an error of the stream.
///
/// Fault case 38.
#[tokio::test(flavor = "multi_thread")]
async fn forced_resets_end_the_connection() {
    let _alone = alone().await;
    let setup = impatient();
    flood_of_pairs(&setup, 20_000, WINDOW_UPDATE, [0; 4]).await;
}

/// Requests that are cancelled immediately.
///
/// Fault case 37.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_end_the_connection() {
    let _alone = alone().await;
    let setup = impatient();
    flood_of_pairs(&setup, 200_000, RST_STREAM, 8_u32.to_be_bytes()).await;
    assert!(hits(&setup, "resets").await > 0);
}

/// Frames without content, while the attacker reads and while it does not.
///
/// Fault case 40.
#[tokio::test(flavor = "multi_thread")]
async fn floods_of_control_frames_end_the_connection() {
    let _alone = alone().await;
    let setup = impatient();
    let mut open = Vec::new();
    frame(&mut open, HEADERS, END_HEADERS, 1, &request(NOOP, &[]));
    let one = |kind, flags, stream, payload: &[u8]| {
        let mut bytes = Vec::new();
        frame(&mut bytes, kind, flags, stream, payload);
        bytes
    };
    for (what, flood) in [
        ("PING", one(PING, 0, 0, &[0; 8])),
        ("SETTINGS", one(SETTINGS, 0, 0, &[])),
        ("WINDOW_UPDATE", one(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes())),
        ("PRIORITY", one(2, 0, 5, &[0, 0, 0, 0, 1])),
        ("unknown", one(0xbe, 0, 0, &[0; 10])),
        ("empty DATA", one(DATA, 0, 1, &[])),
        ("DATA of one byte", one(DATA, 0, 1, &[0])),
    ] {
        for reads in [true, false] {
            let mut attack = Attack::connect(&setup, None, &[]);
            let (open, flood) = (open.clone(), flood.repeat(1000));
            let before = resident();
            beside_honest(&setup, move || {
                attack.send(&open);
                let reader = reads.then(|| {
                    let mut reader = Attack { stream: attack.stream.try_clone().unwrap() };
                    std::thread::spawn(move || reader.read_to_end())
                });
                for _ in 0..1000 {
                    if !attack.send(&flood) {
                        break;
                    }
                }
                attack.wait_until_ended();
                reader.map(std::thread::JoinHandle::join)
            })
            .await;
            let grown = resident().saturating_sub(before);
            assert!(grown <= 16 * MIB, "{what}: {grown} bytes");
        }
    }
    assert!(hits(&setup, "control_frames").await > 0);
}

/// A header block that never ends, one that grows when it is decoded, and one that is too long.
///
/// Fault cases 34, 39.
#[tokio::test(flavor = "multi_thread")]
async fn malicious_header_blocks_are_refused() {
    let _alone = alone().await;
    let setup = impatient();
    let before = resident();
    // CONTINUATION without an end.
    let mut attack = Attack::connect(&setup, None, &[]);
    beside_honest(&setup, move || {
        let mut flood = Vec::new();
        frame(&mut flood, HEADERS, 0, 1, &request(NOOP, &[]));
        let literal = [&[0, 1, b'x', 100][..], &[b'y'; 100]].concat();
        for _ in 0..10_000 {
            frame(&mut flood, CONTINUATION, 0, 1, &literal);
        }
        attack.send(&flood);
        attack.read_to_end();
    })
    .await;
    // One entry of the dynamic table is repeated. With many repetitions HTTP/2 closes the connection at once,
    // and with fewer ones each request gets the error that its fields are too large.
    for times in [8000, 6] {
        let mut attack = Attack::connect(&setup, None, &[]);
        beside_honest(&setup, move || {
            let mut entry = request(NOOP, &[]);
            entry.extend_from_slice(&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
            entry.extend_from_slice(&[b'y'; 4000]);
            let mut flood = Vec::new();
            frame(&mut flood, HEADERS, END_HEADERS | END_STREAM, 1, &entry);
            for number in 1..200 {
                let mut block = request(NOOP, &[]);
                block.extend_from_slice(&vec![0xbe; times]);
                frame(&mut flood, HEADERS, END_HEADERS | END_STREAM, 1 + 2 * number, &block);
            }
            attack.send(&flood);
            attack.read_to_end();
        })
        .await;
    }
    assert!(hits(&setup, "http2").await > 0 && hits(&setup, "rejected_requests").await > 0);
    // A thousand fields.
    let mut attack = Attack::connect(&setup, None, &[]);
    let is_rejection = |bytes: &[u8]| {
        parse(bytes).iter().any(|(kind, _, stream, _)| matches!(*kind, HEADERS | RST_STREAM) && *stream == 1)
    };
    let answer = beside_honest(&setup, move || {
        let mut block = request(NOOP, &[]);
        for number in 0..1000 {
            let name = format!("field-{number:04}");
            block.extend_from_slice(&[0, name.len() as u8]);
            block.extend_from_slice(name.as_bytes());
            block.extend_from_slice(&[1, b'v']);
        }
        let mut bytes = Vec::new();
        let (first, rest) = block.split_at(8_000);
        frame(&mut bytes, HEADERS, END_STREAM, 1, first);
        frame(&mut bytes, CONTINUATION, END_HEADERS, 1, rest);
        attack.send(&bytes);
        attack.read_until(is_rejection)
    })
    .await;
    assert!(is_rejection(&answer), "{:?}", parse(&answer));
    let grown = resident().saturating_sub(before);
    assert!(grown <= 16 * MIB, "{grown} bytes");
}

/// More streams than the limit allows.
///
/// Fault case 41.
#[tokio::test(flavor = "multi_thread")]
async fn streams_above_the_limit_are_refused() {
    let _alone = alone().await;
    let setup = start();
    let mut attack = Attack::connect(&setup, None, &[]);
    let frames = beside_honest(&setup, move || {
        let block = request(NOOP, &[]);
        let mut bytes = Vec::new();
        for number in 0..300 {
            frame(&mut bytes, HEADERS, END_HEADERS, 1 + 2 * number, &block);
        }
        attack.send(&bytes);
        std::thread::sleep(Duration::from_millis(300));
        // The server may have closed the connection already.
        _ = attack.stream.shutdown(std::net::Shutdown::Write);
        parse(&attack.read_to_end())
    })
    .await;
    let refused: Vec<_> = frames
        .iter()
        .filter(|(kind, _, stream, code)| {
            *kind == RST_STREAM && *stream > 511 && code == &7_u32.to_be_bytes()
        })
        .collect();
    assert_eq!(refused.len(), 44, "{frames:?}");
}
