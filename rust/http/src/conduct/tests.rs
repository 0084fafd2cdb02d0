//! Budgets over made-up bytes.

use std::io;

use super::*;
use crate::ConnectionEnd;

/// Events that nobody reads.
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
    let settings = Settings { control_frames: rate, resets: rate, ..Settings::default() };
    let mut traffic = Traffic::new(Conduct::new(Arc::new(Ignored), 1), &settings);
    traffic.received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    traffic
}

fn exceeded(traffic: &Traffic) -> Option<Limit> {
    usize::from(traffic.conduct.over.load(Relaxed)).checked_sub(1).map(|limit| Limit::ALL[limit])
}

#[test]
fn frames_without_content_are_paid_for_by_requests() {
    let mut traffic = traffic();
    for number in 0..1000 {
        traffic.received(&frame(HEADERS, 4, 2 * number + 1, b"head"));
        for _ in 0..PAID {
            traffic.received(&frame(PING, 0, 0, &[0; 8]));
        }
    }
    assert_eq!(exceeded(&traffic), None);
    // What the last request paid for was used.
    for _ in 0..10 - PAID {
        traffic.received(&frame(PING, 0, 0, &[0; 8]));
    }
    assert_eq!(exceeded(&traffic), None);
    traffic.received(&frame(PING, 0, 0, &[0; 8]));
    assert_eq!(exceeded(&traffic), Some(Limit::ControlFrames));
}

#[test]
fn cancelled_requests_have_a_budget_of_their_own() {
    let mut traffic = traffic();
    for number in 0..11 {
        assert_eq!(exceeded(&traffic), None);
        traffic.received(&frame(HEADERS, 4, 2 * number + 1, b"head"));
        traffic.received(&frame(RST_STREAM, 0, 2 * number + 1, &8_u32.to_be_bytes()));
    }
    assert_eq!(exceeded(&traffic), Some(Limit::Resets));
}

#[test]
fn a_reply_is_owed_until_its_stream_has_ended_on_the_wire() {
    let mut traffic = traffic();
    let conduct = Arc::clone(&traffic.conduct);
    for stream in [1, 3, 5] {
        traffic.received(&frame(HEADERS, 5, stream, b"head"));
        conduct.stream_begins();
    }
    // Trailers of the request open no stream.
    traffic.received(&frame(HEADERS, 5, 1, b"trailers"));
    assert!(!conduct.owes());
    (0..3).for_each(|_| conduct.stream_ends());
    assert!(conduct.owes());
    traffic.sent(&frame(HEADERS, 4, 1, b"head"));
    traffic.sent(&frame(DATA, 0, 1, b"reply"));
    let before = conduct.taken();
    traffic.sent(&frame(HEADERS, 5, 1, b"trailers"));
    assert_ne!(conduct.taken(), before);
    traffic.received(&frame(RST_STREAM, 0, 3, &8_u32.to_be_bytes()));
    traffic.received(&frame(RST_STREAM, 0, 3, &8_u32.to_be_bytes()));
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
fn a_bucket_fills_with_time() {
    let mut bucket = Bucket::full(Rate { burst: 2, per_second: 10 });
    assert!(bucket.spend() && bucket.spend());
    bucket.refill(Duration::from_millis(100));
    assert!(bucket.spend());
    bucket.refill(Duration::from_secs(100));
    assert_eq!(bucket.left, 2.0);
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
