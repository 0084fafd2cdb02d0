//! Models of all state that threads share without locks. `make loom` runs them in every interleaving.

use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::Ordering::Relaxed;

use crate::breaker::{Breaker, BreakerSettings, BreakerState, Evaluation};
use crate::cost::{CostBook, CostHistory};
use crate::exposure::{Caps, ExposureCaps};
use crate::reply_cell::{Reply, ReplyCell};
use crate::ring::Ring;
use crate::sync::AtomicU8;
use crate::time::Nanos;

/// Length of a part of the rings' windows.
const PART: Nanos = Nanos::from_secs(1);
const WINDOW: Nanos = Nanos::from_secs(12);
/// A time at which all events at the start of a model are older than the window.
const MUCH_LATER: Nanos = Nanos::from_secs(100);

/// Runs a model in every interleaving with at most three preemptions. Without a bound, larger models would run for
/// hours.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Each contender writes its own slot before it claims the cell. The slots are relaxed, so only the order of the cell's
/// accesses can make a slot visible.
#[test]
fn one_reply_wins_and_the_others_see_what_it_wrote() {
    struct Request {
        cell: ReplyCell,
        written: [AtomicU8; 3],
    }
    loom::model(|| {
        let request =
            Arc::new(Request { cell: ReplyCell::new(), written: std::array::from_fn(|_| AtomicU8::new(0)) });
        let contend = |request: &Request, who: Reply| {
            request.written[who as usize - 1].store(1, Relaxed);
            match request.cell.claim(who) {
                Ok(()) => 1,
                Err(winner) => {
                    let seen = request.written[winner as usize - 1].load(Relaxed);
                    assert_eq!(seen, 1, "the winner's slot was written before it won");
                    0
                }
            }
        };
        let threads = [Reply::Model, Reply::Fallback].map(|who| {
            let request = Arc::clone(&request);
            thread::spawn(move || contend(&request, who))
        });
        let mine = contend(&request, Reply::Cancelled);
        let won: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(won + mine, 1);
    });
}

/// Two threads add while the window advances. Both amounts count, and both are removed in the end.
#[test]
fn a_ring_counts_what_is_added_while_it_moves() {
    bounded(|| {
        let ring: Arc<Ring<1>> = Arc::new(Ring::new(WINDOW));
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.advance(PART).map(|part| ring.add(part, 0, 5)).is_some())
        };
        let mine = ring.advance(PART).map(|part| ring.add(part, 0, 7)).is_some();
        let theirs = other.join().unwrap();
        assert!(mine && theirs, "one part behind is no reason to refuse");
        assert_eq!(ring.sum(0), 12);
        ring.advance(WINDOW).unwrap();
        assert_eq!(ring.sum(0), 12, "still within the window");
        ring.advance(MUCH_LATER).unwrap();
        assert_eq!(ring.sum(0), 0);
    });
}

/// A thread keeps its part while the whole ring is emptied. Its amount is counted and later removed, and the sum never
/// falls below zero.
#[test]
fn a_late_addition_to_a_ring_is_counted_once() {
    bounded(|| {
        let ring: Arc<Ring<1>> = Arc::new(Ring::new(WINDOW));
        let part = ring.advance(Nanos::ZERO).unwrap();
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.add(part, 0, 5))
        };
        ring.advance(MUCH_LATER).unwrap();
        ring.clear();
        let sum = ring.sum(0);
        assert!(sum == 0 || sum == 5, "{sum}");
        other.join().unwrap();
        ring.clear();
        assert_eq!(ring.sum(0), 0);
    });
}

/// Two fallbacks compete for one place under the cap while the window advances.
#[test]
fn exposure_caps_hold_for_threads() {
    bounded(|| {
        let caps = Caps { window: WINDOW, max_count: 1, max_total: 100, max_single: 60 };
        let caps = Arc::new(ExposureCaps::new(caps));
        let other = {
            let caps = Arc::clone(&caps);
            thread::spawn(move || caps.reserve(PART, Some(60)).is_ok())
        };
        let mine = caps.reserve(PART, Some(60)).is_ok();
        let theirs = other.join().unwrap();
        assert!(mine ^ theirs, "the cap is one, and one of them finds room");
        let exposed = caps.exposed(PART);
        assert_eq!((exposed.count, exposed.amount), (1, 60));
    });
}

fn breaker(probes: u32) -> BreakerSettings {
    BreakerSettings { window: WINDOW, panics: 1, probes, probe_share: 1.0, ..BreakerSettings::default() }
}

#[test]
fn a_breaker_opens_once() {
    bounded(|| {
        let breaker = Arc::new(Breaker::new(breaker(1)));
        let other = {
            let breaker = Arc::clone(&breaker);
            thread::spawn(move || breaker.record(PART, Evaluation::Panic))
        };
        let mine = breaker.record(PART, Evaluation::Panic);
        let theirs = other.join().unwrap();
        assert!(mine ^ theirs, "one of the calls opens it");
        assert_eq!((breaker.state(), breaker.openings()), (BreakerState::Open, 1));
    });
}

/// The breaker's time has passed, and two requests probe the bundle. Both good answers count and close the breaker.
#[test]
fn no_good_answer_of_a_probe_is_forgotten() {
    bounded(|| {
        let breaker = Arc::new(Breaker::new(breaker(2)));
        breaker.record(Nanos::ZERO, Evaluation::Panic);
        let probe = |breaker: &Breaker| {
            assert!(breaker.allows(MUCH_LATER, 0), "its time is over");
            breaker.record_good(MUCH_LATER, 1);
        };
        let other = {
            let breaker = Arc::clone(&breaker);
            thread::spawn(move || probe(&breaker))
        };
        probe(&breaker);
        other.join().unwrap();
        assert_eq!((breaker.state(), breaker.openings()), (BreakerState::Closed, 0));
    });
}

/// One probe succeeds and one panics. In either order, the breaker is open afterwards, and a request that detects late
/// that the first opening is over does not end the second opening.
#[test]
fn a_probe_that_panics_leaves_it_open() {
    bounded(|| {
        let breaker = Arc::new(Breaker::new(breaker(2)));
        breaker.record(Nanos::ZERO, Evaluation::Panic);
        let other = {
            let breaker = Arc::clone(&breaker);
            thread::spawn(move || {
                if breaker.allows(MUCH_LATER, 0) {
                    breaker.record_good(MUCH_LATER, 1);
                }
            })
        };
        assert!(breaker.allows(MUCH_LATER, 0));
        assert!(breaker.record(MUCH_LATER, Evaluation::Panic));
        other.join().unwrap();
        assert_eq!((breaker.state(), breaker.openings()), (BreakerState::Open, 2));
        assert!(!breaker.allows(MUCH_LATER, 0));
    });
}

/// Two requests of a bundle claim a slot for it while another bundle's slot is being freed.
#[test]
fn a_bundle_that_is_forgotten_holds_no_slot() {
    bounded(|| {
        let book = Arc::new(CostBook::new(Nanos::from_micros(1)));
        let mut history = CostHistory::new();
        book.expect(&mut history, 1, Nanos::from_micros(1));
        let others = [(); 1].map(|()| {
            let book = Arc::clone(&book);
            thread::spawn(move || book.estimate(2, 1).slot)
        });
        book.forget(1);
        let mine = book.estimate(2, 1).slot;
        for other in others {
            let other = other.join().unwrap();
            assert!(mine <= 1 && other <= 1);
        }
        book.forget(2);
        assert_eq!(book.held(), 0);
    });
}

/// A request and the control thread assign slots to two new bundles at the same time.
#[test]
fn bundles_that_come_at_once_have_slots_of_their_own() {
    bounded(|| {
        let book = Arc::new(CostBook::new(Nanos::from_micros(1)));
        let other = {
            let book = Arc::clone(&book);
            thread::spawn(move || book.estimate(1, 1).slot)
        };
        let mut history = CostHistory::new();
        book.expect(&mut history, 2, Nanos::from_micros(9));
        let theirs = other.join().unwrap();
        let mine = book.estimate(2, 1);
        assert_eq!(mine.mean, 9_000);
        assert_ne!(mine.slot, theirs, "one slot for two bundles");
        assert_eq!(book.estimate(1, 1).slot, theirs, "the request's bundle keeps its slot");
    });
}
