//! The residual trees of a forest, and their walk on one context.
//!
//! A residual tests only the context, and the outcome of each test is one byte of [`super::outcomes`]. Residuals are
//! walked in groups of equal depth, independently of the tree that they belong to. Each writes its leaf to an entry of
//! its own; the leaves are added in order later.
//!
//! The residuals of one tree share most of their subtrees. They are stored as padded copies if these take little more
//! memory than one graph of them all, because the walk of a copy needs no links. Otherwise they share the graph.
#![expect(unsafe_code, reason = "bounds checks would double the work per node")]

use std::collections::HashMap;

use super::super::layout::PackedNode;
use super::super::sum::Real;
use super::outcomes::RIGHT;
use super::specialise::{Made, Part, Size, Specialiser};
use crate::budget::{Budget, OutOfTime};

/// Number of residuals that are walked at once.
const GROUP: usize = 8;
/// Deepest residual that is padded to a complete tree.
const PADDED_DEPTH: usize = 8;
/// Residuals are padded if that takes at most this many times the bytes of their graph, while all padded residuals
/// take at most [`NEAR`] bytes.
const PADDING_NEAR: usize = 4;
/// As [`PADDING_NEAR`], if the padded residuals take more than [`NEAR`] bytes.
const PADDING: usize = 2;
/// Typical size of a second-level cache, in bytes.
const NEAR: usize = 1 << 20;
/// Greatest number of pairs in one graph, because their numbers are stored in 16 bits.
const MAX_PAIRS: usize = 1 << 16;
/// The tests that always go left and always go right.
const KNOWN: [u32; 2] = [0, 1];
/// Number of groups between two checks of the budget.
const CHECK_EVERY: usize = 64;

/// The stored form of a test number, of 16 or 32 bits, and of a graph's link.
pub(super) trait Number: Copy + Default + std::fmt::Debug {
    /// A test and the number of the pair of nodes that its outcome selects from.
    type Link: Copy + Default + std::fmt::Debug;

    fn of(test: u32) -> Self;
    fn index(self) -> usize;
    fn link(test: u32, pair: u32) -> Self::Link;
    fn test(link: Self::Link) -> usize;
    fn pair(link: Self::Link) -> usize;
}

impl Number for u16 {
    type Link = u32;

    fn of(test: u32) -> Self {
        test as Self
    }

    fn index(self) -> usize {
        usize::from(self)
    }

    fn link(test: u32, pair: u32) -> u32 {
        pair << 16 | test
    }

    fn test(link: u32) -> usize {
        (link & 0xffff) as usize
    }

    fn pair(link: u32) -> usize {
        (link >> 16) as usize
    }
}

impl Number for u32 {
    type Link = u64;

    fn of(test: u32) -> Self {
        test
    }

    fn index(self) -> usize {
        self as usize
    }

    fn link(test: u32, pair: u32) -> u64 {
        u64::from(pair) << 32 | u64::from(test)
    }

    fn test(link: u64) -> usize {
        (link & 0xffff_ffff) as usize
    }

    fn pair(link: u64) -> usize {
        (link >> 32) as usize
    }
}

/// Complete trees of one depth.
#[derive(Debug, Default)]
struct Padded<I, T> {
    /// The tests of each group, `[2^depth][GROUP]` in heap order: row 0 is not used, the root is in row 1.
    tests: Vec<I>,
    /// The leaves of each group, `[2^depth][GROUP]`.
    leaves: Vec<T>,
    /// The table entry that each residual's leaf is written to.
    places: Vec<u32>,
}

/// A node of a graph. The outcome of its test selects a node of one pair; outcome 0 selects the first. A leaf links to
/// itself by a test whose outcome is constant.
#[derive(Debug, Clone, Copy, Default)]
struct GraphNode<L, T> {
    link: L,
    /// The value, if the node is a leaf.
    value: T,
}

/// The residuals of consecutive trees, which share equal subtrees.
#[derive(Debug)]
struct Graph<L, T> {
    /// Pairs of nodes, one after the other.
    nodes: Vec<GraphNode<L, T>>,
    /// Number of steps, root and table entry of each residual.
    roots: Vec<(u8, L, u32)>,
}

/// All residuals of a forest.
#[derive(Debug)]
pub(super) struct Residuals<I: Number, T> {
    /// The padded residuals by depth, from 1.
    padded: Vec<Padded<I, T>>,
    graphs: Vec<Graph<I::Link, T>>,
    padded_bytes: usize,
}

/// A tree's residuals and the table entries that their leaves are written to.
pub(super) struct Family<'a, T> {
    pub(super) source: &'a [PackedNode],
    /// The leaves of the source tree.
    pub(super) leaves: &'a [T],
    /// The residuals, of which none is a single leaf.
    pub(super) members: &'a [(Part, u32)],
}

impl<T: Real> Residuals<u32, T> {
    pub(super) fn new() -> Self {
        let padded = (1..=PADDED_DEPTH).map(|_| Padded::default()).collect();
        Self { padded, graphs: Vec::new(), padded_bytes: 0 }
    }

    /// Adds a tree's residuals and returns the bytes that they take. If that would be more than `most`, it adds nothing
    /// and returns `None`.
    pub(super) fn push(
        &mut self,
        family: &Family<'_, T>,
        specialiser: &mut Specialiser<'_>,
        most: usize,
    ) -> Option<usize> {
        let bound = specialiser.made_count() + family.source.len() / 2;
        let is_full = |graph: &Graph<u64, T>| graph.nodes.len() / 2 + bound > MAX_PAIRS;
        if bound > MAX_PAIRS {
            return None;
        }
        if self.graphs.last().is_none_or(is_full) {
            self.graphs.push(Graph { nodes: Vec::new(), roots: Vec::new() });
        }
        let graph = self.graphs.last_mut()?;
        let (nodes, roots) = (graph.nodes.len(), graph.roots.len());
        let mut copy = Copier { family, specialiser, pairs: HashMap::new() };
        for &(part, place) in family.members {
            let depth = copy.specialiser.size(part).depth;
            if let Ok(made) = copy.split(part) {
                let pair = copy.pair(made, part, &mut graph.nodes);
                graph.roots.push((depth, u32::link(made.test, pair), place));
            }
        }
        let shared = size_of::<GraphNode<u32, T>>() * (graph.nodes.len() - nodes)
            + size_of::<(u8, u32, u32)>() * (graph.roots.len() - roots);
        let sizes = family.members.iter().map(|&(part, _)| copy.specialiser.size(part));
        let is_shallow = sizes.clone().all(|size| usize::from(size.depth) <= PADDED_DEPTH);
        let padded: usize = sizes.map(padded_bytes::<T>).fold(0, usize::saturating_add);
        let is_near = self.padded_bytes.saturating_add(padded) <= NEAR;
        let padding = if is_near { PADDING_NEAR } else { PADDING };
        if is_shallow && padded <= padding * shared && padded <= most {
            self.padded_bytes += padded;
            graph.nodes.truncate(nodes);
            graph.roots.truncate(roots);
            for &(part, place) in family.members {
                let depth = usize::from(copy.specialiser.size(part).depth);
                copy.pad(part, &mut self.padded[depth - 1], depth, place);
            }
            return Some(padded);
        }
        if shared > most {
            graph.nodes.truncate(nodes);
            graph.roots.truncate(roots);
            return None;
        }
        Some(shared)
    }

    /// Completes the groups with residuals that write to the table entry `spare`, and renumbers the tests.
    pub(super) fn finish<I: Number>(mut self, renumbered: &[u32], spare: u32) -> Residuals<I, T> {
        for group in &mut self.padded {
            group.places.resize(group.places.len().next_multiple_of(GROUP), spare);
        }
        let padded = self.padded.into_iter().map(|mut group| {
            group.leaves.shrink_to_fit();
            group.places.shrink_to_fit();
            Padded {
                tests: group.tests.iter().map(|&test| I::of(renumbered[test as usize])).collect(),
                leaves: group.leaves,
                places: group.places,
            }
        });
        let narrow = |link: u64| I::link(renumbered[u32::test(link)], u32::pair(link) as u32);
        let graphs = self.graphs.into_iter().map(|graph| {
            let mut roots: Vec<_> =
                graph.roots.iter().map(|&(steps, root, place)| (steps, narrow(root), place)).collect();
            // Residuals with equal numbers of steps are walked together. The sort is stable, so trees stay in order.
            roots.sort_by_key(|&(steps, ..)| steps);
            let node = |node: &GraphNode<u64, T>| GraphNode { link: narrow(node.link), value: node.value };
            Graph { nodes: graph.nodes.iter().map(node).collect(), roots }
        });
        Residuals { padded: padded.collect(), graphs: graphs.collect(), padded_bytes: self.padded_bytes }
    }
}

fn padded_bytes<T>(size: Size) -> usize {
    // Deeper residuals are never padded.
    (size_of::<u16>() + size_of::<T>()) << usize::from(size.depth).min(PADDED_DEPTH)
}

/// Copies a residual from its parts. The recursion is bounded by the depth of a validated tree.
struct Copier<'a, 'b, 's, T> {
    family: &'a Family<'a, T>,
    specialiser: &'b mut Specialiser<'s>,
    /// The pair of nodes below each part.
    pairs: HashMap<Part, u32>,
}

impl<T: Real> Copier<'_, '_, '_, T> {
    /// Returns the test and both sides of a part; `Err` holds the value if the part is a leaf.
    fn split(&mut self, part: Part) -> Result<Made, T> {
        match part {
            Part::Made(made) => Ok(self.specialiser.made(made)),
            Part::Source(at) => {
                let node = self.family.source[at as usize];
                if node.is_leaf() {
                    return Err(self.family.leaves[node.leaf_number()]);
                }
                let test = self.specialiser.test(node);
                Ok(Made { test, left: Part::Source(node.left), right: Part::Source(node.left + 1) })
            }
        }
    }

    /// Fills one lane of a group below row `at`, which has `levels` levels below it.
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
            // Every path from here leads to a copy of this leaf, so the tests do not matter.
            Err(value) => {
                let first = (at << levels) - tests.len() / GROUP;
                for row in first..first + (1 << levels) {
                    leaves[row * GROUP + lane] = value;
                }
            }
        }
    }

    /// Adds a residual to the groups of its depth.
    fn pad(&mut self, part: Part, group: &mut Padded<u32, T>, depth: usize, place: u32) {
        let (lane, size) = (group.places.len() % GROUP, GROUP << depth);
        if lane == 0 {
            group.tests.resize(group.tests.len() + size, 0);
            group.leaves.resize(group.leaves.len() + size, T::default());
        }
        let first = group.tests.len() - size;
        group.places.push(place);
        self.complete(part, 1, depth, lane, &mut group.tests[first..], &mut group.leaves[first..]);
    }

    /// Returns the pair of nodes below a part whose test and sides are `made`, and adds it if it is new.
    fn pair(&mut self, made: Made, part: Part, nodes: &mut Vec<GraphNode<u64, T>>) -> u32 {
        if let Some(&pair) = self.pairs.get(&part) {
            return pair;
        }
        let first = nodes.len();
        let pair = first as u32 / 2;
        self.pairs.insert(part, pair);
        nodes.resize(first + 2, GraphNode { link: 0, value: T::default() });
        for (side, part) in [made.left, made.right].into_iter().enumerate() {
            nodes[first + side] = match self.split(part) {
                Ok(made) => {
                    let below = self.pair(made, part, nodes);
                    GraphNode { link: u32::link(made.test, below), value: T::default() }
                }
                Err(value) => GraphNode { link: u32::link(KNOWN[side], pair), value },
            };
        }
        pair
    }
}

impl<I: Number, T: Real> Residuals<I, T> {
    /// Number of residuals that are walked for each context.
    pub(super) fn count(&self) -> usize {
        self.padded.iter().map(|group| group.places.len()).sum::<usize>()
            + self.graphs.iter().map(|graph| graph.roots.len()).sum::<usize>()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        let padded = self.padded.iter().map(|group| {
            size_of::<I>() * group.tests.len() + size_of::<T>() * group.leaves.len() + 4 * group.places.len()
        });
        let graphs = self.graphs.iter().map(|graph| {
            size_of::<GraphNode<I::Link, T>>() * graph.nodes.len()
                + size_of::<(u8, I::Link, u32)>() * graph.roots.len()
        });
        size_of::<Padded<I, T>>() * self.padded.len()
            + padded.sum::<usize>()
            + size_of::<Graph<I::Link, T>>() * self.graphs.len()
            + graphs.sum::<usize>()
    }

    /// Walks every residual and writes its leaf to its table entry in `places`. `outcomes` has been filled by
    /// `Tests::fill`, and both slices have the lengths for which `Factored::new` made the residuals.
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
                // SAFETY: `push` and `finish` made whole groups of this depth, and chunks hold whole groups. Tests are
                // below the number of tests and places below the length of the table; `Factored::margins` asserts that
                // `outcomes` and `places` have these lengths. `Tests::fill` writes only 0 and `RIGHT`.
                unsafe { walk(i + 1, (tests, leaves, to), outcomes, places) };
            }
        }
        for graph in &self.graphs {
            for roots in graph.roots.chunks(GROUP * CHECK_EVERY) {
                if budget.spent() {
                    return Err(OutOfTime);
                }
                for roots in roots.chunks(GROUP) {
                    // SAFETY: as above for tests and outcomes; `push` made every link of a graph to a pair of the same
                    // graph.
                    unsafe { graph.walk::<I>(roots, outcomes, places) };
                }
            }
        }
        Ok(())
    }
}

/// Walks whole groups of one depth, given as tests, leaves and places.
///
/// The depth is not a constant parameter: if the compiler unrolls the levels, it splits the positions of a walk into
/// more values than there are registers.
///
/// # Safety
/// There are `2^depth` tests and leaves for each place, and the number of places is a multiple of `GROUP`. Tests are
/// below `outcomes.len()`, places are below `places.len()`, and outcomes are 0 or `RIGHT`.
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
        // Eight times the row of each lane; all start at the root, row 1.
        let mut at = [GROUP; GROUP];
        for _ in 0..depth {
            for (lane, at) in at.iter_mut().enumerate() {
                debug_assert!(*at + lane < tests.len());
                // SAFETY: outcomes are 0 or `GROUP`, so the row starts at 1, has doubled, plus 0 or 1, fewer than
                // `depth` times, and is below 2^depth. There are 2^depth rows of `GROUP` tests.
                let test = unsafe { tests.get_unchecked(*at + lane) }.index();
                debug_assert!(test < outcomes.len());
                // SAFETY: the caller's obligation.
                let outcome = unsafe { *outcomes.get_unchecked(test) };
                *at = 2 * *at + usize::from(outcome);
            }
        }
        for (lane, (at, &to)) in at.iter().zip(to).enumerate() {
            let index = at + lane - size;
            debug_assert!(index < leaves.len() && (to as usize) < places.len());
            // SAFETY: outcomes are 0 or `GROUP`, so the row is now at least 2^depth and below 2^(depth + 1), and there
            // are as many leaves as tests. The place is the caller's obligation.
            unsafe { *places.get_unchecked_mut(to as usize) = *leaves.get_unchecked(index) };
        }
    }
}

impl<L: Copy + Default, T: Real> Graph<L, T> {
    /// Walks at most `GROUP` residuals.
    ///
    /// # Safety
    /// The tests of all nodes and roots are below `outcomes.len()`, outcomes are 0 or `RIGHT`, and links lead to pairs
    /// of this graph.
    #[inline(never)]
    unsafe fn walk<I: Number<Link = L>>(&self, roots: &[(u8, L, u32)], outcomes: &[u8], places: &mut [T]) {
        let steps = roots.last().map_or(0, |&(steps, ..)| steps);
        let mut here = [(L::default(), 0_usize); GROUP];
        for (here, &(_, root, _)) in here.iter_mut().zip(roots) {
            here.0 = root;
        }
        // Lanes without a residual start with the default link: test 0 and the first pair.
        for _ in 0..steps {
            for (link, at) in &mut here {
                debug_assert!(I::test(*link) < outcomes.len());
                // SAFETY: the caller's obligation.
                let outcome = unsafe { *outcomes.get_unchecked(I::test(*link)) };
                *at = 2 * I::pair(*link) + usize::from(outcome / RIGHT);
                debug_assert!(*at < self.nodes.len());
                // SAFETY: a link leads to a pair of this graph, and the graph has at least one pair if it has roots.
                *link = unsafe { self.nodes.get_unchecked(*at) }.link;
            }
        }
        for (&(_, at), &(_, _, to)) in here.iter().zip(roots) {
            places[to as usize] = self.nodes[at].value;
        }
    }
}
