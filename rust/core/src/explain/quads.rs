//! The contributions of four neighbouring leaves of a complete tree, in one cache line.
//!
//! The paths to the four leaves below a node share the steps to that node. They differ in the step of the level below,
//! of which there are two, and in the last step, of which there are four. A quad stores all of them, so a row reads one
//! cache line per tree, and the lines take less memory than a list of steps for each leaf.

use super::complete::{FEATURES, MAX_DEPTH};

/// Number of sums that a feature has, for trees at even and at odd places and for steps at even and at odd places. An
/// addition to a sum waits for the one before it, and neighbouring trees and steps often test the same features.
const BANKS: usize = 4;
/// Number of sums in a bank. A multiple of 4 KiB between two sums would make the processor compare them for nothing.
const BANK: usize = FEATURES + 16;
/// First value of the level above the last, and of the last level.
const PAIR: usize = MAX_DEPTH - 2;
const LAST: usize = PAIR + 2;

/// The steps of four leaves. Values are multiples of the unit.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Quad {
    /// The shared steps from the root down, then two and four steps of the last levels.
    values: [i32; LAST + 4],
    /// The features of the shared steps, that of the level above the last, and two of the last level.
    features: [u8; 16],
}

/// The sums of all features.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(super) struct Banks(pub(super) [[i32; BANK]; BANKS]);

impl Banks {
    pub(super) fn new() -> Banks {
        Banks([[0; BANK]; BANKS])
    }

    /// Sets the sums of the first features to 0. A forest with more of them than a bank has no quads.
    pub(super) fn clear(&mut self, features: usize) {
        self.0.iter_mut().for_each(|bank| bank[..features.min(FEATURES)].fill(0));
    }

    /// Returns the sums of the first features over all banks.
    pub(super) fn unite(&mut self, features: usize) -> &[i32] {
        let used = features.min(FEATURES);
        let [first, rest @ ..] = &mut self.0;
        for bank in rest {
            for (sum, other) in first[..used].iter_mut().zip(&*bank) {
                *sum = sum.wrapping_add(*other);
            }
        }
        &first[..used]
    }
}

impl Quad {
    /// Returns the quad of the four leaves below a node of a tree. `step` returns the number of the feature and the
    /// amount of the step to a node, below the number of `features`.
    pub(super) fn new(
        depth: usize,
        node: usize,
        features: usize,
        step: impl Fn(usize) -> Option<(u8, i32)>,
    ) -> Quad {
        let mut quad = Quad { values: [0; LAST + 4], features: [0; 16] };
        // Steps that a path does not have add 0. Their features differ, so that these additions do not wait for each
        // other either.
        for (level, feature) in quad.features.iter_mut().enumerate() {
            *feature = (level % features.max(1)) as u8;
        }
        let mut set = |value: usize, feature: usize, node: usize| {
            if let Some((number, amount)) = step(node) {
                (quad.values[value], quad.features[feature]) = (amount, number);
            }
        };
        let shared = depth - 2;
        for level in 0..shared {
            set(level, level, node >> (shared - 1 - level));
        }
        for child in 0..2 {
            set(PAIR + child, PAIR, 2 * node + child);
        }
        for child in 0..4 {
            set(LAST + child, PAIR + 1 + child / 2, 4 * node + child);
        }
        quad
    }

    /// Adds leaves of trees of one depth, counted over all quads.
    pub(super) fn add(quads: &[Quad], depth: usize, leaves: &[u32], sums: &mut Banks) {
        match depth {
            3 => Self::add_in::<3>(quads, leaves, sums),
            4 => Self::add_in::<4>(quads, leaves, sums),
            5 => Self::add_in::<5>(quads, leaves, sums),
            6 => Self::add_in::<6>(quads, leaves, sums),
            7 => Self::add_in::<7>(quads, leaves, sums),
            _ => Self::add_in::<8>(quads, leaves, sums),
        }
    }

    #[inline(always)]
    fn add_in<const DEPTH: usize>(quads: &[Quad], leaves: &[u32], sums: &mut Banks) {
        let (even, odd) = sums.0.split_at_mut(BANKS / 2);
        let (pairs, rest) = leaves.as_chunks::<2>();
        for [one, other] in pairs {
            Self::add_leaf::<DEPTH>(quads, *one, even);
            Self::add_leaf::<DEPTH>(quads, *other, odd);
        }
        rest.iter().for_each(|leaf| Self::add_leaf::<DEPTH>(quads, *leaf, even));
    }

    #[inline(always)]
    fn add_leaf<const DEPTH: usize>(quads: &[Quad], leaf: u32, sums: &mut [[i32; BANK]]) {
        let leaf = leaf as usize;
        let quad = &quads[leaf / 4];
        let mut add = |bank: usize, feature: usize, value: usize| {
            let sum = &mut sums[bank][usize::from(quad.features[feature])];
            *sum = sum.wrapping_add(quad.values[value]);
        };
        for level in 0..DEPTH - 2 {
            add(level % 2, level, level);
        }
        let (pair, last) = (leaf / 2 % 2, leaf % 4);
        add(DEPTH % 2, PAIR, PAIR + pair);
        add((DEPTH + 1) % 2, PAIR + 1 + pair, LAST + last);
    }
}
