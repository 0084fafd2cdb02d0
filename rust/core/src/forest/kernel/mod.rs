//! The inner loops over byte-ranked trees, one implementation per instruction set.
//!
//! Trees are complete, in heap order (the root is node 1, the children of node i are 2i and 2i + 1), and stored in
//! groups of [`GROUP`]: the byte slots of all their nodes, then the cut numbers of all their nodes. A test goes right
//! if the rank in its slot is above its cut number.
//!
//! The unsafe code relies on three facts:
//!
//! * A byte slot is a byte and [`RowRanks`] has 256 entries, so reading a row's ranks needs no check.
//! * A block of rows has one column for each byte slot of the forest, and the builder of the engine (`build::Builder`)
//!   writes only slots below that number.
//! * A position starts at 1 and doubles, plus 0 or 1, once per level, so it stays below the size of its tree.

#![expect(unsafe_code, reason = "bounds checks would double the work per node, and instructions are unsafe")]

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
pub(super) mod mux;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;

use super::cpu::Detected;
use super::layout::Layout;
use super::outcome::Outcomes;
use super::rank::{Column, Plain, ROWS, Ranks, RowRanks};
use super::slots::Stretch;

/// Number of trees in a group.
pub(super) const GROUP: usize = 8;
/// Greatest number of groups in one run, for which a kernel is called once.
pub(super) const RUN: usize = 8;
/// Least and greatest number of levels of a padded tree. Three levels of eight trees fill a cache line.
pub(super) const MIN_DEPTH: usize = 3;
pub(super) const MAX_DEPTH: usize = 8;
/// Number of levels whose nodes fill one cache line.
pub(super) const LINE_DEPTH: usize = 6;

/// A cache line of nodes.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

/// Nodes of up to [`RUN`] groups of trees of one depth.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nodes<'a> {
    depth: usize,
    lines: &'a [Line],
}

impl<'a> Nodes<'a> {
    /// Views `lines` as whole groups of trees of this depth. Panics if they are not.
    pub(super) fn new(depth: usize, lines: &'a [Line]) -> Self {
        assert!((MIN_DEPTH..=MAX_DEPTH).contains(&depth), "no kernel for this depth");
        assert!(lines.len().is_multiple_of(Self::lines_per_group(depth)), "the lines are not whole groups");
        assert!(lines.len() <= RUN * Self::lines_per_group(depth), "too many groups");
        Self { depth, lines }
    }

    pub(super) const fn lines_per_group(depth: usize) -> usize {
        2 * (GROUP << depth) / 64
    }

    /// Returns the byte slots and cuts of one tree.
    fn tree(self, tree: usize) -> (&'a [u8], &'a [u8]) {
        let (group, lane, size) = (tree / GROUP, tree % GROUP, 1 << self.depth);
        let first = (2 * GROUP * group + lane) * size;
        let bytes = bytes(self.lines);
        (&bytes[first..first + size], &bytes[first + GROUP * size..][..size])
    }
}

/// Views lines as bytes.
fn bytes(lines: &[Line]) -> &[u8] {
    // SAFETY: a line is 64 bytes without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), 64 * lines.len()) }
}

/// Leaf positions of one row in the trees of a run.
pub(super) type Positions = [u8; RUN * GROUP];

/// Computes the 32-bit slots of one row, but not the sentinel. `stretches` are those of the layout.
pub(super) fn fill_slots(
    isa: Detected,
    stretches: &[Stretch],
    layout: &Layout,
    row: &[f32],
    out: &mut [i32],
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions, as the proof in `isa` shows.
        Detected::Avx512(_) => unsafe { avx512::fill_slots(stretches, &layout.slots, row, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Detected::Avx2(_) => unsafe { avx2::fill_slots(stretches, &layout.slots, row, out) },
        _ => layout.slots.fill_stretches(stretches, row, out),
    }
}

/// Ranks one row.
pub(super) fn rank_row(isa: Detected, ranks: &Ranks, layout: &Layout, row: &[f32], out: &mut RowRanks) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions, as the proof in `isa` shows.
        Detected::Avx512(has) => unsafe { avx512::rank_row(has, ranks, &layout.slots.tables, row, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Detected::Avx2(has) => unsafe { avx2::rank_row(has, ranks, &layout.slots.tables, row, out) },
        #[cfg(target_arch = "aarch64")]
        Detected::Neon => neon::rank_row(ranks, &layout.slots.tables, row, out),
        _ => portable::rank_row(ranks, &layout.slots.tables, row, out),
    }
}

/// Computes the outcomes of all tests for one row. `known` has its ranks, if they are narrow.
pub(super) fn fill_outcomes(
    isa: Detected,
    (outcomes, ranks): (&Outcomes, &Ranks),
    layout: &Layout,
    row: &[f32],
    known: &RowRanks,
    out: &mut [u8],
) {
    let tables = &layout.slots.tables;
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions, as the proof in `isa` shows.
        Detected::Avx512(has) => unsafe {
            avx512::fill_outcomes(has, outcomes, ranks, tables, row, known, out);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Detected::Avx2(has) => unsafe {
            avx2::fill_outcomes(has, outcomes, ranks, tables, row, known, out);
        },
        #[cfg(target_arch = "aarch64")]
        Detected::Neon => neon::fill_outcomes(outcomes, ranks, tables, row, known, out),
        _ => outcomes.fill(ranks, tables, row, known, Plain, out),
    }
}

/// Computes the leaf positions of one row. `slots` is the number of byte slots.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "AVX-512 alone has use for them"))]
pub(super) fn find(isa: Detected, nodes: Nodes<'_>, slots: usize, ranks: &RowRanks, out: &mut Positions) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions, as the proof in `isa` shows.
        Detected::Avx512(_) => unsafe { avx512::find(nodes, slots, ranks, out) },
        #[cfg(target_arch = "aarch64")]
        Detected::Neon => neon::find(nodes, ranks, out),
        _ => portable::find(nodes, ranks, out),
    }
}

/// A block evaluates all tests of a tree for each row, a walk only the tests on the row's path. With registers of 32
/// rows, this many tests of a block take as long as one test of a walk, so trees of eight levels are faster to walk.
/// (Measured on Zen 4 with AVX2 and 300 trees, in nanoseconds per row, for blocks and walks: 870 and 1,890 at six
/// levels, 1,490 and 2,280 at seven, 3,000 and 2,800 at eight.)
const BLOCK_TESTS: usize = 24;

/// Least number of rows for which a block is faster than walks, or `None` if walks are always faster with this
/// instruction set. `all` is the number of tests of the forest, `taken` the number of tests on one row's paths.
pub(super) fn least_rows(isa: Detected, all: usize, taken: usize) -> Option<usize> {
    let few = all <= BLOCK_TESTS * taken;
    match isa {
        Detected::Avx512(_) => Some(20),
        Detected::Avx2(_) if few => Some(8),
        Detected::Neon if few => Some(16),
        Detected::Avx2(_) | Detected::Neon | Detected::Portable => None,
    }
}

/// Ranks a block of rows.
pub(super) fn rank_rows(isa: Detected, ranks: &Ranks, layout: &Layout, rows: &[f32], out: &mut [Column]) {
    let (tables, width) = (&layout.slots.tables, layout.num_features);
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions, as the proof in `isa` shows.
        Detected::Avx512(has) => unsafe { avx512::rank_rows(has, ranks, tables, rows, width, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Detected::Avx2(has) => unsafe { avx2::rank_rows(has, ranks, tables, rows, width, out) },
        #[cfg(target_arch = "aarch64")]
        Detected::Neon => neon::rank_rows(ranks, tables, rows, width, out),
        _ => ranks.fill_rows(tables, rows, width, Plain, out),
    }
}

/// Computes the leaf positions of the first `rows` rows of a block in one tree of a run.
///
/// # Safety
/// Every slot of the nodes is below the number of columns.
pub(super) unsafe fn positions(
    isa: Detected,
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    rows: usize,
    out: &mut [u8; ROWS],
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the proof in `isa` shows that the machine has the instructions; the slots are the caller's
        // obligation.
        Detected::Avx512(_) => unsafe { avx512::positions(nodes, tree, columns, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Detected::Avx2(_) => unsafe { avx2::positions(nodes, tree, columns, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the caller's obligation.
        Detected::Neon => unsafe { neon::positions(nodes, tree, columns, rows, out) },
        _ => portable::positions(nodes, tree, columns, rows, out),
    }
}

/// Adds the leaves of one tree with scalar float32 leaves. Returns false, without adding, if the instruction set has no
/// kernel for it.
///
/// # Safety
/// As [`positions`].
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "AVX-512 alone has use for them"))]
pub(super) unsafe fn add(
    isa: Detected,
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    leaves: &[f32],
    sums: &mut [f32; ROWS],
) -> bool {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the proof in `isa` shows that the machine has the instructions; the slots are the caller's
        // obligation.
        Detected::Avx512(_) => unsafe {
            avx512::add(nodes, tree, columns, leaves, sums);
            true
        },
        _ => false,
    }
}
