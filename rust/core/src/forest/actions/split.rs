//! Evaluates trees that are not specialised: one walk divides the set of actions.
//!
//! A test on the context selects one side for the whole set; a settled test divides the set. The memory is that of the
//! tree and of the sets of its settled tests, and does not depend on the number of residuals.

use super::super::layout::PackedNode;
use super::super::sum::Real;
use super::outcomes::RIGHT;
use super::set;
use super::settle::Settled;
use super::specialise::Specialiser;

/// The test of a node.
#[derive(Debug, Clone, Copy)]
enum Question {
    /// A test on the context, by its number.
    Context(u32),
    /// A settled test, by its number.
    Catalogue(u32),
    /// No test: the node is a leaf, whose value is at this position.
    Leaf(u32),
}

#[derive(Debug, Clone, Copy)]
struct Node {
    question: Question,
    left: u32,
}

/// All such trees of a forest.
#[derive(Debug)]
pub(super) struct SplitTrees<T> {
    nodes: Vec<Node>,
    values: Vec<T>,
    roots: Vec<u32>,
    /// The sets of the settled tests, `words` words each.
    passing: Vec<u64>,
    words: usize,
    /// Greatest depth of a tree, which bounds the number of sets on the stack.
    depth: usize,
}

impl<T: Real> SplitTrees<T> {
    pub(super) fn new(words: usize) -> Self {
        Self {
            nodes: Vec::new(),
            values: Vec::new(),
            roots: Vec::new(),
            passing: Vec::new(),
            words,
            depth: 0,
        }
    }

    /// Adds a tree and returns its number.
    pub(super) fn push(
        &mut self,
        nodes: &[PackedNode],
        leaves: &[T],
        depth: u8,
        settled: &Settled,
        specialiser: &mut Specialiser<'_>,
    ) -> u32 {
        let (first, first_value) = (self.nodes.len() as u32, self.values.len() as u32);
        self.roots.push(first);
        self.values.extend_from_slice(leaves);
        self.depth = self.depth.max(usize::from(depth));
        for &node in nodes {
            let question = if node.is_leaf() {
                Question::Leaf(first_value + node.leaf_number() as u32)
            } else if settled.is_settled(node) {
                Question::Catalogue(settled.number(node))
            } else {
                Question::Context(specialiser.test(node))
            };
            self.nodes.push(Node { question, left: first.wrapping_add(node.left) });
        }
        self.roots.len() as u32 - 1
    }

    /// Sets the final numbers of the tests and stores the sets of the settled tests.
    pub(super) fn finish(&mut self, renumbered: &[u32], settled: Settled) {
        for node in &mut self.nodes {
            if let Question::Context(test) = &mut node.question {
                *test = renumbered[*test as usize];
            }
        }
        if !self.roots.is_empty() {
            self.passing = settled.into_passing();
        }
        self.nodes.shrink_to_fit();
        self.values.shrink_to_fit();
        self.passing.shrink_to_fit();
    }

    pub(super) fn len(&self) -> usize {
        self.roots.len()
    }

    /// Number of words of working memory for [`SplitTrees::walk`].
    pub(super) fn stack(&self) -> usize {
        if self.roots.is_empty() { 0 } else { (self.depth + 2) * self.words }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Node>() * self.nodes.len()
            + size_of::<T>() * self.values.len()
            + 4 * self.roots.len()
            + 8 * self.passing.len()
    }

    /// Writes the leaf of a tree for every profile in `profiles`.
    pub(super) fn walk(
        &self,
        tree: u32,
        outcomes: &[u8],
        profiles: &[u64],
        stack: &mut [u64],
        leaves: &mut [T],
    ) {
        let (here, waiting) = stack.split_at_mut(self.words);
        here.copy_from_slice(profiles);
        self.node(self.roots[tree as usize], outcomes, here, waiting, leaves);
    }

    /// Walks from node `at` with the profiles `here`, and overwrites `here`. The recursion is bounded by the depth of a
    /// validated tree.
    fn node(&self, at: u32, outcomes: &[u8], here: &mut [u64], waiting: &mut [u64], leaves: &mut [T]) {
        let mut node = self.nodes[at as usize];
        loop {
            let next = match node.question {
                Question::Context(test) => node.left + u32::from(outcomes[test as usize] / RIGHT),
                Question::Leaf(value) => {
                    let value = self.values[value as usize];
                    set::members(here).for_each(|profile| leaves[profile] = value);
                    return;
                }
                Question::Catalogue(test) => {
                    let passing = &self.passing[test as usize * self.words..][..self.words];
                    let (right, rest) = waiting.split_at_mut(self.words);
                    for ((right, here), passing) in right.iter_mut().zip(here.iter_mut()).zip(passing) {
                        *right = *here & !passing;
                        *here &= passing;
                    }
                    if !set::is_empty(right) {
                        self.node(node.left + 1, outcomes, right, rest, leaves);
                    }
                    if set::is_empty(here) {
                        return;
                    }
                    node.left
                }
            };
            node = self.nodes[next as usize];
        }
    }
}
