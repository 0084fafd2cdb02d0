//! Evaluates one tree for many rows: one instruction tests one node for as many rows as a register has bytes.
//!
//! Every node is tested for every row. The outcomes of the levels above determine which outcome of a level applies to a
//! row, so outcomes are folded pairwise, beginning with the root's, until one per row is left. This takes one operation
//! per node, and no row depends on another.

use super::super::rank::Column;

/// A register of bytes, one per row. The top bit of a byte is the outcome; the other bits are unspecified.
pub(super) trait Lanes: Copy {
    /// Tests whether ranks, which `column` holds as 255 minus the rank, go left at this cut.
    ///
    /// # Safety
    /// `column` points to as many bytes as there are lanes; the machine has the instructions.
    unsafe fn left(column: *const u8, cut: u8) -> Self;
    /// Returns `yes` where the outcome is "left", `no` elsewhere.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn select(self, yes: Self, no: Self) -> Self;
    /// Returns bytes with bit `bit` set where the outcome is "left", and all other bits 0.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn outcome(self, bit: u32) -> Self;
    /// # Safety
    /// The machine has the instructions.
    unsafe fn or(self, other: Self) -> Self;
    /// Returns `mask` without the bits that are set in `self`.
    ///
    /// # Safety
    /// The machine has the instructions.
    unsafe fn taken_from(self, mask: u8) -> Self;
}

/// One tree and the columns of a block of rows.
#[derive(Clone, Copy)]
pub(super) struct Tree {
    /// Byte slots and cuts by heap position.
    pub(super) slots: *const u8,
    pub(super) cuts: *const u8,
    pub(super) columns: *const Column,
    /// First row to evaluate.
    pub(super) first_row: usize,
}

/// Folds the outcomes of eight subtrees on the fourth level, `$size` nodes each. It is a macro because a closure that
/// is not inlined would be compiled without the caller's target features.
macro_rules! eight {
    ($tree:expr, $taken:ident, $fold:ident, $size:literal, $to:literal) => {{
        let part = [
            $fold($tree, 8 * $size, &$taken[3..$to]),
            $fold($tree, 9 * $size, &$taken[3..$to]),
            $fold($tree, 10 * $size, &$taken[3..$to]),
            $fold($tree, 11 * $size, &$taken[3..$to]),
            $fold($tree, 12 * $size, &$taken[3..$to]),
            $fold($tree, 13 * $size, &$taken[3..$to]),
            $fold($tree, 14 * $size, &$taken[3..$to]),
            $fold($tree, 15 * $size, &$taken[3..$to]),
        ];
        let [a, b, c, d, e, f, g, h] = part;
        let left = $taken[1].select($taken[2].select(a, b), $taken[2].select(c, d));
        let right = $taken[1].select($taken[2].select(e, f), $taken[2].select(g, h));
        $taken[0].select(left, right)
    }};
}

impl Tree {
    /// # Safety
    /// The node is below the tree's size and its slot below the number of columns.
    #[inline(always)]
    unsafe fn left<V: Lanes>(self, node: usize) -> V {
        // SAFETY: the caller's obligation; `first_row` leaves as many rows as the register has lanes.
        unsafe {
            let column = self.columns.add(usize::from(*self.slots.add(node)));
            V::left(column.cast::<u8>().add(self.first_row), *self.cuts.add(node))
        }
    }

    /// Computes the leaf positions of the rows.
    ///
    /// # Safety
    /// The tree has `DEPTH` levels, every slot is below the number of columns, `first_row` and the lanes together are
    /// at most a block, and the machine has the instructions.
    #[inline(always)]
    pub(super) unsafe fn positions<V: Lanes, const DEPTH: usize>(self) -> V {
        // SAFETY: nodes of level l are 2^l to 2^(l+1) - 1, below 2^DEPTH.
        unsafe {
            let root = self.left::<V>(1);
            let mut taken = [root; 8];
            taken[1] = fold1(self, 2, &taken[..1]);
            taken[2] = fold2(self, 4, &taken[..2]);
            if DEPTH > 3 {
                taken[3] = fold3(self, 8, &taken[..3]);
            }
            if DEPTH > 4 {
                taken[4] = fold4(self, 16, &taken[..4]);
            }
            if DEPTH > 5 {
                taken[5] = eight!(self, taken, fold2, 4, 5);
            }
            if DEPTH > 6 {
                taken[6] = eight!(self, taken, fold3, 8, 6);
            }
            if DEPTH > 7 {
                taken[7] = eight!(self, taken, fold4, 16, 7);
            }
            let mut lefts = taken[0].outcome(DEPTH as u32 - 1);
            for (level, taken) in taken.iter().enumerate().take(DEPTH).skip(1) {
                lefts = lefts.or(taken.outcome((DEPTH - 1 - level) as u32));
            }
            lefts.taken_from(((1_u32 << DEPTH) - 1) as u8)
        }
    }
}

macro_rules! folds {
    ($($name:ident from $smaller:ident at $level:literal;)*) => {$(
        /// Folds the outcomes of the `2^taken.len()` nodes from `first` by the outcomes `taken` above them.
        #[inline(always)]
        unsafe fn $name<V: Lanes>(tree: Tree, first: usize, taken: &[V]) -> V {
            // SAFETY: the caller's obligation.
            unsafe {
                let half = 1 << ($level - 1);
                taken[0].select($smaller(tree, first, &taken[1..]), $smaller(tree, first + half, &taken[1..]))
            }
        }
    )*};
}

#[inline(always)]
unsafe fn fold0<V: Lanes>(tree: Tree, first: usize, _taken: &[V]) -> V {
    // SAFETY: the caller's obligation.
    unsafe { tree.left(first) }
}

folds! {
    fold1 from fold0 at 1;
    fold2 from fold1 at 2;
    fold3 from fold2 at 3;
    fold4 from fold3 at 4;
}
