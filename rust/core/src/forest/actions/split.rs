//! Trees that are not specialised: the set of actions is split along one walk.
//!
//! A test on the context sends the whole set one way, a settled test divides it. Memory is that of the tree and of
//! the settled tests' sets, whatever the catalogue does to it.

use super::super::layout::PackedNode;
use super::super::sum::Real;
use super::outcomes::RIGHT;
use super::set;
use super::settle::Settled;
use super::specialise::Specialiser;

/// What a node asks.
#[derive(Debug, Clone, Copy)]
enum Question {
    /// The context, by the number of the test.
    Context(u32),
    /// The catalogue, by the number of the settled test.
    Catalogue(u32),
    /// Nothing: a leaf, by the position of its value.
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
    /// The sets of settled tests, `words` each.
    passing: Vec<u64>,
    words: usize,
    /// Most settled tests on one path, and so sets that wait at once.
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

    /// Adds a tree; its number.
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

    /// Takes the tests' final numbers and the settled sets.
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

    /// Words of working memory for [`SplitTrees::walk`].
    pub(super) fn stack(&self) -> usize {
        if self.roots.is_empty() { 0 } else { (self.depth + 2) * self.words }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Node>() * self.nodes.len()
            + size_of::<T>() * self.values.len()
            + 4 * self.roots.len()
            + 8 * self.passing.len()
    }

    /// Gives every profile of `profiles` its leaf of a tree.
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

    /// `here` is used up. Recursion is bounded by the depth of a validated tree.
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
