//! Work outstanding: how many requests, and how much time they are expected to take, in one word.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Low bits: requests. The rest: expected time in units of 64 ns. Holds 65,536 requests of [`LONGEST`] each.
const COUNT_BITS: u32 = 20;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const UNIT_BITS: u32 = 6;
/// No request counts for more: 17 s.
const LONGEST: u64 = 1 << 34;

/// Requests and time together, so that one atomic operation moves both and no reader sees one without the
/// other. Relaxed throughout: the sums are exact because additions commute, and admission needs them soon,
/// not in an order with other memory.
#[derive(Debug, Default)]
pub(super) struct Load(AtomicU64);

/// What a [`Load`] held when it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) count: u64,
    pub(super) nanos: u64,
}

/// Rounded up to what a [`Load`] can hold exactly, so that what is added can be taken away again.
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
    /// `nanos` must be [`rounded`], or zero.
    pub(super) fn add(&self, count: u64, nanos: u64) {
        self.0.fetch_add(word(count, nanos), Relaxed);
    }

    /// Takes away what was added before.
    pub(super) fn remove(&self, count: u64, nanos: u64) {
        self.0.fetch_sub(word(count, nanos), Relaxed);
    }

    pub(super) fn read(&self) -> Held {
        Held::of(self.0.load(Relaxed))
    }

    /// Reads, and begins again at nothing.
    pub(super) fn take(&self) -> Held {
        Held::of(self.0.swap(0, Relaxed))
    }
}

impl Held {
    fn of(word: u64) -> Held {
        Held { count: word & COUNT_MASK, nanos: word >> COUNT_BITS << UNIT_BITS }
    }
}
