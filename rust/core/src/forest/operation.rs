//! What a program does: the operation of a split, and the branches of trees that are too large for operations alone.

/// One split: `out = ranks > cut ? right : left` in every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Operation {
    /// 255 minus the cut, four times, which some instruction sets load faster than a byte.
    pub(super) cut: u32,
    /// The column that holds 255 minus the ranks.
    pub(super) ranks: u16,
    pub(super) left: u16,
    pub(super) right: u16,
    pub(super) out: u16,
}

/// A node of a tree that is too large for a program, from whose exits rows are walked.
///
/// The upper 32 bits are the place of its left child, which the right one follows. The lower 8 bits are 255 minus the cut,
/// which is never 0, and the 24 bits between them are the column of ranks, or with [`Branch::TABLE`] a column of a category
/// table. In a leaf the lower 8 bits are 0, a test that goes left, and it is its own left child; the 24 bits are the leaf's
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Branch(pub(super) u64);

impl Branch {
    /// A bit of the middle.
    pub(super) const TABLE: u32 = 1 << 23;

    pub(super) fn new(left: u32, middle: u32, low: u8) -> Self {
        Self(u64::from(left) << 32 | u64::from(middle) << 8 | u64::from(low))
    }

    pub(super) fn left(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The column, or the number of a leaf.
    pub(super) fn middle(self) -> usize {
        (self.0 as u32 >> 8) as usize
    }

    pub(super) fn low(self) -> u8 {
        self.0 as u8
    }
}
