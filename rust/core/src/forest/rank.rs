//! Ranks of values among a forest's own thresholds. With ranks, both operands of a test are bytes.
//!
//! The sorted thresholds of one feature are its *cuts*. The rank of a value is the number of cuts that are not above
//! it. For the i-th cut `value < cut` is equivalent to `rank <= i`, so nothing is rounded. Models trained on histograms
//! have at most 256 cuts per feature, so ranks fit in bytes. A byte slot serves 255 cuts under one rule for missing
//! values; a feature with more cuts has several slots, each for its own window of the ranks.
//!
//! A rank is found by a search in blocks of 16 cuts, with a fixed number of comparisons and without branches.
//!
//! Ranks are *narrow* if all byte slots, with one for each column of a category table, have numbers below 256. The
//! kernels of complete trees need narrow ranks. Other forests have *wide* ranks: more byte slots, and none for columns,
//! which [`super::bits`] provides.

use std::collections::BTreeMap;

use super::key;
use super::layout::{Layout, PackedNode};
use super::model::{NanRule, ZeroRule};
use super::slots::CategoryTable;

/// Greatest number of byte slots of narrow ranks, because their numbers are bytes too.
pub(super) const MAX_SLOTS: usize = 256;
/// Greatest number of byte slots of wide ranks.
pub(super) const MOST_SLOTS: usize = 1 << 14;
/// Number of cuts that one byte slot serves.
const WINDOW: usize = 255;
/// Number of rows in a block.
pub(super) const ROWS: usize = 64;
/// Number of levels of blocks. 16^4 cuts are more than `MAX_SLOTS` windows.
const LEVELS: usize = 4;

/// The ranks of one row, by byte slot.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct RowRanks(pub(super) [u8; MAX_SLOTS]);

/// 255 minus the ranks of [`ROWS`] rows in one byte slot.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Column(pub(super) [u8; ROWS]);

/// 16 ascending numbers, each of which is a cut minus 1. Unused entries hold the largest number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub(super) struct Block(pub(super) [i32; 16]);

impl Block {
    const EMPTY: Self = Self([i32::MAX; 16]);
}

/// The vector instructions of ranks and outcomes. Each instruction set implements it.
pub(super) trait Count: Copy {
    /// Counts the numbers of a block that are below a value.
    fn below(self, block: &Block, value: i32) -> usize;

    /// Writes 1 where a number is below a rank, otherwise 0.
    #[inline(always)]
    fn mark(self, numbers: &[u8; 64], rank: u8, out: &mut [u8; 64]) {
        for (out, &number) in out.iter_mut().zip(numbers) {
            *out = u8::from(number < rank);
        }
    }

    /// Writes a byte, 0 or 1, for each bit of a word.
    #[inline(always)]
    fn spread(self, word: u64, out: &mut [u8; 64]) {
        super::bits::spread(word, out);
    }
}

/// Counts with the instructions that the target guarantees.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Count for Plain {
    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    fn below(self, block: &Block, value: i32) -> usize {
        block.0.iter().map(|&cut| u32::from(value > cut)).sum::<u32>() as usize
    }

    /// Uses SSE2, which every x86-64 has. The code that the compiler generates for the portable sum takes four times as
    /// long.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    #[expect(unsafe_code, reason = "loads into registers")]
    fn below(self, block: &Block, value: i32) -> usize {
        use std::arch::x86_64::*;
        // SAFETY: every x86-64 has SSE2, and a block is 64 bytes, aligned to 64, which are four registers.
        unsafe {
            let value = _mm_set1_epi32(value);
            let above = |at: usize| _mm_cmpgt_epi32(value, _mm_load_si128(block.0.as_ptr().add(at).cast()));
            let low = _mm_packs_epi32(above(0), above(4));
            let high = _mm_packs_epi32(above(8), above(12));
            // Cuts ascend, so the set bits are the lowest ones.
            _mm_movemask_epi8(_mm_packs_epi16(low, high)).trailing_ones() as usize
        }
    }
}

/// The cuts of one feature and the byte slots that are filled from its rank.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) feature: u32,
    /// First block of each level, from the root; the last `levels` are used.
    first_block: [u32; LEVELS],
    levels: u8,
    pub(super) slots: u32,
    pub(super) first_slot: u32,
    /// First of this feature's numbers in [`Ranks::sorted`], and the logarithm of the size of their buckets.
    pub(super) first_sorted: u32,
    pub(super) shift: u8,
}

/// Number of buckets into which the sorted numbers of a feature are divided for searches in the lanes of registers.
pub(super) const BUCKETS: usize = 32;

/// The computation of a byte slot from its feature's rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct ByteSlot {
    /// Rank at which its window starts.
    pub(super) start: i32,
    pub(super) nan: u8,
    /// The rank for values that count as zero; `None` if zero is treated like any other number.
    pub(super) zero: Option<u8>,
    /// Number of cuts of its window.
    pub(super) cuts: u8,
}

impl ByteSlot {
    #[inline(always)]
    fn rank(self, rank: i32, is_nan: bool, is_zero: bool) -> u8 {
        let rank = (rank - self.start).clamp(0, 255) as u8;
        let rank = match self.zero {
            Some(zero) if is_zero => zero,
            _ => rank,
        };
        if is_nan { self.nan } else { rank }
    }
}

/// The computation of ranks from rows.
#[derive(Debug)]
pub(super) struct Ranks {
    blocks: Vec<Block>,
    pub(super) searches: Vec<Search>,
    /// For each feature the last number of each bucket, and then all numbers if a bucket has several: cuts minus 1,
    /// ascending, and filled up with the largest number, so that the very last one is the largest number.
    pub(super) sorted: Vec<i32>,
    pub(super) slots: Vec<ByteSlot>,
    /// The first byte slot of each category table of the layout. Empty if the ranks are wide.
    first_columns: Vec<u32>,
    len: usize,
    narrow: bool,
}

impl Ranks {
    /// Number of byte slots.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_narrow(&self) -> bool {
        self.narrow
    }

    /// Number of cuts of each byte slot, in their order. Columns have one.
    pub(super) fn cuts(&self) -> impl Iterator<Item = u8> {
        let numeric = self.slots.iter().map(|slot| slot.cuts);
        numeric.chain(std::iter::repeat_n(1, self.len - self.slots.len()))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Block>() * self.blocks.capacity()
            + size_of::<i32>() * self.sorted.capacity()
            + size_of::<Search>() * self.searches.capacity()
            + size_of::<ByteSlot>() * self.slots.capacity()
            + size_of::<u32>() * self.first_columns.capacity()
    }

    /// Passes the rank of one row in each numeric byte slot to `found`, in the order of the slots.
    #[inline(always)]
    pub(super) fn each<C: Count>(&self, row: &[f32], count: C, mut found: impl FnMut(usize, u8)) {
        for search in &self.searches {
            let bits = row[search.feature as usize].to_bits();
            let rank = self.rank(search, key::of_bits(bits), count) as i32;
            let first = search.first_slot as usize;
            let slots = &self.slots[first..first + search.slots as usize];
            for (at, slot) in slots.iter().enumerate() {
                found(first + at, slot.rank(rank, key::is_nan(bits), key::is_zero(bits)));
            }
        }
    }

    /// Computes the ranks of one row for every byte slot. The ranks are narrow.
    #[inline(always)]
    pub(super) fn fill_row<C: Count>(
        &self,
        tables: &[CategoryTable],
        row: &[f32],
        count: C,
        ranks: &mut RowRanks,
    ) {
        for search in &self.searches {
            let bits = row[search.feature as usize].to_bits();
            let rank = self.rank(search, key::of_bits(bits), count) as i32;
            let first = search.first_slot as usize;
            let slots = &self.slots[first..first + search.slots as usize];
            for (out, slot) in ranks.0[first..].iter_mut().zip(slots) {
                *out = slot.rank(rank, key::is_nan(bits), key::is_zero(bits));
            }
        }
        for (table, &first) in tables.iter().zip(&self.first_columns) {
            let out = &mut ranks.0[first as usize..first as usize + table.columns];
            table.fill(row[table.feature as usize], out);
        }
    }

    /// Computes 255 minus the ranks of up to [`ROWS`] rows for every byte slot. Lanes without a row are not changed.
    #[inline(always)]
    pub(super) fn fill_rows<C: Count>(
        &self,
        tables: &[CategoryTable],
        rows: &[f32],
        width: usize,
        count: C,
        columns: &mut [Column],
    ) {
        let mut found = [(0_i32, false, false); ROWS];
        for search in &self.searches {
            for (row, found) in rows.chunks_exact(width).zip(&mut found) {
                let bits = row[search.feature as usize].to_bits();
                let rank = self.rank(search, key::of_bits(bits), count) as i32;
                *found = (rank, key::is_nan(bits), key::is_zero(bits));
            }
            let first = search.first_slot as usize;
            let slots = &self.slots[first..first + search.slots as usize];
            for (column, slot) in columns[first..].iter_mut().zip(slots) {
                for (out, &(rank, is_nan, is_zero)) in column.0.iter_mut().zip(&found) {
                    *out = 255 - slot.rank(rank, is_nan, is_zero);
                }
            }
        }
        self.fill_tables(tables, rows, width, columns);
    }

    /// Computes the columns of category tables that have byte slots.
    #[inline(always)]
    pub(super) fn fill_tables(
        &self,
        tables: &[CategoryTable],
        rows: &[f32],
        width: usize,
        columns: &mut [Column],
    ) {
        let mut bits = [0; MAX_SLOTS];
        for (table, &first) in tables.iter().zip(&self.first_columns) {
            let columns = &mut columns[first as usize..first as usize + table.columns];
            for (lane, row) in rows.chunks_exact(width).take(ROWS).enumerate() {
                table.fill(row[table.feature as usize], &mut bits[..table.columns]);
                for (column, bit) in columns.iter_mut().zip(&bits) {
                    column.0[lane] = 255 - bit;
                }
            }
        }
    }

    /// Number of cuts that are not above `value`.
    #[inline(always)]
    fn rank<C: Count>(&self, search: &Search, value: i32, count: C) -> usize {
        let mut at = 0;
        for &first in &search.first_block[LEVELS - usize::from(search.levels)..] {
            at = 16 * at + count.below(&self.blocks[first as usize + at], value);
        }
        at
    }
}

/// Builds [`Ranks`] and translates tests.
pub(super) struct Ranker {
    ranks: Ranks,
    /// For each slot of the layout, without the sentinel, the range of its feature's cuts and its first byte slot.
    places: Vec<Place>,
    cuts: Vec<i32>,
    /// Number of the layout's numeric slots.
    numeric: usize,
}

/// A test of a node in terms of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tested {
    /// It goes right if the rank in a byte slot is above a cut.
    Rank {
        /// The byte slot.
        slot: u32,
        /// Number of the cut in the slot's window.
        cut: u8,
    },
    /// It goes right if a column of a category table is 1. Columns are counted over all tables, each of which begins at
    /// a multiple of 64.
    Column(u32),
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    first_cut: u32,
    cuts: u32,
    /// First byte slot. The slot of window w is this plus w.
    first: u32,
}

impl Ranker {
    /// Returns `None` if the forest would need more than [`MOST_SLOTS`] byte slots.
    /// `narrow` states whether ranks may be narrow.
    pub(super) fn new(layout: &Layout, narrow: bool) -> Option<Self> {
        let numeric = &layout.slots.numeric;
        let columns: usize = layout.slots.tables.iter().map(|table| table.columns).sum();
        if numeric.len() > MOST_SLOTS {
            return None;
        }
        // Slots of one feature under different rules share one search.
        let mut features: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (i, slot) in numeric.iter().enumerate() {
            features.entry(slot.feature).or_default().push(i);
        }
        let mut feature_of = vec![0; numeric.len()];
        for (f, members) in features.values().enumerate() {
            for &slot in members {
                feature_of[slot] = f;
            }
        }
        let mut cuts: Vec<Vec<i32>> = vec![Vec::new(); features.len()];
        for node in layout.nodes.iter().filter(|node| !node.is_leaf()) {
            if let Some(&f) = feature_of.get(node.slot as usize - 1) {
                cuts[f].push(node.key);
            }
        }
        let mut ranks = Ranks {
            blocks: Vec::new(),
            searches: Vec::with_capacity(features.len()),
            sorted: Vec::new(),
            slots: Vec::new(),
            first_columns: Vec::new(),
            len: 0,
            narrow: true,
        };
        let mut places = vec![Place::default(); numeric.len() + columns];
        let mut all_cuts = Vec::new();
        for ((&feature, members), mut cuts) in features.iter().zip(cuts) {
            cuts.sort_unstable();
            cuts.dedup();
            let windows = cuts.len().div_ceil(WINDOW).max(1);
            let first_slot = ranks.slots.len() as u32;
            if first_slot as usize + windows * members.len() > MOST_SLOTS {
                return None;
            }
            let zero = cuts.partition_point(|&cut| cut <= 0) as i32;
            for &slot in members {
                places[slot] = Place {
                    first_cut: all_cuts.len() as u32,
                    cuts: cuts.len() as u32,
                    first: ranks.slots.len() as u32,
                };
                for window in 0..windows {
                    let start = (window * WINDOW) as i32;
                    let zero = (zero - start).clamp(0, 255) as u8;
                    let nan = match numeric[slot].nan {
                        NanRule::Left => 0,
                        NanRule::Right => 255,
                        NanRule::Zero => zero,
                    };
                    let zero = match numeric[slot].zero {
                        ZeroRule::Keep => None,
                        ZeroRule::Flush => Some(zero),
                        ZeroRule::Missing => Some(nan),
                    };
                    let cuts = (cuts.len() - window * WINDOW).min(WINDOW) as u8;
                    ranks.slots.push(ByteSlot { start, nan, zero, cuts });
                }
            }
            let slots = ranks.slots.len() as u32 - first_slot;
            let (first_block, levels) = blocks(&cuts, &mut ranks.blocks);
            let (first_sorted, shift) = sorted(&cuts, &mut ranks.sorted);
            let search = Search { feature, first_block, levels, slots, first_slot, first_sorted, shift };
            ranks.searches.push(search);
            all_cuts.append(&mut cuts);
        }
        ranks.len = ranks.slots.len();
        ranks.narrow = narrow && ranks.len + columns <= MAX_SLOTS;
        let mut slot = numeric.len();
        let mut column = 0;
        for table in &layout.slots.tables {
            if ranks.narrow {
                ranks.first_columns.push(ranks.len as u32);
            }
            let first = if ranks.narrow { ranks.len } else { column };
            for (place, at) in places[slot..slot + table.columns].iter_mut().zip(first..) {
                place.first = at as u32;
            }
            slot += table.columns;
            column += 64 * CategoryTable::words(table.columns);
            if ranks.narrow {
                ranks.len += table.columns;
            }
        }
        // Positions without a test read slot 0, so there is at least one slot, even if no tree has a test.
        ranks.len = ranks.len.max(1);
        ranks.blocks.shrink_to_fit();
        ranks.slots.shrink_to_fit();
        ranks.sorted.shrink_to_fit();
        Some(Self { ranks, places, cuts: all_cuts, numeric: numeric.len() })
    }

    pub(super) fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Returns the test of a split. It fails, and the walk goes right, as [`Tested`] says.
    pub(super) fn test(&self, node: PackedNode) -> Tested {
        let slot = node.slot as usize - 1;
        let place = self.places[slot];
        if slot >= self.numeric && !self.ranks.narrow {
            return Tested::Column(place.first);
        }
        let first = place.first_cut as usize;
        let cuts = &self.cuts[first..first + place.cuts as usize];
        // A categorical slot has no cuts. Its rank is 1 if the test fails.
        let cut = cuts.partition_point(|&cut| cut < node.key);
        Tested::Rank { slot: place.first + (cut / WINDOW) as u32, cut: (cut % WINDOW) as u8 }
    }

    pub(super) fn finish(self) -> Ranks {
        self.ranks
    }
}

/// Appends the levels of one feature's search. The last number of each child but the very last is a pivot of its
/// parent, so the search for any value stays inside the blocks.
fn blocks(cuts: &[i32], blocks: &mut Vec<Block>) -> ([u32; LEVELS], u8) {
    // `value >= cut` is `value > cut - 1`. No cut is the smallest integer, so this does not overflow.
    let mut level: Vec<i32> = cuts.iter().map(|&cut| cut - 1).collect();
    let mut levels: Vec<Vec<Block>> = Vec::new();
    loop {
        let own: Vec<Block> = level
            .chunks(16)
            .map(|numbers| {
                let mut block = Block::EMPTY;
                block.0[..numbers.len()].copy_from_slice(numbers);
                block
            })
            .collect();
        let last = own.len() <= 1;
        level = own.iter().map(|block| block.0[15]).collect();
        level.pop();
        levels.push(if own.is_empty() { vec![Block::EMPTY] } else { own });
        if last {
            break;
        }
    }
    let mut first = [0; LEVELS];
    let count = levels.len();
    for (level, own) in levels.into_iter().rev().enumerate() {
        first[LEVELS - count + level] = blocks.len() as u32;
        blocks.extend(own);
    }
    (first, count as u8)
}

/// Appends the numbers of one feature for searches in lanes. Returns the first and the logarithm of a bucket's size.
fn sorted(cuts: &[i32], all: &mut Vec<i32>) -> (u32, u8) {
    let bucket = (cuts.len() / BUCKETS + 1).next_power_of_two();
    let mut numbers: Vec<i32> = cuts.iter().map(|&cut| cut - 1).collect();
    numbers.resize(BUCKETS * bucket, i32::MAX);
    let first = all.len() as u32;
    if bucket > 1 {
        all.extend(numbers.chunks_exact(bucket).map(|numbers| numbers[bucket - 1]));
    }
    all.extend(numbers);
    (first, bucket.trailing_zeros() as u8)
}
