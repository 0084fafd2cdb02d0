//! Budgets over artificial bytes.

use std::io;

use super::*;
use crate::{ConnectionEnd, Rate};

/// Events that are not read.
#[derive(Default)]
pub(crate) struct Ignored;

impl ConnectionEvents for Ignored {
    fn accept_failed(&self, _: &io::Error, _: bool) {}

    fn limited(&self, _: Limit) {}

    fn opened(&self) {}

    fn closed(&self, _: ConnectionEnd) {}
}

const PING: u8 = 6;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn traffic() -> Traffic {
    let rate = Rate { burst: 10, per_second: 0 };
    let settings = Settings {
        control_frames: rate,
        resets: rate,
        rejected_requests: rate,
        stray_frames: rate,
        ..Settings::default()
    };
    let mut traffic = Traffic::new(Conduct::new(Arc::new(Ignored), 1), &settings);
    receive(&mut traffic, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    traffic
}

/// Processes these bytes in a separate turn, which is as long as they need.
fn receive(traffic: &mut Traffic, bytes: &[u8]) {
    let mut turn = Turn::none(&Settings { turn_work: u32::MAX, ..Settings::default() });
    turn.begin(1);
    assert_eq!(traffic.received(bytes, &mut turn), bytes.len());
}

/// A request that reaches the service.
fn request(traffic: &mut Traffic, stream: u32) {
    receive(traffic, &frame(HEADERS, 4, stream, b"head"));
    traffic.conduct.stream_begins();
}

fn exceeded(traffic: &Traffic) -> Option<Limit> {
    usize::from(traffic.conduct.over.load(Relaxed)).checked_sub(1).map(|limit| Limit::ALL[limit])
}

#[test]
fn frames_without_content_are_paid_for_by_requests() {
    let mut traffic = traffic();
    for number in 0..1000 {
        request(&mut traffic, 2 * number + 1);
        for _ in 0..PAID {
            receive(&mut traffic, &frame(PING, 0, 0, &[0; 8]));
        }
    }
    assert_eq!(exceeded(&traffic), None);
    // The allowance of the last request was used.
    for _ in 0..10 - PAID {
        receive(&mut traffic, &frame(PING, 0, 0, &[0; 8]));
    }
    assert_eq!(exceeded(&traffic), None);
    receive(&mut traffic, &frame(PING, 0, 0, &[0; 8]));
    assert_eq!(exceeded(&traffic), Some(Limit::ControlFrames));
}

#[test]
fn cancelled_requests_have_a_budget_of_their_own() {
    let mut traffic = traffic();
    for number in 0..11 {
        assert_eq!(exceeded(&traffic), None);
        request(&mut traffic, 2 * number + 1);
        receive(&mut traffic, &frame(RST_STREAM, 0, 2 * number + 1, &8_u32.to_be_bytes()));
    }
    assert_eq!(exceeded(&traffic), Some(Limit::Resets));
}

#[test]
fn replies_pay_for_cancelled_requests() {
    let mut traffic = traffic();
    for number in 0..100 {
        for stream in [4 * number + 1, 4 * number + 3] {
            request(&mut traffic, stream);
        }
        traffic.sent(&frame(HEADERS, 5, 4 * number + 1, b"trailers"));
        receive(&mut traffic, &frame(RST_STREAM, 0, 4 * number + 3, &8_u32.to_be_bytes()));
    }
    assert_eq!(exceeded(&traffic), None);
}

#[test]
fn requests_that_never_reach_the_service_have_a_budget() {
    let mut traffic = traffic();
    for number in 0..1000 {
        request(&mut traffic, 2 * number + 1);
    }
    // Requests above the number of streams are not a violation.
    for number in 1000..1100 {
        receive(&mut traffic, &frame(HEADERS, 5, 2 * number + 1, b"head"));
        traffic.sent(&frame(RST_STREAM, 0, 2 * number + 1, &7_u32.to_be_bytes()));
    }
    assert_eq!(exceeded(&traffic), None);
    for number in 1100..1111 {
        receive(&mut traffic, &frame(HEADERS, 5, 2 * number + 1, b"too large"));
    }
    assert_eq!(exceeded(&traffic), Some(Limit::RejectedRequests));
}

#[test]
fn frames_for_streams_that_are_not_open_have_a_budget() {
    let mut traffic = traffic();
    for number in 0..100 {
        request(&mut traffic, 2 * number + 1);
        traffic.sent(&frame(HEADERS, 5, 2 * number + 1, b"rejected"));
        // Frames in flight: large parts, and a small one.
        receive(&mut traffic, &frame(DATA, 0, 2 * number + 1, &[0; 16 << 10]));
        receive(&mut traffic, &frame(DATA, 1, 2 * number + 1, &[0; 10]));
    }
    assert_eq!(exceeded(&traffic), None);
    for _ in 0..11 {
        receive(&mut traffic, &frame(DATA, 0, 1, &[0; 10]));
    }
    assert_eq!(exceeded(&traffic), Some(Limit::StrayFrames));
}

#[test]
fn what_comes_after_goaway_is_no_misuse() {
    let mut traffic = traffic();
    traffic.conduct.leave();
    for number in 0..100 {
        receive(&mut traffic, &frame(HEADERS, 5, 2 * number + 1, b"late"));
        receive(&mut traffic, &frame(DATA, 1, 1000 + number, &[0; 10]));
    }
    assert_eq!(exceeded(&traffic), None);
}

#[test]
fn empty_data_carries_nothing() {
    let mut traffic = traffic();
    request(&mut traffic, 1);
    for _ in 0..11 {
        receive(&mut traffic, &frame(DATA, 0, 1, &[]));
    }
    assert_eq!(exceeded(&traffic), Some(Limit::ControlFrames));
}

#[test]
fn a_reply_is_owed_until_its_stream_has_ended_on_the_wire() {
    let mut traffic = traffic();
    let conduct = Arc::clone(&traffic.conduct);
    for stream in [1, 3, 5] {
        receive(&mut traffic, &frame(HEADERS, 5, stream, b"head"));
        conduct.stream_begins();
    }
    // Trailers of the request open no stream.
    receive(&mut traffic, &frame(HEADERS, 5, 1, b"trailers"));
    assert!(!conduct.owes());
    (0..3).for_each(|_| conduct.stream_ends());
    assert!(conduct.owes());
    traffic.sent(&frame(HEADERS, 4, 1, b"head"));
    traffic.sent(&frame(DATA, 0, 1, b"reply"));
    let before = conduct.taken();
    traffic.sent(&frame(HEADERS, 5, 1, b"trailers"));
    assert_ne!(conduct.taken(), before);
    receive(&mut traffic, &frame(RST_STREAM, 0, 3, &8_u32.to_be_bytes()));
    receive(&mut traffic, &frame(RST_STREAM, 0, 3, &8_u32.to_be_bytes()));
    assert!(conduct.owes());
    traffic.sent(&frame(RST_STREAM, 0, 5, &8_u32.to_be_bytes()));
    assert!(!conduct.owes());
    traffic.set_blocked(true);
    assert!(conduct.owes());
    assert_eq!(conduct.strays(), 0, "no error of the peer");
    traffic.sent(&frame(RST_STREAM, 0, 7, &5_u32.to_be_bytes()));
    assert_eq!(conduct.strays(), 1);
}

#[test]
fn requests_that_do_not_finish_end_the_connection() {
    let conduct = Conduct::new(Arc::new(Ignored), 2);
    conduct.unfinished();
    assert_eq!(conduct.over.load(Relaxed), 0);
    conduct.unfinished();
    assert_eq!(conduct.over.load(Relaxed), Limit::Unfinished as u8 + 1);
    conduct.exceed(Limit::Write);
    assert_eq!(conduct.over.load(Relaxed), Limit::Unfinished as u8 + 1, "the first limit counts");
}
