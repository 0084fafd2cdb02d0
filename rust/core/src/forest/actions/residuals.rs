//! The residual trees of a forest, and their walk on one context.
//!
//! A residual tests the context alone and each of its tests is one byte of [`super::outcomes`]. Residuals are
//! walked in groups of one shape, whatever tree they come from: each writes its leaf to a place of its own, and
//! the order of the sums is made later.
#![expect(unsafe_code, reason = "bounds checks would double the work per node")]

use super::super::layout::PackedNode;
use super::super::sum::Real;
use super::outcomes::RIGHT;
use super::specialise::{Made, Part, Size, Specialiser};
use crate::budget::{Budget, OutOfTime};

/// Residuals walked at once.
const GROUP: usize = 8;
/// Deepest residual that is padded to a complete tree.
const PADDED_DEPTH: usize = 8;
/// A residual is padded where that takes at most this many complete leaves per real one.
const PADDING: usize = 8;
/// Groups between two looks at the budget.
const CHECK_EVERY: usize = 64;

/// A test number as stored: as narrow as the forest allows.
pub(super) trait Number: Copy + Default + std::fmt::Debug {
    fn of(test: u32) -> Self;
    fn index(self) -> usize;
}

impl Number for u16 {
    fn of(test: u32) -> Self {
        test as Self
    }

    fn index(self) -> usize {
        usize::from(self)
    }
}

impl Number for u32 {
    fn of(test: u32) -> Self {
        test
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// Complete trees of one depth.
#[derive(Debug, Default)]
struct Padded<I, T> {
    /// Per group `[2^depth][GROUP]` tests in heap order: row 0 unused, the root is in row 1.
    tests: Vec<I>,
    /// Per group `[2^depth][GROUP]`.
    leaves: Vec<T>,
    /// Where each residual's leaf goes.
    places: Vec<u32>,
}

/// Where the test is false the walk goes on at `left`, else one further. A leaf has test 0, which is always
/// true, and its own position minus one in `left`.
#[derive(Debug, Clone, Copy)]
struct LinkedNode {
    test: u32,
    left: u32,
}

/// Trees that are too deep or too thin to pad.
#[derive(Debug, Default)]
struct Linked<T> {
    nodes: Vec<LinkedNode>,
    /// A leaf's value at the leaf's position; zero at splits.
    values: Vec<T>,
    /// Steps, root and place of each residual.
    roots: Vec<(u8, u32, u32)>,
}

/// All residuals of a forest.
#[derive(Debug)]
pub(super) struct Residuals<I, T> {
    /// By depth, from 1.
    padded: Vec<Padded<I, T>>,
    linked: Linked<T>,
}

impl<T: Real> Residuals<u32, T> {
    pub(super) fn new() -> Self {
        Self {
            padded: (1..=PADDED_DEPTH).map(|_| Padded::default()).collect(),
            linked: Linked { nodes: Vec::new(), values: Vec::new(), roots: Vec::new() },
        }
    }

    /// Bytes that a residual of this size will take.
    pub(super) fn cost(size: Size) -> usize {
        if is_padded(size) {
            (size_of::<u16>() + size_of::<T>()) << size.depth
        } else {
            (size_of::<LinkedNode>() + size_of::<T>()) * 2 * size.leaves as usize
        }
    }

    /// Adds a residual whose leaf goes to `place`. It is no single leaf.
    pub(super) fn push(
        &mut self,
        part: Part,
        source: &[PackedNode],
        leaves: &[T],
        specialiser: &mut Specialiser<'_>,
        place: u32,
    ) {
        let size = specialiser.size(part);
        let mut copy = Copier { source, leaves, specialiser };
        if is_padded(size) {
            let depth = usize::from(size.depth);
            let group = &mut self.padded[depth - 1];
            let lane = group.places.len() % GROUP;
            let size = GROUP << depth;
            if lane == 0 {
                group.tests.resize(group.tests.len() + size, 0);
                group.leaves.resize(group.leaves.len() + size, T::default());
            }
            let first = group.tests.len() - size;
            group.places.push(place);
            let (tests, leaves) = (&mut group.tests[first..], &mut group.leaves[first..]);
            copy.complete(part, 1, depth, lane, tests, leaves);
        } else {
            let root = self.linked.nodes.len() as u32;
            self.linked.roots.push((size.depth, root, place));
            self.linked.grow(1);
            copy.link(part, root as usize, &mut self.linked);
        }
    }

    /// Fills the groups up with residuals that go to `spare`, renumbers the tests and orders the deep trees.
    pub(super) fn finish<I: Number>(mut self, renumbered: &[u32], spare: u32) -> Residuals<I, T> {
        for group in &mut self.padded {
            group.places.resize(group.places.len().next_multiple_of(GROUP), spare);
        }
        for node in &mut self.linked.nodes {
            node.test = renumbered[node.test as usize];
        }
        // Equal numbers of steps go together.
        self.linked.roots.sort_unstable();
        self.linked.nodes.shrink_to_fit();
        self.linked.values.shrink_to_fit();
        self.linked.roots.shrink_to_fit();
        let padded = self.padded.into_iter().map(|mut group| {
            group.leaves.shrink_to_fit();
            group.places.shrink_to_fit();
            Padded {
                tests: group.tests.iter().map(|&test| I::of(renumbered[test as usize])).collect(),
                leaves: group.leaves,
                places: group.places,
            }
        });
        Residuals { padded: padded.collect(), linked: self.linked }
    }
}

fn is_padded(size: Size) -> bool {
    usize::from(size.depth) <= PADDED_DEPTH && 1 << size.depth <= PADDING * size.leaves as usize
}

/// Copies a residual out of its parts; recursion is bounded by the depth of a validated tree.
struct Copier<'a, 'b, 's, T> {
    source: &'a [PackedNode],
    leaves: &'a [T],
    specialiser: &'b mut Specialiser<'s>,
}

impl<T: Real> Copier<'_, '_, '_, T> {
    /// The test and both sides of a part; a leaf's value where it is one.
    fn split(&mut self, part: Part) -> Result<Made, T> {
        match part {
            Part::Made(made) => Ok(self.specialiser.made(made)),
            Part::Source(at) => {
                let node = self.source[at as usize];
                if node.is_leaf() {
                    return Err(self.leaves[node.leaf_number()]);
                }
                let test = self.specialiser.test(node);
                Ok(Made { test, left: Part::Source(node.left), right: Part::Source(node.left + 1) })
            }
        }
    }

    /// Fills one lane of a group below row `at`, from which `levels` are left.
    fn complete(
        &mut self,
        part: Part,
        at: usize,
        levels: usize,
        lane: usize,
        tests: &mut [u32],
        leaves: &mut [T],
    ) {
        match self.split(part) {
            Ok(made) => {
                tests[at * GROUP + lane] = made.test;
                self.complete(made.left, 2 * at, levels - 1, lane, tests, leaves);
                self.complete(made.right, 2 * at + 1, levels - 1, lane, tests, leaves);
            }
            // Every way from here leads to a copy of this leaf, so the tests do not matter.
            Err(value) => {
                let first = (at << levels) - tests.len() / GROUP;
                for row in first..first + (1 << levels) {
                    leaves[row * GROUP + lane] = value;
                }
            }
        }
    }

    fn link(&mut self, part: Part, at: usize, linked: &mut Linked<T>) {
        match self.split(part) {
            Ok(made) => {
                let left = linked.nodes.len();
                linked.grow(2);
                linked.nodes[at] = LinkedNode { test: made.test, left: left as u32 };
                self.link(made.left, left, linked);
                self.link(made.right, left + 1, linked);
            }
            Err(value) => {
                linked.nodes[at] = LinkedNode { test: 0, left: (at as u32).wrapping_sub(1) };
                linked.values[at] = value;
            }
        }
    }
}

impl<T: Real> Linked<T> {
    fn grow(&mut self, by: usize) {
        self.nodes.resize(self.nodes.len() + by, LinkedNode { test: 0, left: 0 });
        self.values.resize(self.values.len() + by, T::default());
    }
}

impl<I: Number, T: Real> Residuals<I, T> {
    /// Residuals that are walked for each context.
    pub(super) fn count(&self) -> usize {
        self.padded.iter().map(|group| group.places.len()).sum::<usize>() + self.linked.roots.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let padded: usize = self
            .padded
            .iter()
            .map(|group| {
                size_of::<I>() * group.tests.len()
                    + size_of::<T>() * group.leaves.len()
                    + 4 * group.places.len()
            })
            .sum();
        size_of::<Padded<I, T>>() * self.padded.len()
            + padded
            + (size_of::<LinkedNode>() + size_of::<T>()) * self.linked.nodes.len()
            + size_of::<(u8, u32, u32)>() * self.linked.roots.len()
    }

    /// Writes the leaf that each residual gives to its place.
    pub(super) fn walk<B: Budget + ?Sized>(
        &self,
        outcomes: &[u8],
        budget: &B,
        places: &mut [T],
    ) -> Result<(), OutOfTime> {
        for (i, group) in self.padded.iter().enumerate() {
            let chunk = GROUP * CHECK_EVERY;
            let size = chunk << (i + 1);
            let parts = group.tests.chunks(size).zip(group.leaves.chunks(size));
            for ((tests, leaves), to) in parts.zip(group.places.chunks(chunk)) {
                if budget.spent() {
                    return Err(OutOfTime);
                }
                // SAFETY: `push` made whole groups of this depth, with tests and places below the numbers that
                // `Factored::new` sizes `outcomes` and `places` by.
                unsafe { walk(i + 1, (tests, leaves, to), outcomes, places) };
            }
        }
        for roots in self.linked.roots.chunks(GROUP * CHECK_EVERY) {
            if budget.spent() {
                return Err(OutOfTime);
            }
            for roots in roots.chunks(GROUP) {
                // SAFETY: as above; `link` made the links.
                unsafe { self.linked.walk(roots, outcomes, places) };
            }
        }
        Ok(())
    }
}

/// Walks whole groups of one depth: tests, leaves and places.
///
/// The depth is no constant on purpose: with the levels unrolled, the compiler takes the sums of a walk apart until
/// there are more of them than registers.
///
/// # Safety
/// There are `2^depth` tests and leaves for each place, of which there are a multiple of `GROUP`; tests are below
/// `outcomes.len()`, places below `places.len()`; outcomes are 0 or `RIGHT`.
#[inline(never)]
unsafe fn walk<I: Number, T: Real>(
    depth: usize,
    (tests, leaves, to): (&[I], &[T], &[u32]),
    outcomes: &[u8],
    places: &mut [T],
) {
    const { assert!(RIGHT as usize == GROUP) };
    let size = GROUP << depth;
    let groups = tests.chunks_exact(size).zip(leaves.chunks_exact(size));
    for ((tests, leaves), to) in groups.zip(to.chunks_exact(GROUP)) {
        // Eight times the row.
        let mut at = [GROUP; GROUP];
        for _ in 0..depth {
            for (lane, at) in at.iter_mut().enumerate() {
                debug_assert!(*at + lane < tests.len());
                // SAFETY: a row starts at 1 and has doubled fewer than `depth` times, so it is below 2^depth.
                let test = unsafe { tests.get_unchecked(*at + lane) }.index();
                debug_assert!(test < outcomes.len());
                // SAFETY: the caller's promise.
                let outcome = unsafe { *outcomes.get_unchecked(test) };
                *at = 2 * *at + usize::from(outcome);
            }
        }
        for (lane, (at, &to)) in at.iter().zip(to).enumerate() {
            let index = at + lane - size;
            debug_assert!(index < leaves.len() && (to as usize) < places.len());
            // SAFETY: outcomes being 0 or GROUP, `at` is now a row between 2^depth and 2^(depth + 1), and leaves are
            // as many as tests; the place is the caller's promise.
            unsafe { *places.get_unchecked_mut(to as usize) = *leaves.get_unchecked(index) };
        }
    }
}

impl<T: Real> Linked<T> {
    /// # Safety
    /// Tests of the nodes are below `outcomes.len()`, places below `places.len()`.
    #[inline(never)]
    unsafe fn walk(&self, roots: &[(u8, u32, u32)], outcomes: &[u8], places: &mut [T]) {
        let steps = roots.last().map_or(0, |&(steps, ..)| steps);
        let mut at = [0_u32; GROUP];
        for (at, &(_, root, _)) in at.iter_mut().zip(roots) {
            *at = root;
        }
        for _ in 0..steps {
            for at in &mut at[..roots.len()] {
                debug_assert!((*at as usize) < self.nodes.len());
                // SAFETY: roots are nodes, both sides of a split are, and a leaf leads to itself, as test 0
                // goes right.
                let node = unsafe { *self.nodes.get_unchecked(*at as usize) };
                debug_assert!((node.test as usize) < outcomes.len());
                // SAFETY: the caller's promise.
                let outcome = unsafe { *outcomes.get_unchecked(node.test as usize) };
                *at = node.left.wrapping_add(u32::from(outcome / RIGHT));
            }
        }
        for (&at, &(_, _, to)) in at.iter().zip(roots) {
            places[to as usize] = self.values[at as usize];
        }
    }
}
