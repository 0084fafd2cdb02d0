//! Outstanding work in one word: the number of requests and the time that they are expected to take.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Number of low bits, which hold the requests. The other bits hold the expected time in units of 64 ns. The word has
/// room for 65,536 requests of [`LONGEST`] each.
const COUNT_BITS: u32 = 20;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const UNIT_BITS: u32 = 6;
/// Upper bound of a request's time in nanoseconds: 17 s.
const LONGEST: u64 = 1 << 34;

/// Number of requests and their time, which one atomic operation updates together. Accesses are relaxed: the sums are
/// exact because additions commute, and no order with other memory is required.
#[derive(Debug, Default)]
pub(super) struct Load(AtomicU64);

/// The value of a [`Load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) count: u64,
    pub(super) nanos: u64,
}

/// Rounds a time up to a value that a [`Load`] represents exactly, so that it can be subtracted again.
pub(super) fn rounded(nanos: u64) -> u64 {
    let unit = 1 << UNIT_BITS;
    nanos.clamp(1, LONGEST).next_multiple_of(unit)
}

fn word(count: u64, nanos: u64) -> u64 {
    debug_assert!(nanos.trailing_zeros() >= UNIT_BITS, "{nanos} ns were not rounded");
    (nanos >> UNIT_BITS << COUNT_BITS) + count
}

// === impl Load ===

impl Load {
    /// Adds work. `nanos` must be [`rounded`] or zero.
    pub(super) fn add(&self, count: u64, nanos: u64) {
        self.0.fetch_add(word(count, nanos), Relaxed);
    }

    /// Subtracts work that was added before.
    pub(super) fn remove(&self, count: u64, nanos: u64) {
        self.0.fetch_sub(word(count, nanos), Relaxed);
    }

    pub(super) fn read(&self) -> Held {
        Held::of(self.0.load(Relaxed))
    }

    /// Returns the value and resets it to zero.
    pub(super) fn take(&self) -> Held {
        Held::of(self.0.swap(0, Relaxed))
    }
}

impl Held {
    fn of(word: u64) -> Held {
        Held { count: word & COUNT_MASK, nanos: word >> COUNT_BITS << UNIT_BITS }
    }
}
