//! The reference implementation, for every processor.

use super::{PER_LANE, Packing, Trees};
use crate::forest::sum::Real;

pub(super) fn add<T: Real>(trees: Trees<'_, T>, lanes: usize, rows: usize, sums: &mut [T]) {
    debug_assert!(rows <= PER_LANE);
    let per_tree = trees.packing.words() * lanes;
    let sums = &mut sums[..rows * lanes];
    for (&(first, count), words) in trees.tables.iter().zip(trees.words.chunks_exact(per_tree)) {
        let table = &trees.table[first as usize..][..count as usize];
        if let [leaf] = *table {
            sums.iter_mut().for_each(|sum| *sum += leaf);
            continue;
        }
        match trees.packing {
            Packing::Bytes => {
                for (at, sum) in sums.iter_mut().enumerate() {
                    *sum += table[trees.packing.get(words, lanes, at)];
                }
            }
            Packing::Narrow | Packing::Nibbles => {
                for (row, sums) in sums.chunks_exact_mut(lanes).enumerate() {
                    for (sum, word) in sums.iter_mut().zip(words) {
                        *sum += table[(word >> (4 * row) & 15) as usize];
                    }
                }
            }
        }
    }
}
