//! Computes the outcome of every test of a forest on one context, before any tree is walked.
//!
//! Trees share tests: a library that bins its features uses at most a few hundred thresholds per feature. Each distinct
//! test is therefore evaluated once, many at a time, and a walk only reads a byte.

use std::collections::BTreeMap;

use super::Detected;

/// The outcome of a test that goes right; 0 means left. It is 8 because a walk of eight trees side by side adds it to
/// its position.
pub(super) const RIGHT: u8 = 8;

/// Number of tests that come before all others: test 0 always goes left, test 1 always goes right.
pub(super) const KNOWN: usize = 2;

/// Distinct tests, ordered by slot and key.
#[derive(Debug)]
pub(super) struct Tests {
    /// For each slot that is tested, the slot and the end of its keys in `keys`.
    runs: Vec<(u32, u32)>,
    keys: Vec<i32>,
}

impl Tests {
    /// Orders tests, which are numbered from [`KNOWN`]. Also returns the new number of each old one.
    pub(super) fn new(tests: &[(u32, i32)]) -> (Self, Vec<u32>) {
        let mut order: Vec<u32> = (0..tests.len() as u32).collect();
        order.sort_unstable_by_key(|&test| tests[test as usize]);
        let mut renumbered = vec![0; KNOWN + tests.len()];
        renumbered[1] = 1;
        let mut ends = BTreeMap::new();
        let mut keys = Vec::with_capacity(tests.len());
        for old in order {
            let (slot, key) = tests[old as usize];
            renumbered[KNOWN + old as usize] = (KNOWN + keys.len()) as u32;
            keys.push(key);
            ends.insert(slot, keys.len() as u32);
        }
        (Self { runs: ends.into_iter().collect(), keys }, renumbered)
    }

    /// Number of tests, including the first [`KNOWN`].
    pub(super) fn len(&self) -> usize {
        KNOWN + self.keys.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        8 * self.runs.len() + 4 * self.keys.len()
    }

    /// Writes [`RIGHT`] for each test that goes right and 0 for all others. `outcomes` has [`Tests::len`] entries.
    pub(super) fn fill(&self, isa: Detected, slots: &[i32], outcomes: &mut [u8]) {
        match isa {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "the same loop, compiled for wider registers")]
            // SAFETY: the proof in `isa` shows that the machine has the instructions.
            Detected::Avx512(_) => unsafe { x86::avx512(self, slots, outcomes) },
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "the same loop, compiled for wider registers")]
            // SAFETY: as above.
            Detected::Avx2(_) => unsafe { x86::avx2(self, slots, outcomes) },
            _ => self.fill_with(slots, outcomes),
        }
    }

    #[inline(always)]
    fn fill_with(&self, slots: &[i32], outcomes: &mut [u8]) {
        let (known, outcomes) = outcomes.split_at_mut(KNOWN);
        known.copy_from_slice(&[0, RIGHT]);
        let mut start = 0;
        for &(slot, end) in &self.runs {
            let value = slots[slot as usize];
            let end = end as usize;
            for (outcome, &key) in outcomes[start..end].iter_mut().zip(&self.keys[start..end]) {
                *outcome = if value >= key { RIGHT } else { 0 };
            }
            start = end;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub(super) fn avx512(tests: &super::Tests, slots: &[i32], outcomes: &mut [u8]) {
        tests.fill_with(slots, outcomes);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(tests: &super::Tests, slots: &[i32], outcomes: &mut [u8]) {
        tests.fill_with(slots, outcomes);
    }
}
