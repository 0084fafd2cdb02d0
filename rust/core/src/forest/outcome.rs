//! The outcomes of all tests of a forest for one row, a byte each: 1 if the test goes right, otherwise 0.
//!
//! A walk then reads one byte per node and adds it to its place, whatever the kind of the test. The bytes are written
//! from ranks, 64 at a time: with rank r, the first r cuts of a byte slot go right. Columns of category tables are
//! copied from their tables' bits.

use super::bits::Columns;
use super::rank::{Count, MAX_SLOTS, Ranks, RowRanks};
use super::slots::CategoryTable;

/// Number of outcomes that are written at a time.
const CHUNK: usize = 64;
/// The numbers of the cuts of a byte slot.
const NUMBERS: [u8; 256] = {
    let mut numbers = [0; 256];
    let mut i = 0;
    while i < 256 {
        numbers[i] = i as u8;
        i += 1;
    }
    numbers
};

/// The places of outcomes.
///
/// The first places are those of leaves, whose outcome is always 0. Then follow the cuts of each byte slot, and, with
/// wide ranks, the columns of category tables.
#[derive(Debug)]
pub(super) struct Outcomes {
    /// First place of each byte slot, and the end of the last.
    first: Vec<u32>,
    len: usize,
}

impl Outcomes {
    pub(super) fn new(ranks: &Ranks, columns: Columns, leaves: usize) -> Self {
        let mut next = leaves as u32;
        let mut first = vec![next];
        first.extend(ranks.cuts().map(|cuts| {
            next += u32::from(cuts);
            next
        }));
        let columns = if ranks.is_narrow() { 0 } else { 64 * columns.words() };
        Self { first, len: next as usize + columns }
    }

    /// Number of outcomes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of bytes for the outcomes. Chunks are written whole, so the last one needs room.
    pub(super) fn room(&self) -> usize {
        self.len + CHUNK
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<u32>() * self.first.capacity()
    }

    /// The outcome of a cut of a byte slot.
    pub(super) fn of_cut(&self, slot: u32, cut: u8) -> u32 {
        self.first[slot as usize] + u32::from(cut)
    }

    /// The outcome of a column, if the ranks are wide.
    pub(super) fn of_column(&self, column: u32) -> u32 {
        self.end_of_cuts() as u32 + column
    }

    fn end_of_cuts(&self) -> usize {
        self.first.last().map_or(0, |&end| end as usize)
    }

    /// Writes the outcomes of a row. `known` has its ranks, if they are narrow.
    #[inline(always)]
    pub(super) fn fill<C: Count>(
        &self,
        ranks: &Ranks,
        tables: &[CategoryTable],
        row: &[f32],
        known: &RowRanks,
        count: C,
        outcomes: &mut [u8],
    ) {
        assert_eq!(outcomes.len(), self.room(), "the outcomes belong to another forest");
        outcomes[..self.first[0] as usize].fill(0);
        if ranks.is_narrow() {
            for (ends, &rank) in self.first.windows(2).zip(&known.0[..MAX_SLOTS]) {
                write(count, &mut outcomes[ends[0] as usize..], (ends[1] - ends[0]) as usize, rank);
            }
            return;
        }
        ranks.each(row, count, |slot, rank| {
            let (start, end) = (self.first[slot] as usize, self.first[slot + 1] as usize);
            write(count, &mut outcomes[start..], end - start, rank);
        });
        let mut columns = outcomes[self.end_of_cuts()..].as_chunks_mut::<64>().0.iter_mut();
        Columns::each(tables, row, |words| {
            for (&word, out) in words.iter().zip(columns.by_ref()) {
                count.spread(word, out);
            }
        });
    }
}

/// Writes the outcomes of at least `cuts` cuts for a rank. Later slots overwrite the excess.
#[inline(always)]
fn write<C: Count>(count: C, outcomes: &mut [u8], cuts: usize, rank: u8) {
    let chunks = outcomes.as_chunks_mut::<CHUNK>().0.iter_mut().zip(NUMBERS.as_chunks::<CHUNK>().0);
    for (out, numbers) in chunks.take(cuts.div_ceil(CHUNK)) {
        count.mark(numbers, rank, out);
    }
}
