//! The inner loops of programs (see [`super::super::program`]), one implementation per instruction set.
//!
//! The unsafe code relies on these facts:
//!
//! * `Programs` writes only operands below [`Programs::work_len`], and the work space has that many columns.
//! * The result of a whole tree's program is one of the tree's leaf numbers.
//! * A branch leads to branches of its own tree; its test reads a column of the work space or of the category tables.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
mod rank512;

use super::super::bits::Columns;
use super::super::cpu::Detected;
use super::super::layout::Layout;
use super::super::operation::{Branch, Operation};
use super::super::rank::{Column, ROWS, Ranks};

/// Number of rows whose walks advance together.
const TOGETHER: usize = 8;

/// Executes the operations of a program.
///
/// # Safety
/// Every operand is below `work.len()`.
pub(in super::super) unsafe fn execute(isa: Detected, operations: &[Operation], work: &mut [Column]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the proof in `isa` shows that the machine has the instructions; the operands are the caller's
        // obligation.
        Detected::Avx512(_) => unsafe { avx512::execute(operations, work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Detected::Avx2(_) => unsafe { avx2::execute(operations, work) },
        _ => portable::execute(operations, work),
    }
}

/// Writes the columns of category tables as columns of inverted ranks: 0 where a row's bit is set, else 255.
pub(in super::super) fn expand(isa: Detected, tables: &[u64], columns: &[u32], out: &mut [Column]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions, as the proof in `isa` shows.
        Detected::Avx512(_) => unsafe { avx512::expand(tables, columns, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Detected::Avx2(_) => unsafe { avx2::expand(tables, columns, out) },
        _ => portable::expand(tables, columns, out),
    }
}

/// Computes the columns of category tables of a block of rows.
pub(in super::super) fn fill_tables(
    isa: Detected,
    columns: Columns,
    layout: &Layout,
    rows: &[f32],
    out: &mut [u64],
) {
    let (tables, width) = (&layout.slots.tables, layout.num_features);
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions, as the proof in `isa` shows.
        Detected::Avx512(_) => unsafe { avx512::fill_tables(columns, tables, rows, width, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Detected::Avx2(_) => unsafe { avx2::fill_tables(columns, tables, rows, width, out) },
        _ => columns.fill_rows(tables, rows, width, out),
    }
}

/// Adds each row's leaf of a whole tree to its sum.
///
/// # Safety
/// Every number in `found` is below `leaves.len()`.
pub(in super::super) unsafe fn add_f32(
    isa: Detected,
    found: &Column,
    leaves: &[f32],
    sums: &mut [f32; ROWS],
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the proof in `isa` shows that the machine has the instructions; the rest is the caller's obligation.
        Detected::Avx512(_) => unsafe { avx512::add_f32(found, leaves, sums) },
        _ => portable::add(found, leaves, sums),
    }
}

/// Does what [`add_f32`] does for float64.
///
/// # Safety
/// As [`add_f32`].
pub(in super::super) unsafe fn add_f64(
    isa: Detected,
    found: &Column,
    leaves: &[f64],
    sums: &mut [f64; ROWS],
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the proof in `isa` shows that the machine has the instructions; the rest is the caller's obligation.
        Detected::Avx512(_) => unsafe { avx512::add_f64(found, leaves, sums) },
        _ => portable::add(found, leaves, sums),
    }
}

/// Ranks a block of rows as [`super::rank_rows`] does, in the lanes of registers if the instruction set has a kernel.
pub(in super::super) fn rank_rows(
    isa: Detected,
    ranks: &Ranks,
    layout: &Layout,
    rows: &[f32],
    out: &mut [Column],
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Detected::Avx512(_) => {
            // SAFETY: the machine has the instructions, as the proof in `isa` shows.
            unsafe { rank512::rank_rows(ranks, rows, layout.num_features, out) };
            ranks.fill_tables(&layout.slots.tables, rows, layout.num_features, out);
        }
        _ => super::rank_rows(isa, ranks, layout, rows, out),
    }
}

/// Walks the first `rows` rows of a block from their branches `at` to leaves, and writes the leaves' numbers.
///
/// # Safety
/// `at` are places of `branches`. The branches lead to one another and test columns of `work` and `tables`.
pub(in super::super) unsafe fn follow(
    branches: &[Branch],
    work: &[Column],
    tables: &[u64],
    rows: usize,
    at: &mut [u32; ROWS],
) {
    // SAFETY: the caller's obligation. Without tables no branch tests one.
    unsafe {
        if tables.is_empty() {
            follow_in::<false>(branches, work, tables, rows, at);
        } else {
            follow_in::<true>(branches, work, tables, rows, at);
        }
    }
}

#[inline(always)]
unsafe fn follow_in<const TABLES: bool>(
    branches: &[Branch],
    work: &[Column],
    tables: &[u64],
    rows: usize,
    at: &mut [u32; ROWS],
) {
    let columns: *const u8 = work.as_ptr().cast();
    for (group, out) in at.as_chunks_mut::<TOGETHER>().0.iter_mut().enumerate() {
        let first = TOGETHER * group;
        if first >= rows {
            return;
        }
        let mut at = *out;
        loop {
            let mut all = 0;
            for (lane, at) in at.iter_mut().enumerate() {
                debug_assert!((*at as usize) < branches.len());
                // SAFETY: the caller's obligation.
                let branch = unsafe { *branches.get_unchecked(*at as usize) };
                let row = first + lane;
                let right = if TABLES && branch.low() != 0 && branch.middle() as u32 & Branch::TABLE != 0 {
                    (tables[branch.middle() ^ Branch::TABLE as usize] >> row & 1) as u32
                } else {
                    debug_assert!(branch.middle() < work.len());
                    // SAFETY: the caller's obligation; `row` is below the number of rows of a column.
                    let rank = unsafe { *columns.add(ROWS * branch.middle() + row) };
                    u32::from(rank < branch.low())
                };
                all |= branch.low();
                *at = branch.left() + right;
            }
            if all == 0 {
                break;
            }
        }
        for (out, at) in out.iter_mut().zip(at) {
            *out = branches[at as usize].middle() as u32;
        }
    }
}
