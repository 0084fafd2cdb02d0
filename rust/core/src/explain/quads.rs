//! The contributions of four neighbouring leaves of a complete tree, in one cache line.
//!
//! The paths to the four leaves below a node share the steps to that node. They differ in the step of the level below,
//! of which there are two, and in the last step, of which there are four. A quad stores all of them, so a row reads one
//! cache line per tree, and the lines take less memory than a list of steps for each leaf.
//!
//! Most of the time goes into waiting for these lines. The positions of up to [`BATCH`] trees are therefore collected
//! and their lines requested before the lines of the batch before them are added.
//!
//! Contributions are numbers of fixed point, multiples of one unit per forest, and are added as integers. The order of
//! the additions does not change such a sum.

/// Least and greatest number of levels of a tree that quads serve.
const MIN_DEPTH: usize = 3;
const MAX_DEPTH: usize = 8;
/// Greatest number of features, because their numbers are bytes.
const FEATURES: usize = 256;
/// Number of trees whose lines are requested before they are added.
const BATCH: usize = 64;
/// Number of sums that a feature has, for trees at even and at odd places and for steps at even and at odd places. An
/// addition to a sum waits for the one before it, and neighbouring trees and steps often test the same features.
const BANKS: usize = 4;
/// Number of sums in a bank. A multiple of 4 KiB between two sums would make the processor compare them for nothing.
const BANK: usize = FEATURES + 8;
/// The sums of all features.
type Banks = [[i64; BANK]; BANKS];
/// First value of the level above the last, and of the last level.
const PAIR: usize = MAX_DEPTH - 2;
const LAST: usize = PAIR + 2;
/// Number of bits of an amount below the highest bit of the greatest amount.
const BITS: i32 = 29;

/// The steps of four leaves. Values are multiples of the unit.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Quad {
    /// The shared steps from the root down, then two and four steps of the last levels.
    values: [i32; LAST + 4],
    /// The features of the shared steps, that of the level above the last, and two of the last level.
    features: [u8; 16],
}

/// The quads of a forest's complete trees.
#[derive(Debug)]
pub(super) struct Quads {
    all: Vec<Quad>,
    /// The column of each feature.
    columns: Vec<u32>,
    unit: f64,
}

/// The sums of one row.
#[derive(Debug, Clone)]
pub(super) struct Sums {
    of: Box<Banks>,
    /// The leaves that are collected now, and those whose lines are on their way.
    collected: Leaves,
    waiting: Leaves,
}

/// Leaves that a row reaches in trees of one depth, counted over all quads.
#[derive(Debug, Clone)]
struct Leaves {
    depth: usize,
    count: usize,
    leaves: Box<[u32; BATCH]>,
}

impl Leaves {
    fn new() -> Leaves {
        Leaves { depth: 0, count: 0, leaves: Box::new([0; BATCH]) }
    }
}

impl Sums {
    pub(super) fn new() -> Sums {
        Sums { of: Box::new([[0; BANK]; BANKS]), collected: Leaves::new(), waiting: Leaves::new() }
    }
}

impl Quads {
    /// Returns no quads yet. `columns` are those that the forest tests, and no step is above `greatest`.
    pub(super) fn new(mut columns: Vec<u32>, greatest: f64) -> Quads {
        columns.sort_unstable();
        columns.dedup();
        // The power of two that is not above `greatest`, divided by a power of two.
        let exponent = f64::from_bits(greatest.min(f64::MAX).to_bits() & f64::INFINITY.to_bits());
        let unit = exponent / f64::from(1 << BITS);
        Quads { all: Vec::new(), columns, unit: if unit.is_normal() { unit } else { f64::MIN_POSITIVE } }
    }

    /// Appends a complete tree. `step` returns the feature and the amount of the step to a node in heap order, if there
    /// is one. Returns its first leaf, counted over all quads; `None` if quads cannot serve the tree.
    pub(super) fn push(&mut self, depth: usize, step: impl Fn(usize) -> Option<(u32, f64)>) -> Option<u32> {
        let first = u32::try_from(4 * self.all.len() + (1 << depth)).ok()? - (1 << depth);
        if !(MIN_DEPTH..=MAX_DEPTH).contains(&depth) || self.columns.len() > FEATURES {
            return None;
        }
        let of = |node: usize| {
            let (feature, amount) = step(node)?;
            let number = self.columns.binary_search(&feature).ok()?;
            // A conversion to an integer saturates.
            Some((number as u8, (amount / self.unit).round() as i32))
        };
        let shared = depth - 2;
        let quads = (1 << shared..2 << shared).map(|node: usize| {
            let mut quad = Quad { values: [0; LAST + 4], features: [0; 16] };
            // Steps that a path does not have add 0. Their features differ, so that these additions do not wait for each
            // other either.
            for (level, feature) in quad.features.iter_mut().enumerate() {
                *feature = (level % self.columns.len().max(1)) as u8;
            }
            let mut set = |value: usize, feature: usize, node: usize| {
                if let Some((number, amount)) = of(node) {
                    (quad.values[value], quad.features[feature]) = (amount, number);
                }
            };
            for level in 0..shared {
                set(level, level, node >> (shared - 1 - level));
            }
            for child in 0..2 {
                set(PAIR + child, PAIR, 2 * node + child);
            }
            for child in 0..4 {
                set(LAST + child, PAIR + 1 + child / 2, 4 * node + child);
            }
            quad
        });
        let quads: Vec<Quad> = quads.collect();
        self.all.extend(quads);
        Some(first)
    }

    pub(super) fn shrink(&mut self) {
        self.all.shrink_to_fit();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.all) + size_of_val(&*self.columns)
    }

    /// Sets the sums to 0.
    pub(super) fn start(&self, sums: &mut Sums) {
        let used = self.columns.len().min(FEATURES);
        sums.of.iter_mut().for_each(|of| of[..used].fill(0));
        sums.collected.count = 0;
        sums.waiting.count = 0;
    }

    /// Adds the leaves at `positions` of consecutive trees of one depth, at most [`BATCH`] of them, of which the first
    /// one begins at the leaf `first`.
    #[inline(always)]
    pub(super) fn add_consecutive(&self, depth: usize, first: u32, positions: &[u8], sums: &mut Sums) {
        let next = &mut sums.collected;
        (next.depth, next.count) = (depth, positions.len().min(BATCH));
        debug_assert_eq!(next.count, positions.len(), "a run has more trees than a batch");
        let mut first = first;
        for (slot, position) in next.leaves.iter_mut().zip(positions) {
            *slot = first + u32::from(*position);
            first += 1 << depth;
        }
        self.exchange(sums);
    }

    /// Adds leaves of trees of one depth, at most [`BATCH`] of them, each the tree's first leaf plus the position in the
    /// tree.
    #[inline(always)]
    pub(super) fn add(&self, depth: usize, mut leaves: impl Iterator<Item = u32>, sums: &mut Sums) {
        let next = &mut sums.collected;
        (next.depth, next.count) = (depth, 0);
        for (slot, leaf) in next.leaves.iter_mut().zip(leaves.by_ref()) {
            *slot = leaf;
            next.count += 1;
        }
        debug_assert!(leaves.next().is_none(), "a run has more trees than a batch");
        self.exchange(sums);
    }

    /// Requests the lines of the collected leaves, and adds the leaves that were requested before.
    #[inline(always)]
    fn exchange(&self, sums: &mut Sums) {
        for &leaf in &sums.collected.leaves[..sums.collected.count] {
            prefetch(self.all.as_ptr().wrapping_add(leaf as usize / 4));
        }
        std::mem::swap(&mut sums.collected, &mut sums.waiting);
        self.add_leaves(&sums.collected, &mut sums.of);
        sums.collected.count = 0;
    }

    fn add_leaves(&self, leaves: &Leaves, sums: &mut Banks) {
        match leaves.depth {
            3 => self.add_leaves_in::<3>(leaves, sums),
            4 => self.add_leaves_in::<4>(leaves, sums),
            5 => self.add_leaves_in::<5>(leaves, sums),
            6 => self.add_leaves_in::<6>(leaves, sums),
            7 => self.add_leaves_in::<7>(leaves, sums),
            _ => self.add_leaves_in::<8>(leaves, sums),
        }
    }

    #[inline(always)]
    fn add_leaves_in<const DEPTH: usize>(&self, leaves: &Leaves, sums: &mut Banks) {
        let (even, odd) = sums.split_at_mut(BANKS / 2);
        let (pairs, rest) = leaves.leaves[..leaves.count].as_chunks::<2>();
        for [one, other] in pairs {
            self.add_leaf::<DEPTH>(*one, even);
            self.add_leaf::<DEPTH>(*other, odd);
        }
        rest.iter().for_each(|leaf| self.add_leaf::<DEPTH>(*leaf, even));
    }

    #[inline(always)]
    fn add_leaf<const DEPTH: usize>(&self, leaf: u32, sums: &mut [[i64; BANK]]) {
        let leaf = leaf as usize;
        let quad = &self.all[leaf / 4];
        let mut add = |bank: usize, feature: usize, value: usize| {
            sums[bank][usize::from(quad.features[feature])] += i64::from(quad.values[value]);
        };
        for level in 0..DEPTH - 2 {
            add(level % 2, level, level);
        }
        let (pair, last) = (leaf / 2 % 2, leaf % 4);
        add(DEPTH % 2, PAIR, PAIR + pair);
        add((DEPTH + 1) % 2, PAIR + 1 + pair, LAST + last);
    }

    /// Adds the sums to the contributions of their columns.
    pub(super) fn finish(&self, sums: &mut Sums, contributions: &mut [f64]) {
        self.add_leaves(&sums.waiting, &mut sums.of);
        for (number, &column) in self.columns.iter().enumerate().take(FEATURES) {
            let sum: i64 = sums.of.iter().map(|bank| bank[number]).sum();
            contributions[column as usize] += sum as f64 * self.unit;
        }
    }
}

/// Asks the processor to fetch a quad, without waiting for it.
#[inline(always)]
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "an instruction that the compiler does not generate by itself")
)]
fn prefetch(quad: *const Quad) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, which accepts any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(quad.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction accepts any address and changes no register or memory.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) quad, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = quad;
}
