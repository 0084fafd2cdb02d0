//! The breaker of a bundle: takes a bundle that panics or returns invalid numbers out of service, and probes it later.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use super::ring::Ring;
use super::sync::AtomicU64;
use super::time::Nanos;

const EVALUATED: usize = 0;
const PANICS: usize = 1;
const NON_FINITE: usize = 2;
/// The greatest value of a [`Phase`]'s 10 bits for openings, which is more than the longest wait needs.
const MOST_OPENINGS: u64 = (1 << 10) - 1;
/// Number of values of a [`Phase`]'s 20 bits for the number of the opening.
const OPENING_NUMBERS: u64 = 1 << 20;

/// The settings that determine when a breaker opens and closes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerSettings {
    /// Length of the sliding window.
    pub window: Nanos,
    /// Number of panics in the window that opens the breaker.
    pub panics: u64,
    /// Share of the evaluations in the window that may be non-finite, 0 to 1.
    pub non_finite: f64,
    /// Minimum number of evaluations for which the share is computed.
    pub enough: u64,
    /// Time for which the breaker stays open at first. Each further opening doubles it.
    pub open_for: Nanos,
    /// Longest time for which the breaker stays open.
    pub open_at_most: Nanos,
    /// Share of the requests that probe the bundle while the breaker is half open, 0 to 1.
    pub probe_share: f64,
    /// Number of consecutive good answers that closes the breaker.
    pub probes: u32,
}

/// State of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BreakerState {
    /// The bundle receives all requests.
    Closed = 0,
    /// The bundle receives no requests; the previous bundle or the fallback answers.
    Open = 1,
    /// The bundle receives a small share of the requests.
    HalfOpen = 2,
}

/// Result of one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// A finite answer.
    Good,
    /// The evaluation panicked.
    Panic,
    /// The result is NaN, infinite or out of range.
    NonFinite,
}

/// The breaker of one bundle, without locks. Threads share it by reference.
#[derive(Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    recent: Ring<3>,
    /// A [`Phase`].
    phase: AtomicU64,
    /// Time at which an open breaker becomes half open. Written before the phase is set to open.
    until: AtomicU64,
}

/// The values that change together and are therefore in one word, so that an answer of an earlier opening does not
/// affect a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phase {
    state: BreakerState,
    /// Number of openings since the breaker was last closed, at most [`MOST_OPENINGS`].
    openings: u64,
    /// Number of the opening, modulo [`OPENING_NUMBERS`].
    number: u64,
    /// Number of good answers since the breaker became half open, 32 bits.
    good: u64,
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
    /// Returns the name of the state in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            BreakerState::Closed => "closed",
            BreakerState::Open => "open",
            BreakerState::HalfOpen => "half_open",
        }
    }
}

// === impl Phase ===

impl Phase {
    fn of(word: u64) -> Phase {
        let state = match word & 0b11 {
            0 => BreakerState::Closed,
            1 => BreakerState::Open,
            _ => BreakerState::HalfOpen,
        };
        let (openings, number) = (word >> 2 & MOST_OPENINGS, word >> 12 & (OPENING_NUMBERS - 1));
        Phase { state, openings, number, good: word >> 32 }
    }

    fn word(self) -> u64 {
        self.state as u64 | self.openings << 2 | self.number << 12 | self.good << 32
    }
}

// === impl Breaker ===

impl Breaker {
    /// Creates a closed breaker.
    #[must_use]
    pub fn new(settings: BreakerSettings) -> Breaker {
        Breaker {
            settings,
            recent: Ring::new(settings.window),
            phase: AtomicU64::new(
                Phase { state: BreakerState::Closed, openings: 0, number: 0, good: 0 }.word(),
            ),
            until: AtomicU64::new(0),
        }
    }

    /// Returns whether this request may use the bundle. `draw` is a uniformly distributed word of the request, such as
    /// a hash of its id.
    pub fn allows(&self, now: Nanos, draw: u64) -> bool {
        let phase = self.phase();
        match phase.state {
            BreakerState::Closed => true,
            BreakerState::Open => self.try_half_open(now, phase) && self.is_probe(draw),
            BreakerState::HalfOpen => self.is_probe(draw),
        }
    }

    fn is_probe(&self, draw: u64) -> bool {
        (draw as f64) < self.settings.probe_share * u64::MAX as f64
    }

    /// Makes an open breaker half open if its time has passed. `open` was read before `until`, so the time belongs to
    /// that opening or to a later one.
    fn try_half_open(&self, now: Nanos, open: Phase) -> bool {
        if now.0 < self.until.load(Acquire) {
            return false;
        }
        let half = Phase { state: BreakerState::HalfOpen, good: 0, ..open };
        let _ = self.phase.compare_exchange(open.word(), half.word(), AcqRel, Acquire);
        self.state() == BreakerState::HalfOpen
    }

    /// Records the result of one evaluation. Returns true if it opened the breaker.
    pub fn record(&self, now: Nanos, evaluation: Evaluation) -> bool {
        // If another thread is advancing the ring after a long pause, this evaluation is not counted.
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
                self.count_good(1);
                false
            }
            // The request started before the breaker opened, or the answer is good and the breaker closed.
            (BreakerState::Open, _) | (BreakerState::Closed, Evaluation::Good) => false,
        }
    }

    /// Records `count` good evaluations at once, for example the rows of a batch.
    pub fn record_good(&self, now: Nanos, count: u32) {
        if let Some(part) = self.recent.advance(now) {
            self.recent.add(part, EVALUATED, count.into());
        }
        self.count_good(count);
    }

    /// Counts good answers while the breaker is half open, and closes it when there are enough.
    fn count_good(&self, count: u32) {
        let probes = u64::from(self.settings.probes);
        let mut phase = self.phase();
        while phase.state == BreakerState::HalfOpen {
            let good = phase.good.saturating_add(count.into()).min(u32::MAX.into());
            let next = if good >= probes {
                // The failures that opened the breaker must not count again.
                self.recent.clear();
                Phase { state: BreakerState::Closed, openings: 0, good: 0, ..phase }
            } else {
                Phase { good, ..phase }
            };
            match self.phase.compare_exchange_weak(phase.word(), next.word(), AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => phase = Phase::of(now),
            }
        }
    }

    fn is_bad(&self) -> bool {
        let evaluated = self.recent.sum(EVALUATED);
        let non_finite = self.recent.sum(NON_FINITE) as f64;
        self.recent.sum(PANICS) >= self.settings.panics
            || evaluated >= self.settings.enough && non_finite > self.settings.non_finite * evaluated as f64
    }

    /// Opens the breaker unless it is open already. Returns true for the one call that opens it.
    fn open(&self, now: Nanos) -> bool {
        let mut phase = self.phase();
        while phase.state != BreakerState::Open {
            let open_for = self.settings.open_for.0.saturating_mul(1 << phase.openings.min(20));
            let open_for = Nanos(open_for.min(self.settings.open_at_most.0));
            // Several threads may write the time concurrently, all for the same opening.
            self.until.store(now.plus(open_for).0, Release);
            let next = Phase {
                state: BreakerState::Open,
                openings: (phase.openings + 1).min(MOST_OPENINGS),
                number: (phase.number + 1) % OPENING_NUMBERS,
                good: 0,
            };
            match self.phase.compare_exchange_weak(phase.word(), next.word(), AcqRel, Acquire) {
                Ok(_) => return true,
                Err(now) => phase = Phase::of(now),
            }
        }
        false
    }

    /// Returns the state. An open breaker whose time has passed remains open until the next request.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.phase().state
    }

    fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Acquire))
    }

    /// Returns the number of openings since the breaker was last closed.
    #[must_use]
    pub fn openings(&self) -> u32 {
        self.phase().openings as u32
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
