//! AVX-512: all nodes of a tree are tested at once, 64 nodes per instruction.
//!
//! For one row, a byte permutation selects the ranks that the nodes of a tree test, one comparison gives one bit per
//! node, and eight trees then follow their bits to the leaves in the lanes of one register. For many rows, see `lanes`.

use std::arch::x86_64::*;

use super::super::cpu::HasAvx512;
use super::super::outcome::Outcomes;
use super::super::rank::{Block, Column, Count, ROWS, Ranks, RowRanks};
use super::super::slots::{CategoryTable, SlotTable, Stretch};
use super::lanes::{Lanes, Tree};
use super::{GROUP, LINE_DEPTH, Line, Nodes, Positions};

/// Counts with AVX-512. The field proves that the machine has the instructions.
#[derive(Clone, Copy)]
struct Wide(HasAvx512);

impl Count for Wide {
    #[inline(always)]
    fn below(self, block: &Block, value: i32) -> usize {
        // SAFETY: `self` holds the proof that the machine has AVX-512; a block is 64 bytes, aligned to 64.
        unsafe {
            let cuts = _mm512_load_si512(block.0.as_ptr().cast());
            _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(value), cuts).count_ones() as usize
        }
    }

    #[inline(always)]
    fn mark(self, numbers: &[u8; 64], rank: u8, out: &mut [u8; 64]) {
        // SAFETY: `self` holds the proof that the machine has AVX-512; 64 bytes are read and 64 written.
        unsafe {
            let numbers = _mm512_loadu_si512(numbers.as_ptr().cast());
            let is_below = _mm512_cmplt_epu8_mask(numbers, _mm512_set1_epi8(rank.cast_signed()));
            _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_maskz_set1_epi8(is_below, 1));
        }
    }

    #[inline(always)]
    fn spread(self, word: u64, out: &mut [u8; 64]) {
        // SAFETY: `self` holds the proof that the machine has AVX-512; 64 bytes are written.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_maskz_set1_epi8(word, 1)) };
    }
}

/// # Safety
/// The machine has [`super::Isa::Avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(in super::super) unsafe fn fill_slots(
    stretches: &[Stretch],
    slots: &SlotTable,
    row: &[f32],
    out: &mut [i32],
) {
    slots.fill_stretches(stretches, row, out);
}

/// # Safety
/// The machine has [`super::Isa::Avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(in super::super) unsafe fn rank_row(
    has: HasAvx512,
    ranks: &Ranks,
    tables: &[CategoryTable],
    row: &[f32],
    out: &mut RowRanks,
) {
    ranks.fill_row(tables, row, Wide(has), out);
}

/// # Safety
/// The machine has [`super::Isa::Avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(in super::super) unsafe fn fill_outcomes(
    has: HasAvx512,
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
/// The machine has [`super::Isa::Avx512`].
pub(in super::super) unsafe fn find(nodes: Nodes<'_>, slots: usize, ranks: &RowRanks, out: &mut Positions) {
    // SAFETY: the caller's obligation.
    unsafe {
        match slots {
            0..=64 => find_in::<1>(nodes, ranks, out),
            65..=128 => find_in::<2>(nodes, ranks, out),
            _ => find_in::<4>(nodes, ranks, out),
        }
    }
}

#[inline(always)]
unsafe fn find_in<const TABLES: usize>(nodes: Nodes<'_>, ranks: &RowRanks, out: &mut Positions) {
    // SAFETY: the caller's obligation.
    unsafe {
        match nodes.depth {
            3 => walk::<3, TABLES>(nodes, ranks, out),
            4 => walk::<4, TABLES>(nodes, ranks, out),
            5 => walk::<5, TABLES>(nodes, ranks, out),
            6 => walk::<6, TABLES>(nodes, ranks, out),
            7 => walk::<7, TABLES>(nodes, ranks, out),
            _ => walk::<8, TABLES>(nodes, ranks, out),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
unsafe fn walk<const DEPTH: usize, const TABLES: usize>(
    nodes: Nodes<'_>,
    ranks: &RowRanks,
    out: &mut Positions,
) {
    let half = Nodes::lines_per_group(DEPTH) / 2;
    let mut table = [_mm512_setzero_si512(); 4];
    for (table, ranks) in table.iter_mut().zip(ranks.0.as_chunks::<64>().0) {
        // SAFETY: one register of ranks.
        *table = unsafe { _mm512_loadu_si512(ranks.as_ptr().cast()) };
    }
    let (one, low) = (_mm512_set1_epi64(1), _mm512_set1_epi64(63));
    for (group, out) in nodes.lines.chunks_exact(2 * half).zip(out.as_chunks_mut::<GROUP>().0) {
        let (slots, cuts) = group.split_at(half);
        let mut at = one;
        // SAFETY: this function has the instructions.
        let bits = unsafe { outcomes::<DEPTH, TABLES>(&table, slots, cuts, 0) };
        for _ in 0..DEPTH.min(LINE_DEPTH) {
            at = step(at, _mm512_srlv_epi64(bits, at));
        }
        if DEPTH > 6 {
            // SAFETY: as above.
            let bits = unsafe { outcomes::<DEPTH, TABLES>(&table, slots, cuts, 1) };
            at = step(at, _mm512_srlv_epi64(bits, _mm512_and_si512(at, low)));
        }
        if DEPTH > 7 {
            let upper = _mm512_test_epi64_mask(at, _mm512_set1_epi64(64));
            // SAFETY: as above.
            let bits = unsafe {
                _mm512_mask_blend_epi64(
                    upper,
                    outcomes::<DEPTH, TABLES>(&table, slots, cuts, 2),
                    outcomes::<DEPTH, TABLES>(&table, slots, cuts, 3),
                )
            };
            at = step(at, _mm512_srlv_epi64(bits, _mm512_and_si512(at, low)));
        }
        // Removes the bit above the position, which belongs to the root.
        let at = _mm512_and_si512(at, _mm512_set1_epi64((1 << DEPTH) - 1));
        // SAFETY: eight bytes are written to eight bytes.
        unsafe { _mm_storel_epi64(out.as_mut_ptr().cast(), _mm512_cvtepi64_epi8(at)) };
    }
}

/// Computes the position one level below: twice the position, plus the lowest bit of `outcome`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
#[inline]
fn step(at: __m512i, outcome: __m512i) -> __m512i {
    _mm512_add_epi64(_mm512_add_epi64(at, at), _mm512_and_si512(outcome, _mm512_set1_epi64(1)))
}

/// Returns one bit per node, 1 for "right", of the `line`-th line of each of eight trees. For trees smaller than a line
/// it returns only their own bits.
///
/// # Safety
/// The machine has [`super::Isa::Avx512`].
#[inline(always)]
unsafe fn outcomes<const DEPTH: usize, const TABLES: usize>(
    table: &[__m512i; 4],
    slots: &[Line],
    cuts: &[Line],
    line: usize,
) -> __m512i {
    let stride = (slots.len() / GROUP).max(1);
    let mut masks = [0_u64; GROUP];
    for ((mask, slots), cuts) in
        masks.iter_mut().zip(slots[line..].iter().step_by(stride)).zip(cuts[line..].iter().step_by(stride))
    {
        // SAFETY: lines are aligned registers.
        unsafe {
            let slots = _mm512_load_si512(slots.0.as_ptr().cast());
            let ranks = match TABLES {
                1 => _mm512_permutexvar_epi8(slots, table[0]),
                2 => _mm512_permutex2var_epi8(table[0], slots, table[1]),
                _ => _mm512_mask_blend_epi8(
                    _mm512_movepi8_mask(slots),
                    _mm512_permutex2var_epi8(table[0], slots, table[1]),
                    _mm512_permutex2var_epi8(table[2], slots, table[3]),
                ),
            };
            *mask = _mm512_cmplt_epu8_mask(_mm512_load_si512(cuts.0.as_ptr().cast()), ranks);
        }
    }
    let masks = masks.as_ptr();
    // SAFETY: eight words, of which the first 8, 16, 32 or 64 bytes are read.
    unsafe {
        match DEPTH {
            3 => _mm512_cvtepu8_epi64(_mm_loadl_epi64(masks.cast())),
            4 => _mm512_cvtepu16_epi64(_mm_loadu_si128(masks.cast())),
            5 => _mm512_cvtepu32_epi64(_mm256_loadu_si256(masks.cast())),
            _ => _mm512_loadu_si512(masks.cast()),
        }
    }
}

/// # Safety
/// The machine has [`super::Isa::Avx512`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
pub(in super::super) unsafe fn rank_rows(
    has: HasAvx512,
    ranks: &Ranks,
    tables: &[CategoryTable],
    rows: &[f32],
    width: usize,
    out: &mut [Column],
) {
    ranks.fill_rows(tables, rows, width, Wide(has), out);
}

/// Computes the leaf positions of a block of rows.
///
/// # Safety
/// The machine has [`super::Isa::Avx512`], and every slot of the nodes is below the number of columns.
pub(in super::super) unsafe fn positions(
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    out: &mut [u8; ROWS],
) {
    // SAFETY: the caller's obligation.
    unsafe {
        match nodes.depth {
            3 => positions_in::<3>(nodes, tree, columns, out),
            4 => positions_in::<4>(nodes, tree, columns, out),
            5 => positions_in::<5>(nodes, tree, columns, out),
            6 => positions_in::<6>(nodes, tree, columns, out),
            7 => positions_in::<7>(nodes, tree, columns, out),
            _ => positions_in::<8>(nodes, tree, columns, out),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
unsafe fn positions_in<const DEPTH: usize>(
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    out: &mut [u8; ROWS],
) {
    // SAFETY: 64 bytes are written to 64 bytes; the rest is the caller's obligation.
    unsafe {
        let found = block_tree(nodes, tree, columns).positions::<Bytes, DEPTH>();
        _mm512_storeu_si512(out.as_mut_ptr().cast(), found.0);
    }
}

/// Adds each row's leaf of one tree with scalar float32 leaves to its sum.
///
/// # Safety
/// As [`positions`].
pub(in super::super) unsafe fn add(
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    leaves: &[f32],
    sums: &mut [f32; ROWS],
) {
    assert_eq!(leaves.len(), 1 << nodes.depth, "not the leaves of one tree");
    // SAFETY: the caller's obligation.
    unsafe {
        match nodes.depth {
            3 => add_in::<3>(nodes, tree, columns, leaves, sums),
            4 => add_in::<4>(nodes, tree, columns, leaves, sums),
            5 => add_in::<5>(nodes, tree, columns, leaves, sums),
            6 => add_in::<6>(nodes, tree, columns, leaves, sums),
            7 => add_in::<7>(nodes, tree, columns, leaves, sums),
            _ => add_in::<8>(nodes, tree, columns, leaves, sums),
        }
    }
}

/// The leaves of a tree, at most 256, stay in registers. A permutation of floats selects a row's leaf from 32, and the
/// upper bits of the position select from the results.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,bmi1,bmi2,popcnt")]
unsafe fn add_in<const DEPTH: usize>(
    nodes: Nodes<'_>,
    tree: usize,
    columns: &[Column],
    leaves: &[f32],
    sums: &mut [f32; ROWS],
) {
    let leaf = |register: usize| -> __m512 {
        if DEPTH == 3 {
            // SAFETY: the first eight lanes are read.
            return unsafe { _mm512_maskz_loadu_ps(0xff, leaves.as_ptr()) };
        }
        // SAFETY: a tree has 2^DEPTH leaves; `register` counts sixteens of them.
        unsafe { _mm512_loadu_ps(leaves.as_ptr().add(16 * register)) }
    };
    // SAFETY: the caller's obligation.
    let found = unsafe { block_tree(nodes, tree, columns).positions::<Bytes, DEPTH>() };
    let quarters = [
        _mm512_castsi512_si128(found.0),
        _mm512_extracti32x4_epi32::<1>(found.0),
        _mm512_extracti32x4_epi32::<2>(found.0),
        _mm512_extracti32x4_epi32::<3>(found.0),
    ];
    for (quarter, sums) in quarters.into_iter().zip(sums.as_chunks_mut::<16>().0) {
        let at = _mm512_cvtepu8_epi32(quarter);
        let pair = |i: usize| _mm512_permutex2var_ps(leaf(2 * i), at, leaf(2 * i + 1));
        let bit = |bit: i32| _mm512_test_epi32_mask(at, _mm512_set1_epi32(bit));
        let two = |i: usize| _mm512_mask_blend_ps(bit(32), pair(2 * i), pair(2 * i + 1));
        let four = |i: usize| _mm512_mask_blend_ps(bit(64), two(2 * i), two(2 * i + 1));
        let value = match DEPTH {
            3 | 4 => _mm512_permutexvar_ps(at, leaf(0)),
            5 => pair(0),
            6 => two(0),
            7 => four(0),
            _ => _mm512_mask_blend_ps(bit(128), four(0), four(1)),
        };
        // SAFETY: sixteen sums are read and written.
        unsafe {
            let sum = _mm512_add_ps(_mm512_loadu_ps(sums.as_ptr()), value);
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }
}

fn block_tree(nodes: Nodes<'_>, tree: usize, columns: &[Column]) -> Tree {
    let (slots, cuts) = nodes.tree(tree);
    Tree { slots: slots.as_ptr(), cuts: cuts.as_ptr(), columns: columns.as_ptr(), first_row: 0 }
}

#[derive(Clone, Copy)]
struct Bytes(__m512i);

impl Lanes for Bytes {
    /// The rounded mean of 255 - rank and cut is at least 128 if and only if rank <= cut.
    #[inline(always)]
    unsafe fn left(column: *const u8, cut: u8) -> Self {
        // SAFETY: the caller's obligation.
        unsafe {
            Self(_mm512_avg_epu8(_mm512_load_si512(column.cast()), _mm512_set1_epi8(cut.cast_signed())))
        }
    }

    #[inline(always)]
    unsafe fn select(self, yes: Self, no: Self) -> Self {
        // SAFETY: the caller's obligation. (0xca selects, bit by bit, the second or the third by the first.)
        unsafe { Self(_mm512_ternarylogic_epi64::<0xca>(self.0, yes.0, no.0)) }
    }

    #[inline(always)]
    unsafe fn outcome(self, bit: u32) -> Self {
        // SAFETY: the caller's obligation.
        unsafe {
            let top = _mm512_and_si512(self.0, _mm512_set1_epi8(i8::MIN));
            Self(_mm512_srl_epi16(top, _mm_cvtsi32_si128((7 - bit).cast_signed())))
        }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { Self(_mm512_or_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn taken_from(self, mask: u8) -> Self {
        // SAFETY: the caller's obligation.
        unsafe { Self(_mm512_andnot_si512(self.0, _mm512_set1_epi8(mask.cast_signed()))) }
    }
}
