//! The leaves that a row reaches, for explanations.

use super::build;
use super::plan::{Plan, Run, Walk};
use super::{Forest, layout::Layout};

/// Receives the leaf that a row reaches in each tree, while the engine computes margins.
pub(super) trait Reach {
    /// Receives the positions of one row in a run of complete trees, whose first leaf value is `first_leaf`.
    fn complete(&mut self, first_tree: usize, trees: usize, depth: usize, first_leaf: usize, found: &[u8]);

    /// Receives the number of the leaf of one tree.
    fn linked(&mut self, tree: usize, leaf: usize);
}

/// Receives nothing, where only margins are computed.
pub(super) struct Ignored;

impl Reach for Ignored {
    #[inline(always)]
    fn complete(&mut self, _: usize, _: usize, _: usize, _: usize, _: &[u8]) {}

    #[inline(always)]
    fn linked(&mut self, _: usize, _: usize) {}
}

/// Calls a function with the index of each tree and the number of the reached leaf among the tree's leaves.
pub(super) struct Numbered<'a, F> {
    pub(super) numbers: &'a LeafNumbers,
    pub(super) each: F,
}

impl<F: FnMut(usize, usize)> Reach for Numbered<'_, F> {
    #[inline(always)]
    fn complete(&mut self, first_tree: usize, trees: usize, depth: usize, first_leaf: usize, found: &[u8]) {
        let numbers = &self.numbers.0[first_leaf..first_leaf + (trees << depth)];
        for (at, (numbers, &position)) in numbers.chunks_exact(1 << depth).zip(found).enumerate() {
            (self.each)(first_tree + at, usize::from(numbers[usize::from(position)]));
        }
    }

    #[inline(always)]
    fn linked(&mut self, tree: usize, leaf: usize) {
        (self.each)(tree, leaf);
    }
}

/// For each position of each complete tree, in the engine's order, the number of the leaf.
///
/// A complete tree has at most 256 positions, so a byte holds the number.
#[derive(Debug, Clone)]
pub(crate) struct LeafNumbers(Box<[u8]>);

impl LeafNumbers {
    pub(super) fn new(forest: &Forest) -> Self {
        Self(match &forest.plan {
            Plan::F32(engine) => numbers(&forest.layout, &engine.runs),
            Plan::F64(engine) => numbers(&forest.layout, &engine.runs),
        })
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.len()
    }
}

fn numbers(layout: &Layout, runs: &[Run]) -> Box<[u8]> {
    let mut numbers = Vec::new();
    for run in runs {
        let (Walk::Ranked { depth, first_leaf, .. } | Walk::Padded { depth, first_leaf, .. }) = run.walk
        else {
            continue;
        };
        debug_assert_eq!(first_leaf, numbers.len(), "runs store their leaves one after the other");
        for tree in &layout.trees[run.first_tree..run.first_tree + run.trees] {
            let nodes = &layout.nodes[tree.first_node..tree.first_node + tree.nodes];
            let ends = build::complete(nodes, usize::from(depth), |_, _| ());
            numbers.extend(ends.iter().map(|&end| nodes[end as usize].leaf_number() as u8));
        }
    }
    numbers.into_boxed_slice()
}
