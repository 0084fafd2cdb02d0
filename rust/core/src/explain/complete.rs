//! The contributions of the leaves of complete trees, in cache lines that neighbouring leaves share.
//!
//! Most of the time goes into waiting for these lines. The positions of up to [`BATCH`] trees are therefore collected
//! and their lines requested before the lines of the batch before them are added.
//!
//! Contributions are numbers of fixed point, multiples of one unit per forest, and are added as integers. The order of
//! the additions does not change such a sum, so both forms of lines give the same bits. The unit is chosen so that no
//! sum of a row overflows.

use super::quads::{Banks, Quad};
use super::twins::Twin;
use crate::forest::{Forest, HasAvx512};

/// Least and greatest number of levels of a tree.
const MIN_DEPTH: usize = 3;
pub(super) const MAX_DEPTH: usize = 8;
/// Greatest number of features, because their numbers are bytes.
pub(super) const FEATURES: usize = 256;
/// Number of trees whose lines are requested before they are added.
const BATCH: usize = 64;
/// Number of bits of the sum of the ranges of all trees. The steps of one feature on a path of eight levels add up to at
/// most four times the range of the tree, which leaves one bit for the sign.
const BITS: i32 = 28;

/// The leaves of a forest's complete trees.
#[derive(Debug)]
pub(super) struct CompleteTrees {
    lines: Lines,
    /// The column of each feature.
    columns: Vec<u32>,
    unit: f64,
}

#[derive(Debug)]
enum Lines {
    /// Four leaves in a line, for every instruction set and number of features.
    Quads(Vec<Quad>),
    /// Two leaves in a line, which AVX-512 adds faster.
    Twins(Vec<Twin>, HasAvx512),
}

/// The sums of one row.
#[derive(Debug, Clone)]
pub(super) struct Sums {
    of: Box<Banks>,
    /// The leaves that are collected now, and those whose lines are on their way.
    collected: Leaves,
    waiting: Leaves,
}

/// Leaves that a row reaches in trees of one depth, counted over all trees.
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

    fn as_slice(&self) -> &[u32] {
        &self.leaves[..self.count]
    }
}

impl Sums {
    pub(super) fn new() -> Sums {
        Sums { of: Box::new(Banks::new()), collected: Leaves::new(), waiting: Leaves::new() }
    }
}

impl CompleteTrees {
    /// Returns no trees yet. `columns` are those that the forest tests, and `total` is the sum of the ranges of its
    /// trees.
    pub(super) fn new(forest: &Forest, mut columns: Vec<u32>, total: f64) -> CompleteTrees {
        columns.sort_unstable();
        columns.dedup();
        // The power of two above `total`, divided by a power of two.
        let exponent = f64::from_bits(total.min(f64::MAX / 2.0).to_bits() & f64::INFINITY.to_bits());
        let unit = 2.0 * exponent / f64::from(1 << BITS);
        let lines = match forest.avx512() {
            Some(has) if columns.len() <= Twin::FEATURES => Lines::Twins(Vec::new(), has),
            _ => Lines::Quads(Vec::new()),
        };
        CompleteTrees { lines, columns, unit: if unit.is_normal() { unit } else { f64::MIN_POSITIVE } }
    }

    /// Appends a tree. `step` returns the feature and the amount of the step to a node in heap order, if there is one.
    /// Returns its first leaf, counted over all trees; `None` if lines cannot serve the tree.
    pub(super) fn push(&mut self, depth: usize, step: impl Fn(usize) -> Option<(u32, f64)>) -> Option<u32> {
        let before = self.lines.len() << self.lines.shift();
        let first = u32::try_from(before + (1 << depth)).ok()? - (1 << depth);
        if !(MIN_DEPTH..=MAX_DEPTH).contains(&depth) || self.columns.len() > FEATURES {
            return None;
        }
        let CompleteTrees { lines, columns, unit } = self;
        let of = |node: usize| {
            let (feature, amount) = step(node)?;
            let number = columns.binary_search(&feature).ok()?;
            // A conversion to an integer saturates.
            Some((number as u8, (amount / *unit).round() as i32))
        };
        // The nodes above the last levels, in heap order.
        let above = |levels: usize| 1 << (depth - levels)..2 << (depth - levels);
        match lines {
            Lines::Quads(all) => all.extend(above(2).map(|node| Quad::new(depth, node, columns.len(), of))),
            Lines::Twins(all, _) => all.extend(above(1).map(|node| Twin::new(depth, node, of))),
        }
        Some(first)
    }

    pub(super) fn shrink(&mut self) {
        match &mut self.lines {
            Lines::Quads(all) => all.shrink_to_fit(),
            Lines::Twins(all, _) => all.shrink_to_fit(),
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.lines.len() * size_of::<Quad>() + size_of_val(&*self.columns)
    }

    /// Sets the sums to 0.
    pub(super) fn start(&self, sums: &mut Sums) {
        match self.lines {
            Lines::Quads(_) => sums.of.clear(self.columns.len()),
            Lines::Twins(..) => Twin::clear(&mut sums.of),
        }
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
        match &self.lines {
            Lines::Quads(all) => sums.collected.as_slice().iter().for_each(|&leaf| prefetch(all, leaf / 4)),
            Lines::Twins(all, _) => {
                sums.collected.as_slice().iter().for_each(|&leaf| prefetch(all, leaf / 2))
            }
        }
        std::mem::swap(&mut sums.collected, &mut sums.waiting);
        self.add_leaves(&sums.collected, &mut sums.of);
        sums.collected.count = 0;
    }

    #[inline(always)]
    fn add_leaves(&self, leaves: &Leaves, sums: &mut Banks) {
        match &self.lines {
            Lines::Quads(all) => Quad::add(all, leaves.depth, leaves.as_slice(), sums),
            Lines::Twins(all, has) => Twin::add(*has, all, self.columns.len(), leaves.as_slice(), sums),
        }
    }

    /// Adds the sums to the contributions of their columns.
    pub(super) fn finish(&self, sums: &mut Sums, contributions: &mut [f64]) {
        self.add_leaves(&sums.waiting, &mut sums.of);
        let sums: &[i32] = match self.lines {
            Lines::Quads(_) => sums.of.unite(self.columns.len()),
            Lines::Twins(..) => Twin::unite(&mut sums.of),
        };
        for (&sum, &column) in sums.iter().zip(&self.columns) {
            contributions[column as usize] += f64::from(sum) * self.unit;
        }
    }
}

impl Lines {
    fn len(&self) -> usize {
        match self {
            Lines::Quads(all) => all.len(),
            Lines::Twins(all, _) => all.len(),
        }
    }

    /// The binary logarithm of the number of leaves of a line.
    fn shift(&self) -> u32 {
        match self {
            Lines::Quads(_) => 2,
            Lines::Twins(..) => 1,
        }
    }
}

/// Asks the processor to fetch a line, without waiting for it.
#[inline(always)]
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    expect(unsafe_code, reason = "an instruction that the compiler does not generate by itself")
)]
fn prefetch<T>(lines: &[T], at: u32) {
    let line = lines.as_ptr().wrapping_add(at as usize);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction, which accepts any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction accepts any address and changes no register or memory.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = line;
}
