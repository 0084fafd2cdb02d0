//! A bundle that panics or answers nonsense is taken out of service, and tried again with care.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use super::ring::Ring;
use super::time::Nanos;

const EVALUATED: usize = 0;
const PANICS: usize = 1;
const NON_FINITE: usize = 2;

/// When a breaker opens and how it closes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerSettings {
    /// Time over which is counted.
    pub window: Nanos,
    /// Panics in the window that open it.
    pub panics: u64,
    /// Part of the evaluations in the window that may be non-finite.
    pub non_finite: f64,
    /// Evaluations below which no part is computed.
    pub enough: u64,
    /// How long it stays open the first time; each time it fails again, twice as long.
    pub open_for: Nanos,
    /// And at most so long.
    pub open_at_most: Nanos,
    /// Part of the requests that try the bundle while half open.
    pub probe_share: f64,
    /// Good answers in a row that close it.
    pub probes: u32,
}

/// What a breaker does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BreakerState {
    /// All go to the bundle.
    Closed = 0,
    /// None do: the bundle before it answers, or the fallback.
    Open = 1,
    /// A small share does.
    HalfOpen = 2,
}

/// What became of one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// A finite answer.
    Good,
    /// It panicked.
    Panic,
    /// NaN, infinite, or out of range.
    NonFinite,
}

/// One bundle's breaker. Share it by reference; no lock.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    recent: Ring<3>,
    state: AtomicU8,
    /// When an open breaker becomes half open. Written before the state that makes it matter.
    until: AtomicU64,
    /// Openings since it last closed.
    openings: AtomicU32,
    /// Good answers since it became half open.
    good: AtomicU32,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        BreakerSettings {
            window: Nanos::from_secs(60),
            panics: 3,
            non_finite: 0.001,
            enough: 1_000,
            open_for: Nanos::from_secs(30),
            open_at_most: Nanos::from_secs(600),
            probe_share: 0.01,
            probes: 100,
        }
    }
}

// === impl BreakerState ===

impl BreakerState {
    /// As metrics spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

// === impl Breaker ===

impl Breaker {
    /// Closed.
    #[must_use]
    pub fn new(settings: BreakerSettings) -> Breaker {
        Breaker {
            settings,
            recent: Ring::new(settings.window),
            state: AtomicU8::new(BreakerState::Closed as u8),
            until: AtomicU64::new(0),
            openings: AtomicU32::new(0),
            good: AtomicU32::new(0),
        }
    }

    /// Whether this request may use the bundle. `draw` is any evenly distributed word of the request's, such as
    /// a hash of its id.
    pub fn allows(&self, now: Nanos, draw: u64) -> bool {
        match self.state() {
            BreakerState::Closed => true,
            BreakerState::Open => self.try_half_open(now) && self.is_probe(draw),
            BreakerState::HalfOpen => self.is_probe(draw),
        }
    }

    fn is_probe(&self, draw: u64) -> bool {
        (draw as f64) < self.settings.probe_share * u64::MAX as f64
    }

    fn try_half_open(&self, now: Nanos) -> bool {
        if now.0 < self.until.load(Acquire) {
            return false;
        }
        // Before the state: no probe's answer may be counted and then forgotten.
        self.good.store(0, Relaxed);
        let (open, half) = (BreakerState::Open as u8, BreakerState::HalfOpen as u8);
        let _ = self.state.compare_exchange(open, half, AcqRel, Acquire);
        self.state() == BreakerState::HalfOpen
    }

    /// Records the result of one evaluation. Returns true if this one opened the breaker.
    pub fn record(&self, now: Nanos, evaluation: Evaluation) -> bool {
        // None: the ring is catching up after a long pause; one evaluation goes uncounted.
        if let Some(part) = self.recent.advance(now) {
            self.recent.add(part, EVALUATED, 1);
            match evaluation {
                Evaluation::Good => {}
                Evaluation::Panic => self.recent.add(part, PANICS, 1),
                Evaluation::NonFinite => self.recent.add(part, NON_FINITE, 1),
            }
        }
        match (self.state(), evaluation) {
            (BreakerState::Closed, Evaluation::Panic | Evaluation::NonFinite) => {
                self.is_bad() && self.open(now)
            }
            (BreakerState::HalfOpen, Evaluation::Panic | Evaluation::NonFinite) => self.open(now),
            (BreakerState::HalfOpen, Evaluation::Good) => {
                if self.good.fetch_add(1, Relaxed) + 1 >= self.settings.probes {
                    self.close();
                }
                false
            }
            // An answer of a request from before it opened.
            (BreakerState::Open, _) | (BreakerState::Closed, Evaluation::Good) => false,
        }
    }

    /// Notes `count` good evaluations at once, as of the rows of a batch.
    pub fn record_good(&self, now: Nanos, count: u32) {
        if let Some(part) = self.recent.advance(now) {
            self.recent.add(part, EVALUATED, count.into());
        }
        if self.state() == BreakerState::HalfOpen
            && self.good.fetch_add(count, Relaxed).saturating_add(count) >= self.settings.probes
        {
            self.close();
        }
    }

    fn is_bad(&self) -> bool {
        let evaluated = self.recent.sum(EVALUATED);
        let non_finite = self.recent.sum(NON_FINITE) as f64;
        self.recent.sum(PANICS) >= self.settings.panics
            || evaluated >= self.settings.enough && non_finite > self.settings.non_finite * evaluated as f64
    }

    fn open(&self, now: Nanos) -> bool {
        let doublings = self.openings.load(Relaxed).min(20);
        let open_for = self.settings.open_for.0.saturating_mul(1 << doublings);
        let open_for = Nanos(open_for.min(self.settings.open_at_most.0));
        self.until.store(now.plus(open_for).0, Release);
        let opened = self.state.swap(BreakerState::Open as u8, AcqRel) != BreakerState::Open as u8;
        if opened {
            self.openings.fetch_add(1, Relaxed);
        }
        opened
    }

    fn close(&self) {
        let (half, closed) = (BreakerState::HalfOpen as u8, BreakerState::Closed as u8);
        // What led to the opening must not count again.
        self.recent.clear();
        if self.state.compare_exchange(half, closed, AcqRel, Acquire).is_ok() {
            self.openings.store(0, Relaxed);
        }
    }

    /// The current state. An open breaker whose time is over remains open until the next request.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        match self.state.load(Acquire) {
            0 => BreakerState::Closed,
            1 => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        }
    }

    /// How often it opened since it last closed.
    #[must_use]
    pub fn openings(&self) -> u32 {
        self.openings.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: u64 = 0;
    const NOT: u64 = u64::MAX / 2;

    fn secs(secs: u64) -> Nanos {
        Nanos::from_secs(secs)
    }

    #[test]
    fn three_panics_in_a_minute_open_it_and_two_do_not() {
        let breaker = Breaker::new(BreakerSettings::default());
        assert!(!breaker.record(secs(100), Evaluation::Panic));
        assert!(!breaker.record(secs(101), Evaluation::Panic));
        assert!(!breaker.record(secs(175), Evaluation::Panic), "the first two are over a minute old");
        assert!(!breaker.record(secs(176), Evaluation::Panic));
        assert!(breaker.allows(secs(176), NOT));
        assert!(breaker.record(secs(177), Evaluation::Panic));
        assert!(!breaker.record(secs(177), Evaluation::Panic), "told once");
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.allows(secs(206), PROBE));
    }

    #[test]
    fn more_than_one_in_a_thousand_non_finite_opens_it_given_a_thousand() {
        let breaker = Breaker::new(BreakerSettings::default());
        for _ in 0..998 {
            breaker.record(secs(1), Evaluation::Good);
        }
        assert!(!breaker.record(secs(1), Evaluation::NonFinite), "999 are not enough");
        for _ in 0..1000 {
            breaker.record(secs(1), Evaluation::Good);
        }
        assert!(!breaker.record(secs(1), Evaluation::NonFinite), "2 of 2,000 are allowed");
        assert!(breaker.record(secs(1), Evaluation::NonFinite));
    }

    #[test]
    fn it_tries_a_share_and_closes_after_enough_good_answers() {
        let breaker = Breaker::new(BreakerSettings { panics: 1, ..BreakerSettings::default() });
        assert!(breaker.record(secs(10), Evaluation::Panic));
        assert!(!breaker.allows(secs(40).minus(Nanos(1)), PROBE));
        assert!(breaker.allows(secs(40), PROBE) && !breaker.allows(secs(40), NOT));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        let probes =
            (0..10_000_u64).filter(|draw| breaker.allows(secs(40), draw * (u64::MAX / 10_000))).count();
        assert_eq!(probes, 101, "one in a hundred, and the one at zero");
        for _ in 0..99 {
            breaker.record(secs(41), Evaluation::Good);
        }
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.record(secs(41), Evaluation::Good);
        assert_eq!((breaker.state(), breaker.openings()), (BreakerState::Closed, 0));
        assert!(breaker.record(secs(42), Evaluation::Panic), "and counts anew");
        assert!(breaker.allows(secs(72), PROBE), "open for as long as the first time");
    }

    #[test]
    fn the_good_rows_of_a_batch_count_one_by_one() {
        let settings = BreakerSettings::default();
        let breaker = Breaker::new(settings);
        breaker.record_good(secs(1), 1998);
        assert!(!breaker.record(secs(1), Evaluation::NonFinite), "1 of 1,999");
        assert!(!breaker.record(secs(1), Evaluation::NonFinite), "2 of 2,000 are allowed");
        assert!(breaker.record(secs(1), Evaluation::NonFinite));
        assert!(breaker.allows(secs(32), 0));
        breaker.record_good(secs(32), settings.probes - 1);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        breaker.record_good(secs(32), 1);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn failing_again_doubles_the_wait_up_to_the_longest() {
        let breaker = Breaker::new(BreakerSettings { panics: 1, ..BreakerSettings::default() });
        let mut now = secs(0);
        for wait in [30, 60, 120, 240, 480, 600, 600] {
            assert!(breaker.record(now, Evaluation::NonFinite) || breaker.record(now, Evaluation::Panic));
            assert!(!breaker.allows(now.plus(secs(wait)).minus(Nanos(1)), PROBE));
            now = now.plus(secs(wait));
            assert!(breaker.allows(now, PROBE));
        }
    }

    #[test]
    fn threads_open_it_once() {
        for _ in 0..50 {
            let breaker = Breaker::new(BreakerSettings::default());
            let opened: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|_| {
                        scope
                            .spawn(|| (0..100).filter(|_| breaker.record(secs(5), Evaluation::Panic)).count())
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!((opened, breaker.state()), (1, BreakerState::Open));
        }
    }
}
