//! AVX2: searches, and blocks of rows in registers of 32 bytes. A single row uses the walk of `portable`, compiled for
//! these instructions.

use std::arch::x86_64::*;

use super::super::cpu::HasAvx2;
use super::super::outcome::Outcomes;
use super::super::rank::{Block, Column, Count, ROWS, Ranks, RowRanks};
use super::super::slots::{CategoryTable, SlotTable, Stretch};
use super::Nodes;
use super::lanes::{Lanes, Tree};

/// Counts with AVX2. The field proves that the machine has the instructions.
#[derive(Clone, Copy)]
struct Wide(HasAvx2);

impl Count for Wide {
    #[inline(always)]
    fn below(self, block: &Block, value: i32) -> usize {
        // SAFETY: `self` holds the proof that the machine has AVX2; a block is 64 bytes, aligned to 64.
        unsafe {
            let value = _mm256_set1_epi32(value);
            let half =
                |at: usize| _mm256_cmpgt_epi32(value, _mm256_load_si256(block.0.as_ptr().add(at).cast()));
            let both = _mm256_packs_epi32(half(0), half(8));
            (_mm256_movemask_epi8(both).count_ones() / 2) as usize
        }
    }

    #[inline(always)]
    fn spread(self, word: u64, out: &mut [u8; 64]) {
        // SAFETY: `self` holds the proof that the machine has AVX2; 32 bytes are written to 32 bytes.
        unsafe {
            let own = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            // Lane i reads byte i / 8 of a half of the word.
            let bytes =
                _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            for (out, half) in out.as_chunks_mut::<32>().0.iter_mut().zip([word as u32, (word >> 32) as u32])
            {
                let all = _mm256_shuffle_epi8(_mm256_set1_epi32(half.cast_signed()), bytes);
                let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(all, own), own);
                let ones = _mm256_and_si256(is_set, _mm256_set1_epi8(1));
                _mm256_storeu_si256(out.as_mut_ptr().cast(), ones);
            }
        }
    }
}

/// # Safety
/// The machine has [`super::Isa::Avx2`].
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(in super::super) unsafe fn fill_slots(
    stretches: &[Stretch],
    slots: &SlotTable,
    row: &[f32],
    out: &mut [i32],
) {
    slots.fill_stretches(stretches, row, out);
}

/// # Safety
/// The machine has [`super::Isa::Avx2`].
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(in super::super) unsafe fn rank_row(
    has: HasAvx2,
    ranks: &Ranks,
    tables: &[CategoryTable],
    row: &[f32],
    out: &mut RowRanks,
) {
    ranks.fill_row(tables, row, Wide(has), out);
}

/// # Safety
/// The machine has [`super::Isa::Avx2`].
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(in super::super) unsafe fn fill_outcomes(
    has: HasAvx2,
    outcomes: &Outcomes,
    ranks: &Ranks,
    tables: &[CategoryTable],
    row: &[f32],
    known: &RowRanks,
    out: &mut [u8],
) {
    outcomes.fill(ranks, tables, row, known, Wide(has), out);
}

/// # Safety
/// The machine has [`super::Isa::Avx2`].
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
pub(in super::super) unsafe fn rank_rows(
    has: HasAvx2,
    ranks: &Ranks,
    tables: &[CategoryTable],
    rows: &[f32],
    width: usize,
    out: &mut [Column],
) {
    ranks.fill_rows(tables, rows, width, Wide(has), out);
}

/// Computes the leaf positions of the first `rows` rows of a block, and of the rows that complete the last register.
///
/// # Safety
/// The machine has [`super::Isa::Avx2`], and every slot of the nodes is below the number of columns.
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

#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
unsafe fn positions_in<const DEPTH: usize>(
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    rows: usize,
    out: &mut [u8; ROWS],
) {
    let (slots, cuts) = nodes.tree(tree);
    for (half, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        if half * 32 < rows {
            let tree = Tree {
                slots: slots.as_ptr(),
                cuts: cuts.as_ptr(),
                columns: columns.as_ptr(),
                first_row: half * 32,
            };
            // SAFETY: 32 of 64 rows; the rest is the caller's obligation.
            unsafe {
                _mm256_storeu_si256(out.as_mut_ptr().cast(), tree.positions::<Bytes, DEPTH>().0);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Bytes(__m256i);

impl Lanes for Bytes {
    /// The rounded mean of 255 - rank and cut is at least 128 if and only if rank <= cut.
    #[inline(always)]
    unsafe fn left(column: *const u8, cut: u8) -> Self {
        // SAFETY: the caller's obligation.
        unsafe {
            Self(_mm256_avg_epu8(_mm256_loadu_si256(column.cast()), _mm256_set1_epi8(cut.cast_signed())))
        }
    }

    #[inline(always)]
    unsafe fn select(self, yes: Self, no: Self) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { Self(_mm256_blendv_epi8(no.0, yes.0, self.0)) }
    }

    #[inline(always)]
    unsafe fn outcome(self, bit: u32) -> Self {
        // SAFETY: the caller's obligation.
        unsafe {
            let top = _mm256_and_si256(self.0, _mm256_set1_epi8(i8::MIN));
            Self(_mm256_srl_epi16(top, _mm_cvtsi32_si128((7 - bit).cast_signed())))
        }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { Self(_mm256_or_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn taken_from(self, mask: u8) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { Self(_mm256_andnot_si256(self.0, _mm256_set1_epi8(mask.cast_signed()))) }
    }
}
