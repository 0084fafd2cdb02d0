//! Adds the leaf of each action's class to the action's sum, one tree after the other.
//!
//! The sums of a tile of actions stay in registers for all trees of a run. For each tree, the leaves of its classes
//! are loaded into one register or a few, and the class numbers of the actions select from them. Apart from these
//! leaves, only the class numbers are read from memory, once and in order. Every lane adds tree by tree, so the sums
//! have the same bits as those of a scalar loop.
//!
//! Class numbers are packed, so that one load serves many actions and a shift unpacks them: with `L` lanes, bits `4k`
//! to `4k + 3` of 32-bit word `i` belong to action `L * k + i` of the tile.

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::super::sum::Real;
use super::Detected;

/// Actions per lane and tile: the number of four-bit class numbers that a 32-bit word holds.
pub(super) const PER_LANE: usize = 8;
/// Number of classes that four bits can represent.
pub(super) const NIBBLE: usize = 16;
/// Number of values after the last table that a register load may read.
pub(super) const OVERHANG: usize = 64;

/// How the class numbers of a run's trees are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    /// Four bits per class number; one register holds the leaves of all classes.
    Narrow,
    /// Four bits per class number; up to 16 classes.
    Nibbles,
    /// Eight bits per class number; up to 256 classes. There are two words per lane, the second for the second half of
    /// the tile.
    Bytes,
}

impl Packing {
    /// Number of words per lane, tile and tree.
    pub(super) fn words(self) -> usize {
        if self == Self::Bytes { 2 } else { 1 }
    }

    /// Writes the class of action `at` of a tile into the words of a tree.
    pub(super) fn set(self, words: &mut [u32], lanes: usize, at: usize, class: usize) {
        let (row, lane) = (at / lanes, at % lanes);
        match self {
            Self::Narrow | Self::Nibbles => words[lane] |= (class as u32) << (4 * row),
            Self::Bytes => words[row / 4 * lanes + lane] |= (class as u32) << (8 * (row % 4)),
        }
    }

    /// The class of action `at` of a tile.
    fn get(self, words: &[u32], lanes: usize, at: usize) -> usize {
        let (row, lane) = (at / lanes, at % lanes);
        match self {
            Self::Narrow | Self::Nibbles => (words[lane] >> (4 * row) & 15) as usize,
            Self::Bytes => (words[row / 4 * lanes + lane] >> (8 * (row % 4)) & 255) as usize,
        }
    }
}

/// The class numbers and leaves of trees with one packing, for one tile of actions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trees<'a, T> {
    pub(super) packing: Packing,
    /// For each tree the position of its first leaf in `table`, and its number of leaves, in ascending order.
    pub(super) tables: &'a [(u32, u32)],
    /// Packed class numbers, `packing.words() * lanes` words per tree.
    pub(super) words: &'a [u32],
    pub(super) table: &'a [T],
}

/// A number type that vector registers support.
pub(super) trait Lanes: Real + std::fmt::Debug {
    /// Number of lanes of a tile.
    fn lanes(isa: Detected) -> usize;

    /// Greatest number of classes whose leaves fit in one register.
    fn narrow(isa: Detected) -> usize;

    /// Adds the leaf of each tree to `sums`, for the first `rows` × lanes actions of a tile.
    fn add(isa: Detected, trees: Trees<'_, Self>, rows: usize, sums: &mut [Self]);
}

impl Lanes for f32 {
    fn lanes(isa: Detected) -> usize {
        match isa {
            Detected::Avx512(_) => 16,
            _ => 8,
        }
    }

    fn narrow(isa: Detected) -> usize {
        match isa {
            Detected::Avx2(_) | Detected::Neon => 8,
            _ => NIBBLE,
        }
    }

    fn add(isa: Detected, trees: Trees<'_, Self>, rows: usize, sums: &mut [Self]) {
        check(trees, Self::lanes(isa), sums);
        match isa {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "in-register look-ups")]
            // SAFETY: the proof in `isa` shows that the machine has the instructions; `check` proved the lengths.
            Detected::Avx512(_) => unsafe { x86::avx512_f32(trees, rows, sums) },
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "in-register look-ups")]
            // SAFETY: as above.
            Detected::Avx2(_) => unsafe { x86::avx2_f32(trees, rows, sums) },
            #[cfg(target_arch = "aarch64")]
            #[expect(unsafe_code, reason = "in-register look-ups")]
            // SAFETY: `check` proved the lengths.
            Detected::Neon => unsafe { neon::f32(trees, rows, sums) },
            _ => portable::add(trees, Self::lanes(isa), rows, sums),
        }
    }
}

impl Lanes for f64 {
    fn lanes(isa: Detected) -> usize {
        <f32 as Lanes>::lanes(isa)
    }

    fn narrow(_: Detected) -> usize {
        NIBBLE
    }

    fn add(isa: Detected, trees: Trees<'_, Self>, rows: usize, sums: &mut [Self]) {
        check(trees, Self::lanes(isa), sums);
        match isa {
            #[cfg(target_arch = "x86_64")]
            #[expect(unsafe_code, reason = "in-register look-ups")]
            // SAFETY: the proof in `isa` shows that the machine has the instructions; `check` proved the lengths.
            Detected::Avx512(_) => unsafe { x86::avx512_f64(trees, rows, sums) },
            _ => portable::add(trees, Self::lanes(isa), rows, sums),
        }
    }
}

/// Checks the lengths on which the unchecked loads of the vector code rely.
fn check<T>(trees: Trees<'_, T>, lanes: usize, sums: &[T]) {
    assert_eq!(sums.len(), lanes * PER_LANE);
    assert_eq!(trees.words.len(), trees.tables.len() * trees.packing.words() * lanes);
    let end = trees.tables.last().map_or(0, |&(first, count)| first as usize + count as usize);
    // Tables are in ascending order and do not overlap (see `Build::specialise`), so the last one has the greatest end.
    assert!(end + OVERHANG <= trees.table.len());
}
