//! From the leaves of a tree's classes to the sum of every action, one tree after the other.
//!
//! A tile of actions keeps its sums in registers while all trees of a run pass by. For each tree the leaves of its
//! classes fill a register (or a few), and the class numbers of the actions pick from it: no memory is touched
//! but the class numbers, which are read once and in order. Sums are those of adding tree by tree, bit for bit,
//! because that is what happens in every lane.
//!
//! Class numbers are packed so that one load serves many actions and no unpacking but a shift is needed: with `L`
//! lanes, bits `4k` to `4k + 3` of 32-bit word `i` belong to action `L * k + i` of the tile.

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::super::sum::Real;
use super::Detected;

/// Actions per lane and tile: as many class numbers of four bits as a word holds.
pub(super) const PER_LANE: usize = 8;
/// Classes that a nibble can tell apart.
pub(super) const NIBBLE: usize = 16;
/// Values behind the last table that a register may be filled with.
pub(super) const OVERHANG: usize = 64;

/// How the class numbers of a run's trees are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    /// Four bits, and one register holds all leaves.
    Narrow,
    /// Four bits, 16 classes.
    Nibbles,
    /// Eight bits, 256 classes: two words per lane, the second one for the second half of the tile.
    Bytes,
}

impl Packing {
    /// Words per lane, tile and tree.
    pub(super) fn words(self) -> usize {
        if self == Self::Bytes { 2 } else { 1 }
    }

    /// Adds action `at` of a tile to the words of a tree.
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

/// Trees of one packing, one tile of actions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trees<'a, T> {
    pub(super) packing: Packing,
    /// Where in `table` each tree's leaves start, and how many they are.
    pub(super) tables: &'a [(u32, u32)],
    /// Per tree `packing.words() * lanes`.
    pub(super) words: &'a [u32],
    pub(super) table: &'a [T],
}

/// A number type with vectors.
pub(super) trait Lanes: Real + std::fmt::Debug {
    /// Lanes of a tile.
    fn lanes(isa: Detected) -> usize;

    /// Most classes whose leaves one register holds.
    fn narrow(isa: Detected) -> usize;

    /// Adds the leaf of each tree to the sums of the first `rows` × lanes actions of a tile, `sums`.
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

/// The proof on which the vector code loads without checks.
fn check<T>(trees: Trees<'_, T>, lanes: usize, sums: &[T]) {
    assert_eq!(sums.len(), lanes * PER_LANE);
    assert_eq!(trees.words.len(), trees.tables.len() * trees.packing.words() * lanes);
    let end = trees.tables.last().map_or(0, |&(first, count)| first as usize + count as usize);
    // Tables lie one behind the other: the last one ends last.
    assert!(end + OVERHANG <= trees.table.len());
}
