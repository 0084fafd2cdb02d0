//! The columns of category tables, as bits: for one row a byte per column, for a block of rows a word per column.
//!
//! A category table has a row of bits for each category, one bit per column. The bits of one row's categories are
//! copied as they are; nothing is computed per column.

use super::rank::ROWS;
use super::slots::{CategoryTable, SlotTable};

/// The columns of all tables. Each table begins at a multiple of 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns {
    words: usize,
}

impl Columns {
    pub(super) fn new(slots: &SlotTable) -> Self {
        Self { words: slots.tables.iter().map(|table| CategoryTable::words(table.columns)).sum() }
    }

    /// Number of words of 64 columns.
    pub(super) fn words(self) -> usize {
        self.words
    }

    /// Passes the words of one row's columns to `found`, in the order of the columns.
    #[inline(always)]
    pub(super) fn each(tables: &[CategoryTable], row: &[f32], mut found: impl FnMut(&[u64])) {
        for table in tables {
            found(table.bits(row[table.feature as usize]));
        }
    }

    /// Computes a word per column, with a bit per row, of up to [`ROWS`] rows. `words` has 64 words for each of
    /// [`Columns::words`].
    #[inline(always)]
    pub(super) fn fill_rows(self, tables: &[CategoryTable], rows: &[f32], width: usize, words: &mut [u64]) {
        assert_eq!(words.len(), 64 * self.words, "the words belong to another forest");
        words.fill(0);
        for (lane, row) in rows.chunks_exact(width).take(ROWS).enumerate() {
            let mut next = 0;
            Self::each(tables, row, |found| {
                for &word in found {
                    words[64 * next + lane] = word;
                    next += 1;
                }
            });
        }
        words.as_chunks_mut::<64>().0.iter_mut().for_each(transpose);
    }
}

/// Transposes a square of 64 × 64 bits: bit i of word j becomes bit j of word i.
#[inline(always)]
fn transpose(words: &mut [u64; 64]) {
    let mut half = 32;
    let mut mask = 0x0000_0000_ffff_ffff_u64;
    while half > 0 {
        for pair in words.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high) {
                let swapped = ((*low >> half) ^ *high) & mask;
                *high ^= swapped;
                *low ^= swapped << half;
            }
        }
        half /= 2;
        mask ^= mask << half;
    }
}

/// Writes a byte, 0 or 1, for each bit of a word.
#[inline(always)]
pub(super) fn spread(word: u64, out: &mut [u8; 64]) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    for (byte, out) in word.to_le_bytes().iter().zip(out.as_chunks_mut::<8>().0) {
        // Byte i keeps bit i only, which a carry then moves to the byte's top bit.
        let own = (u64::from(*byte) * ONES) & 0x8040_2010_0804_0201;
        *out = ((own + 0x7f * ONES) >> 7 & ONES).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transposed_square_has_rows_and_columns_exchanged() {
        let mut state = 1_u64;
        let words: [u64; 64] = std::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ (state >> 29)
        });
        let mut found = words;
        transpose(&mut found);
        for (i, found) in found.iter().enumerate() {
            for (j, word) in words.iter().enumerate() {
                assert_eq!(found >> j & 1, word >> i & 1, "{i} {j}");
            }
        }
    }

    #[test]
    fn a_spread_word_has_its_bits_as_bytes() {
        for word in [0, u64::MAX, 0x8000_0000_0000_0001, 0x0123_4567_89ab_cdef] {
            let mut out = [9; 64];
            spread(word, &mut out);
            for (bit, out) in out.iter().enumerate() {
                assert_eq!(u64::from(*out), word >> bit & 1, "{word:x} {bit}");
            }
        }
    }
}
