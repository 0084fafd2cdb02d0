//! The error budget of an SLA: burn rates and the remaining budget.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use super::time::Nanos;

/// Parts of a window.
const PARTS: usize = 60;
const MINUTE: Nanos = Nanos::from_secs(60);
const HOUR: Nanos = Nanos::from_secs(3_600);
const DAY: Nanos = Nanos::from_secs(86_400);
/// The windows, shortest first. The last one is the period of the budget.
const WINDOWS: [Nanos; 6] =
    [Nanos(5 * MINUTE.0), Nanos(30 * MINUTE.0), HOUR, Nanos(6 * HOUR.0), Nanos(3 * DAY.0), Nanos(30 * DAY.0)];

/// The error budget of one checkpoint: good and bad answers over sliding windows.
#[derive(Debug)]
pub struct ErrorBudget {
    /// Share of the answers that must be good.
    objective: f64,
    good: AtomicU64,
    bad: AtomicU64,
    windows: Mutex<Windows>,
}

#[derive(Debug)]
struct Windows {
    /// Counts that were already moved into the windows.
    seen: [u64; 2],
    sliding: [Sliding; WINDOWS.len()],
}

/// Good and bad answers of one sliding window, accurate to one part.
#[derive(Debug)]
struct Sliding {
    part_length: u64,
    part: u64,
    parts: [[u64; 2]; PARTS],
    sums: [u64; 2],
}

/// Burn rates. A rate of 1 uses up the budget in exactly its period of 30 days.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BurnRates {
    /// Over 5 minutes.
    pub m5: f64,
    /// Over 30 minutes.
    pub m30: f64,
    /// Over 1 hour.
    pub h1: f64,
    /// Over 6 hours.
    pub h6: f64,
    /// Over 3 days.
    pub d3: f64,
    /// Remaining part of the period's budget; negative if it is exceeded, 1 without traffic.
    pub remaining: f64,
}

/// Alert level of burn rates. As in the SRE workbook, the long window of a pair triggers it and the short one ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Alarm {
    /// No alert.
    Quiet,
    /// A ticket: the burn rate is above 1 over 3 days and over 6 hours.
    Ticket,
    /// A page: the burn rate is above 14.4 over 1 hour and over 5 minutes, or above 6 over 6 hours and over 30 minutes.
    Page,
}

// === impl ErrorBudget ===

impl ErrorBudget {
    /// Creates the budget for an objective, the share of answers that must be good, such as 0.99. It is clamped to 0 to
    /// 0.999999.
    #[must_use]
    pub fn new(objective: f64) -> ErrorBudget {
        let windows = Windows { seen: [0; 2], sliding: WINDOWS.map(Sliding::new) };
        ErrorBudget {
            objective: objective.clamp(0.0, 0.999_999),
            good: AtomicU64::new(0),
            bad: AtomicU64::new(0),
            windows: Mutex::new(windows),
        }
    }

    /// Counts one answer, which is good if it met the SLA. Takes no lock.
    pub fn record(&self, good: bool) {
        // Relaxed: the two counters are independent, and ticks tolerate a small difference.
        if good { &self.good } else { &self.bad }.fetch_add(1, Relaxed);
    }

    /// Moves the counts into the windows. Call it every few seconds.
    pub fn tick(&self, now: Nanos) {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = [self.good.load(Relaxed), self.bad.load(Relaxed)];
        let new = [counted[0] - windows.seen[0], counted[1] - windows.seen[1]];
        windows.seen = counted;
        for sliding in &mut windows.sliding {
            sliding.add(now, new);
        }
    }

    /// Returns the burn rates at the last tick.
    #[must_use]
    pub fn rates(&self) -> BurnRates {
        let windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = |at: usize| {
            let [good, bad] = windows.sliding[at].sums;
            let all = good + bad;
            if all == 0 { 0.0 } else { bad as f64 / all as f64 / (1.0 - self.objective) }
        };
        BurnRates {
            m5: rate(0),
            m30: rate(1),
            h1: rate(2),
            h6: rate(3),
            d3: rate(4),
            remaining: 1.0 - rate(5),
        }
    }

    /// Returns the numbers of good and bad answers since the start.
    #[must_use]
    pub fn counted(&self) -> (u64, u64) {
        (self.good.load(Relaxed), self.bad.load(Relaxed))
    }
}

// === impl Sliding ===

impl Sliding {
    fn new(window: Nanos) -> Sliding {
        Sliding { part_length: window.0 / PARTS as u64, part: 0, parts: [[0; 2]; PARTS], sums: [0; 2] }
    }

    fn add(&mut self, now: Nanos, new: [u64; 2]) {
        let part = now.0 / self.part_length;
        for _ in 0..part.saturating_sub(self.part).min(PARTS as u64) {
            self.part += 1;
            let old = std::mem::take(&mut self.parts[self.part as usize % PARTS]);
            for (sum, old) in self.sums.iter_mut().zip(old) {
                *sum -= old;
            }
        }
        // All parts are empty if more time than a window has passed.
        self.part = self.part.max(part);
        let at = self.part as usize % PARTS;
        for (kind, new) in new.into_iter().enumerate() {
            self.parts[at][kind] += new;
            self.sums[kind] += new;
        }
    }
}

// === impl BurnRates ===

impl BurnRates {
    /// Returns the alert level of the rates.
    #[must_use]
    pub fn alarm(&self) -> Alarm {
        if (self.h1 > 14.4 && self.m5 > 14.4) || (self.h6 > 6.0 && self.m30 > 6.0) {
            Alarm::Page
        } else if self.d3 > 1.0 && self.h6 > 1.0 {
            Alarm::Ticket
        } else {
            Alarm::Quiet
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ticks every ten seconds for `minutes`, with 1,000 answers each, of which `bad` are bad.
    fn run(budget: &ErrorBudget, from: u64, minutes: u64, bad: u64) -> u64 {
        let until = from + minutes * 60;
        for now in (from..until).step_by(10) {
            for answer in 0..1_000 {
                budget.record(answer >= bad);
            }
            budget.tick(Nanos::from_secs(now));
        }
        until
    }

    #[test]
    fn a_rate_of_one_is_the_budget_spent_evenly() {
        let budget = ErrorBudget::new(0.99);
        assert_eq!(budget.rates(), BurnRates { remaining: 1.0, ..BurnRates::default() });
        run(&budget, 1_000_000, 120, 10);
        let rates = budget.rates();
        for rate in [rates.m5, rates.m30, rates.h1, rates.h6, rates.d3] {
            assert!((rate - 1.0).abs() < 1e-9, "{rates:?}");
        }
        assert!(rates.remaining.abs() < 1e-9);
    }

    #[test]
    fn an_outage_pages_within_minutes_and_stops_soon_after_it_ends() {
        let budget = ErrorBudget::new(0.99);
        let now = run(&budget, 1_000_000, 360, 1);
        assert_eq!(budget.rates().alarm(), Alarm::Quiet);
        let now = run(&budget, now, 5, 500);
        assert_eq!(budget.rates().alarm(), Alarm::Quiet, "4 % of an hour is not yet 14.4");
        let now = run(&budget, now, 14, 500);
        assert_eq!(budget.rates().alarm(), Alarm::Page, "{:?}", budget.rates());
        run(&budget, now, 6, 1);
        let rates = budget.rates();
        assert!(rates.m5 < 1.0 && rates.h1 > 10.0, "{rates:?}");
    }

    #[test]
    fn old_answers_leave_every_window_but_the_longest() {
        let budget = ErrorBudget::new(0.9);
        let now = run(&budget, 1_000_000, 10, 1_000);
        run(&budget, now + 4 * 86_400, 10, 0);
        let rates = budget.rates();
        assert_eq!((rates.m5, rates.h1, rates.d3), (0.0, 0.0, 0.0));
        assert!((rates.remaining - (1.0 - 0.5 / 0.1)).abs() < 1e-9, "overdrawn: {}", rates.remaining);
        assert_eq!(budget.counted(), (60_000, 60_000));
    }
}
