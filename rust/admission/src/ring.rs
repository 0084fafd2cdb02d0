//! Lock-free sums over a sliding window.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::sync::{AtomicBool, AtomicU64};
use super::time::Nanos;

/// Parts that make up one window.
const PARTS: u64 = 12;
/// Number of stored parts: the current one, those of a whole window, and one more, so that an addition that is late by
/// one part is still kept for a window.
const KEPT: usize = PARTS as usize + 2;

/// `K` sums over the last window. A sum covers the window and up to two more parts, never less, so caps that use it are
/// strict.
///
/// The first thread that detects the end of a part advances the ring. Other threads do not wait: they use the previous
/// part, or get `None` if the ring lags further behind.
#[derive(Debug)]
pub(super) struct Ring<const K: usize> {
    part_length: u64,
    part: AtomicU64,
    moving: AtomicBool,
    sums: [AtomicU64; K],
    parts: [[AtomicU64; K]; KEPT],
}

/// Index of the part that an addition belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part(usize);

// === impl Ring ===

impl<const K: usize> Ring<K> {
    pub(super) fn new(window: Nanos) -> Ring<K> {
        Ring {
            part_length: window.0.div_ceil(PARTS).max(1),
            part: AtomicU64::new(0),
            moving: AtomicBool::new(false),
            sums: std::array::from_fn(|_| AtomicU64::new(0)),
            parts: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    /// Removes parts that are older than the window and returns the current part. `None`: another thread is advancing
    /// the ring and is more than one part behind.
    pub(super) fn advance(&self, now: Nanos) -> Option<Part> {
        let target = now.0 / self.part_length;
        let mut part = self.part.load(Acquire);
        if part < target {
            if self.moving.compare_exchange(false, true, Acquire, Relaxed).is_ok() {
                part = self.move_to(target);
                self.moving.store(false, Release);
            } else if part + 1 < target {
                return None;
            }
        }
        Some(Part(part as usize % KEPT))
    }

    /// Advances the ring. The caller must hold `moving`.
    fn move_to(&self, target: u64) -> u64 {
        let mut part = self.part.load(Relaxed);
        let steps = target.saturating_sub(part).min(KEPT as u64);
        for _ in 0..steps {
            part += 1;
            // The part is emptied before a thread can use it. If a thread took the part a window ago and adds to it
            // only now, its amount is kept for one window too long.
            for (sum, part) in self.sums.iter().zip(&self.parts[part as usize % KEPT]) {
                // Acquire: the amount was added to the sum before, see `add`.
                let old = part.swap(0, Acquire);
                sum.fetch_sub(old, AcqRel);
            }
            self.part.store(part, Release);
        }
        let part = part.max(target);
        self.part.store(part, Release);
        part
    }

    /// Adds an amount unconditionally.
    pub(super) fn add(&self, part: Part, kind: usize, amount: u64) {
        self.sums[kind].fetch_add(amount, AcqRel);
        self.keep(part, kind, amount);
    }

    /// Adds to the sum if it stays within `most`. Call [`Ring::keep`] or [`Ring::release`] afterwards.
    pub(super) fn reserve(&self, kind: usize, amount: u64, most: u64) -> bool {
        let fits = |sum: u64| sum.checked_add(amount).filter(|&sum| sum <= most);
        self.sums[kind].fetch_update(AcqRel, Acquire, fits).is_ok()
    }

    /// Cancels a reservation that was not kept.
    pub(super) fn release(&self, kind: usize, amount: u64) {
        self.sums[kind].fetch_sub(amount, AcqRel);
    }

    /// Keeps a reservation for one window.
    pub(super) fn keep(&self, part: Part, kind: usize, amount: u64) {
        // Release: the thread that empties the part sees the sum with this amount.
        self.parts[part.0][kind].fetch_add(amount, Release);
    }

    pub(super) fn sum(&self, kind: usize) -> u64 {
        self.sums[kind].load(Acquire)
    }

    /// Removes all amounts.
    pub(super) fn clear(&self) {
        for part in &self.parts {
            for (sum, part) in self.sums.iter().zip(part) {
                let old = part.swap(0, Acquire);
                sum.fetch_sub(old, AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_covers_its_window_and_little_more() {
        let ring: Ring<1> = Ring::new(Nanos::from_secs(12));
        let at = |secs: u64| ring.advance(Nanos::from_secs(secs)).unwrap();
        ring.add(at(100), 0, 5);
        ring.add(at(101), 0, 7);
        for secs in 101..=112 {
            at(secs);
            assert_eq!(ring.sum(0), 12, "at {secs} s both are less than 12 s old");
        }
        at(114);
        assert_eq!(ring.sum(0), 7);
        at(115);
        assert_eq!(ring.sum(0), 0);
    }

    #[test]
    fn a_clock_that_jumps_empties_it_and_one_that_goes_back_does_not() {
        let ring: Ring<2> = Ring::new(Nanos::from_secs(60));
        let now = Nanos::from_secs(1_000_000);
        ring.add(ring.advance(now).unwrap(), 1, 3);
        ring.advance(Nanos::ZERO);
        assert_eq!((ring.sum(0), ring.sum(1)), (0, 3));
        ring.advance(Nanos::MAX);
        assert_eq!(ring.sum(1), 0);
    }

    #[test]
    fn who_meets_a_ring_far_behind_and_moving_is_told() {
        let ring: Ring<1> = Ring::new(Nanos::from_secs(12));
        ring.advance(Nanos::from_secs(100));
        ring.moving.store(true, Relaxed);
        assert!(ring.advance(Nanos::from_secs(100)).is_some());
        assert!(ring.advance(Nanos::from_secs(101)).is_some());
        assert!(ring.advance(Nanos::from_secs(102)).is_none());
    }
}
