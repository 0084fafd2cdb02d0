//! Expected cost of requests, measured per checkpoint, bundle and number of rows.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::histogram::{Counts, Histogram};
use super::sync::{AtomicU32, AtomicU64};
use super::time::Nanos;

/// Number of bundles measured per checkpoint: those of its lanes and those that were just replaced. A further bundle
/// uses the estimate of the first one until [`CostBook::expect`] assigns it the least recently used slot.
const BUNDLES: usize = 8;
/// Number of size classes: 1, 2-4, 5-16, 17-64, 65-256, 257-1,024, 1,025-4,096 and more rows.
const SIZES: usize = 8;
/// Number of samples in one window that replace older ones. Fewer samples are merged with them.
const ENOUGH: f32 = 50.0;
/// Weight of older windows while there are few samples.
const FADE: f32 = 0.8;
/// Factor per window that lowers the estimate of work that is always shed, so that it is measured again.
const DOUBT: f64 = 0.8;
/// Slot of a request whose cost is not measured.
pub(super) const UNMEASURED: u16 = u16::MAX;

/// Measurements of one checkpoint.
#[derive(Debug)]
pub(super) struct CostBook {
    slots: Box<[Slot]>,
    row_cost: u64,
}

/// Measurements of one bundle. `bundle` is 0 while the slot is free.
#[derive(Debug)]
struct Slot {
    bundle: AtomicU64,
    sizes: [Cell; SIZES],
}

/// Estimates for requests of one size class, in nanoseconds per row.
#[derive(Debug)]
struct Cell {
    mean: AtomicU64,
    /// The 95th percentile.
    cautious: AtomicU64,
    window: Histogram,
    /// Number of requests of this window that were shed because of their expected time.
    refused: AtomicU32,
}

/// Expected time of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Estimate {
    pub(super) slot: u16,
    /// Mean, in nanoseconds.
    pub(super) mean: u64,
    pub(super) cautious: u64,
    pub(super) row: u64,
}

/// State that only ticks use: the merged windows from which the estimates are computed.
#[derive(Debug)]
pub(super) struct CostHistory(Vec<Past>);

#[derive(Debug)]
struct Past {
    bundle: u64,
    unused_for: u32,
    sizes: Vec<Option<Counts>>,
}

fn size(rows: u32) -> usize {
    let rows = rows.max(1);
    // Powers of four: ceil(log4(rows)).
    ((32 - (rows - 1).leading_zeros()).div_ceil(2) as usize).min(SIZES - 1)
}

// === impl CostBook ===

impl CostBook {
    pub(super) fn new(row_cost: Nanos) -> CostBook {
        let row_cost = row_cost.0.max(1);
        let slots = (0..BUNDLES).map(|_| Slot::new(row_cost)).collect();
        CostBook { slots, row_cost }
    }

    pub(super) fn estimate(&self, bundle: u64, rows: u32) -> Estimate {
        let (slot, at) = match self.find(bundle) {
            Some(at) => (&self.slots[at], at as u16),
            None => (&self.slots[0], UNMEASURED),
        };
        let cell = &slot.sizes[size(rows)];
        let (mean, cautious) = (cell.mean.load(Relaxed), cell.cautious.load(Relaxed));
        let rows = u64::from(rows.max(1));
        Estimate {
            slot: at,
            mean: mean.saturating_mul(rows),
            cautious: cautious.max(mean).saturating_mul(rows),
            row: mean,
        }
    }

    /// Returns the bundle's slot, or assigns a free one.
    fn find(&self, bundle: u64) -> Option<usize> {
        for (at, slot) in self.slots.iter().enumerate() {
            let held = slot.bundle.load(Acquire);
            if held == bundle {
                return Some(at);
            }
            if held == 0 {
                match slot.bundle.compare_exchange(0, bundle, AcqRel, Acquire) {
                    Ok(_) => return Some(at),
                    Err(now) if now == bundle => return Some(at),
                    Err(_) => {}
                }
            }
        }
        None
    }

    /// Records one evaluation, unless the slot has been assigned to another bundle.
    pub(super) fn record(&self, slot: u16, bundle: u64, rows: u32, exec: Nanos) {
        if let Some(slot) = self.slots.get(usize::from(slot))
            && slot.bundle.load(Relaxed) == bundle
        {
            slot.sizes[size(rows)].window.record(exec.0 / u64::from(rows.max(1)));
        }
    }

    pub(super) fn refused(&self, slot: u16, rows: u32) {
        if let Some(slot) = self.slots.get(usize::from(slot)) {
            slot.sizes[size(rows)].refused.store(1, Relaxed);
        }
    }

    /// Assigns a slot and an initial estimate to a new bundle. A known bundle keeps its measurements.
    pub(super) fn expect(&self, history: &mut CostHistory, bundle: u64, row: Nanos) {
        if bundle == 0 || self.slots.iter().any(|slot| slot.bundle.load(Acquire) == bundle) {
            return;
        }
        // A request of another bundle may take the free slot first.
        let take = |slot: &Slot| slot.bundle.compare_exchange(0, bundle, AcqRel, Relaxed).is_ok();
        let free = self.slots.iter().position(take);
        let oldest = || (0..BUNDLES).max_by_key(|&at| history.0[at].unused_for);
        if let Some(at) = free.or_else(oldest) {
            self.slots[at].expect(row.0.max(1));
            self.slots[at].bundle.store(bundle, Release);
            history.0[at] = Past::new(bundle);
        }
    }

    /// Frees the slots of a bundle. It may have two, if a request took one while the other was being freed.
    pub(super) fn forget(&self, bundle: u64) {
        for slot in self.slots.iter().filter(|slot| slot.bundle.load(Acquire) == bundle) {
            slot.expect(self.row_cost);
            slot.bundle.store(0, Release);
        }
    }

    /// Returns the number of slots in use.
    #[cfg(all(test, feature = "loom"))]
    pub(super) fn held(&self) -> usize {
        self.slots.iter().filter(|slot| slot.bundle.load(Acquire) != 0).count()
    }

    /// Ends a window and updates the estimates from its samples.
    pub(super) fn tick(&self, history: &mut CostHistory) {
        for (slot, past) in self.slots.iter().zip(&mut history.0) {
            let bundle = slot.bundle.load(Acquire);
            if bundle == 0 {
                continue;
            }
            if past.bundle != bundle {
                *past = Past::new(bundle);
            }
            slot.tick(past);
        }
    }
}

// === impl Slot ===

impl Slot {
    fn new(row: u64) -> Slot {
        let cell = || Cell {
            mean: AtomicU64::new(row),
            cautious: AtomicU64::new(row),
            window: Histogram::new(),
            refused: AtomicU32::new(0),
        };
        Slot { bundle: AtomicU64::new(0), sizes: std::array::from_fn(|_| cell()) }
    }

    fn expect(&self, row: u64) {
        for cell in &self.sizes {
            cell.mean.store(row, Relaxed);
            cell.cautious.store(row, Relaxed);
        }
    }

    fn tick(&self, past: &mut Past) {
        let mut measured = false;
        for (cell, known) in self.sizes.iter().zip(&mut past.sizes) {
            let refused = cell.refused.swap(0, Relaxed) != 0;
            if cell.window.is_empty() {
                if refused {
                    cell.doubt();
                    *known = None;
                }
                continue;
            }
            measured = true;
            let known = known.get_or_insert_with(Counts::new);
            if cell.window.count() >= ENOUGH {
                known.clear();
            } else {
                known.fade(FADE);
            }
            cell.window.drain(known);
            cell.mean.store(known.mean() as u64 + 1, Relaxed);
            cell.cautious.store(known.quantile(0.95) as u64 + 1, Relaxed);
        }
        past.unused_for = if measured { 0 } else { past.unused_for.saturating_add(1) };
        if measured {
            self.fill(past);
        }
    }

    /// Fills in size classes without samples. They use the cost per row of the next smaller class, which is an upper
    /// estimate, or else of the next larger one.
    fn fill(&self, past: &Past) {
        let first = past.sizes.iter().position(Option::is_some).unwrap_or(0);
        let mut from = first;
        for (at, known) in past.sizes.iter().enumerate() {
            if known.is_some() {
                from = at;
            } else if !self.sizes[at].doubted() {
                let (mean, cautious) = self.sizes[from].read();
                self.sizes[at].mean.store(mean, Relaxed);
                self.sizes[at].cautious.store(cautious, Relaxed);
            }
        }
    }
}

// === impl Cell ===

impl Cell {
    fn read(&self) -> (u64, u64) {
        (self.mean.load(Relaxed), self.cautious.load(Relaxed))
    }

    fn doubt(&self) {
        let (mean, cautious) = self.read();
        self.mean.store((mean as f64 * DOUBT) as u64 + 1, Relaxed);
        self.cautious.store((cautious as f64 * DOUBT) as u64 + 1, Relaxed);
    }

    fn doubted(&self) -> bool {
        self.refused.load(Relaxed) != 0
    }
}

// === impl CostHistory ===

impl CostHistory {
    pub(super) fn new() -> CostHistory {
        CostHistory((0..BUNDLES).map(|_| Past::new(0)).collect())
    }
}

impl Past {
    fn new(bundle: u64) -> Past {
        Past { bundle, unused_for: 0, sizes: vec![None; SIZES] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> (CostBook, CostHistory) {
        (CostBook::new(Nanos::from_micros(100)), CostHistory::new())
    }

    #[test]
    fn sizes_are_powers_of_four() {
        let of: Vec<usize> = [1, 2, 4, 5, 16, 17, 64, 256, 1000, 1024, 4096, 4097, u32::MAX].map(size).into();
        assert_eq!(of, [0, 1, 1, 2, 2, 3, 3, 4, 5, 5, 6, 7, 7]);
    }

    #[test]
    fn a_new_bundle_costs_what_its_warm_up_said() {
        let (book, mut history) = book();
        book.expect(&mut history, 7, Nanos::from_micros(3));
        assert_eq!(book.estimate(7, 1).mean, 3_000);
        assert_eq!(book.estimate(7, 1000).mean, 3_000_000);
        assert_eq!(book.estimate(8, 1).mean, 100_000);
    }

    #[test]
    fn a_slowdown_is_seen_at_the_next_window() {
        let (book, mut history) = book();
        let slot = book.estimate(1, 1).slot;
        for _ in 0..20 {
            for _ in 0..1000 {
                book.record(slot, 1, 1, Nanos::from_micros(100));
            }
            book.tick(&mut history);
        }
        let before = book.estimate(1, 1);
        assert!((90_000..130_000).contains(&before.cautious), "{before:?}");
        for _ in 0..8 {
            book.record(slot, 1, 1, Nanos::from_millis(1));
        }
        book.tick(&mut history);
        // Eight slow values after a full window of fast ones are too few to reach the 95th percentile.
        for _ in 0..100 {
            book.record(slot, 1, 1, Nanos::from_millis(1));
        }
        book.tick(&mut history);
        let after = book.estimate(1, 1);
        assert!(after.mean > 900_000 && after.cautious > 900_000, "{after:?}");
    }

    #[test]
    fn few_samples_are_merged_with_those_before() {
        let (book, mut history) = book();
        let slot = book.estimate(1, 1).slot;
        for window in 0..10 {
            for _ in 0..5 {
                let exec = if window < 9 { 100 } else { 1000 };
                book.record(slot, 1, 1, Nanos::from_micros(exec));
            }
            book.tick(&mut history);
        }
        let estimate = book.estimate(1, 1);
        assert!(estimate.cautious > 800_000, "a fifth of what is known was slow: {estimate:?}");
        assert!(estimate.mean < 500_000, "{estimate:?}");
    }

    #[test]
    fn what_is_always_refused_is_tried_again() {
        let (book, mut history) = book();
        book.expect(&mut history, 1, Nanos::from_secs(1));
        let slot = book.estimate(1, 1).slot;
        for _ in 0..20 {
            book.refused(slot, 1);
            book.tick(&mut history);
        }
        assert!(book.estimate(1, 1).cautious < 20_000_000);
        // Without requests, the estimate is unchanged.
        let before = book.estimate(1, 1);
        book.tick(&mut history);
        assert_eq!(book.estimate(1, 1), before);
    }

    #[test]
    fn a_slot_that_changed_hands_takes_no_samples_of_its_former_bundle() {
        let (book, mut history) = book();
        for bundle in 1..=BUNDLES as u64 {
            book.expect(&mut history, bundle, Nanos::from_micros(bundle));
        }
        assert_eq!(book.estimate(99, 1).slot, UNMEASURED);
        for bundle in 2..=BUNDLES as u64 {
            let slot = book.estimate(bundle, 1).slot;
            book.record(slot, bundle, 1, Nanos::from_micros(5));
        }
        let old = book.estimate(1, 1).slot;
        book.tick(&mut history);
        book.expect(&mut history, 99, Nanos::from_micros(50));
        let new = book.estimate(99, 1);
        assert_eq!((new.slot, new.mean), (old, 50_000), "the longest unused made room");
        book.record(old, 1, 1, Nanos::from_secs(9));
        book.tick(&mut history);
        assert_eq!(book.estimate(99, 1).mean, 50_000);
    }
}
