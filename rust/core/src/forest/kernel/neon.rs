//! NEON, which every AArch64 has: searches, and blocks of rows in pairs of registers of 16 bytes.
//!
//! A single row is walked. Three loads per level are faster than permuting whole trees, because no instruction turns a
//! comparison into bits, and a permutation of 64 bytes takes as long as several loads. With 31 general registers, all
//! trees of a group are walked at once; `portable` walks half a group.

use std::arch::aarch64::*;

use super::super::outcome::Outcomes;
use super::super::rank::{Block, Column, Count, ROWS, Ranks, RowRanks};
use super::super::slots::CategoryTable;
use super::lanes::{Lanes, Tree};
use super::portable::find_at_once;
use super::{GROUP, Nodes, Positions};

/// Number of rows in a pair of registers.
const PAIR: usize = 32;

#[derive(Clone, Copy)]
struct Wide;

impl Count for Wide {
    #[inline(always)]
    fn below(self, block: &Block, value: i32) -> usize {
        let cuts = block.0.as_ptr();
        // SAFETY: a block is four registers, and AArch64 has NEON.
        unsafe {
            let value = vdupq_n_s32(value);
            // A lane is -1 (all bits set) if the cut is below the value.
            let quarter = |at: usize| vreinterpretq_s32_u32(vcgtq_s32(value, vld1q_s32(cuts.add(at))));
            let all = vaddq_s32(vaddq_s32(quarter(0), quarter(4)), vaddq_s32(quarter(8), quarter(12)));
            -vaddvq_s32(all) as usize
        }
    }
}

pub(in super::super) fn rank_row(ranks: &Ranks, tables: &[CategoryTable], row: &[f32], out: &mut RowRanks) {
    ranks.fill_row(tables, row, Wide, out);
}

pub(in super::super) fn fill_outcomes(
    outcomes: &Outcomes,
    ranks: &Ranks,
    tables: &[CategoryTable],
    row: &[f32],
    known: &RowRanks,
    out: &mut [u8],
) {
    outcomes.fill(ranks, tables, row, known, Wide, out);
}

pub(in super::super) fn rank_rows(
    ranks: &Ranks,
    tables: &[CategoryTable],
    rows: &[f32],
    width: usize,
    out: &mut [Column],
) {
    ranks.fill_rows(tables, rows, width, Wide, out);
}

pub(in super::super) fn find(nodes: Nodes<'_>, ranks: &RowRanks, out: &mut Positions) {
    find_at_once::<GROUP>(nodes, ranks, out);
}

/// Computes the leaf positions of the first `rows` rows of a block, and of the rows that complete the last pair.
///
/// # Safety
/// Every slot of the nodes is below the number of columns.
pub(in super::super) unsafe fn positions(
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    rows: usize,
    out: &mut [u8; ROWS],
) {
    // SAFETY: the caller's obligation.
    unsafe {
        match nodes.depth {
            3 => positions_in::<3>(nodes, tree, columns, rows, out),
            4 => positions_in::<4>(nodes, tree, columns, rows, out),
            5 => positions_in::<5>(nodes, tree, columns, rows, out),
            6 => positions_in::<6>(nodes, tree, columns, rows, out),
            7 => positions_in::<7>(nodes, tree, columns, rows, out),
            _ => positions_in::<8>(nodes, tree, columns, rows, out),
        }
    }
}

unsafe fn positions_in<const DEPTH: usize>(
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    rows: usize,
    out: &mut [u8; ROWS],
) {
    let (slots, cuts) = nodes.tree(tree);
    for (pair, out) in out.as_chunks_mut::<PAIR>().0.iter_mut().enumerate() {
        if pair * PAIR < rows {
            let tree = Tree {
                slots: slots.as_ptr(),
                cuts: cuts.as_ptr(),
                columns: columns.as_ptr(),
                first_row: pair * PAIR,
            };
            // SAFETY: 32 of 64 rows, written to 32 bytes; the rest is the caller's obligation.
            unsafe {
                let Bytes(low, high) = tree.positions::<Bytes, DEPTH>();
                vst1q_u8(out.as_mut_ptr(), low);
                vst1q_u8(out.as_mut_ptr().add(16), high);
            }
        }
    }
}

/// Two registers of outcomes. All bits of a byte are ones or zeros.
#[derive(Clone, Copy)]
struct Bytes(uint8x16_t, uint8x16_t);

impl Lanes for Bytes {
    /// rank <= cut if and only if 255 - rank >= 255 - cut.
    #[inline(always)]
    unsafe fn left(column: *const u8, cut: u8) -> Self {
        // SAFETY: the caller's obligation.
        unsafe {
            let cut = vdupq_n_u8(!cut);
            Self(vcgeq_u8(vld1q_u8(column), cut), vcgeq_u8(vld1q_u8(column.add(16)), cut))
        }
    }

    #[inline(always)]
    unsafe fn select(self, yes: Self, no: Self) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { Self(vbslq_u8(self.0, yes.0, no.0), vbslq_u8(self.1, yes.1, no.1)) }
    }

    #[inline(always)]
    unsafe fn outcome(self, bit: u32) -> Self {
        // SAFETY: the caller's obligation.
        unsafe {
            let bit = vdupq_n_u8(1 << bit);
            Self(vandq_u8(self.0, bit), vandq_u8(self.1, bit))
        }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { Self(vorrq_u8(self.0, other.0), vorrq_u8(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn taken_from(self, mask: u8) -> Self {
        // SAFETY: the caller's obligation.
        unsafe {
            let mask = vdupq_n_u8(mask);
            Self(vbicq_u8(mask, self.0), vbicq_u8(mask, self.1))
        }
    }
}
