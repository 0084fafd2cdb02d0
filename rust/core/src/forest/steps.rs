//! Walks of deep and unbalanced trees for one row, on nodes of four bytes.
//!
//! A node is the place of its test's outcome (see [`super::outcome`]) and the distance to its left child, which the
//! right child follows, so a step is `at += distance + outcome`. A leaf has the distance 0 and its number in place of a
//! test; the outcomes at these numbers are 0, so a walk stays at a leaf. The walks of several trees advance together,
//! and end when all of them have arrived.
//!
//! A node and its nearest descendants are neighbours: about three levels share a cache line.
#![expect(unsafe_code, reason = "bounds checks would double the work per node")]

use super::kernel::GROUP;
use super::layout::PackedNode;

/// Number of bits of the distance.
const BITS: u32 = 13;
const DISTANCE: u32 = (1 << BITS) - 1;
/// Greatest number of outcomes, whose places have the other bits.
pub(super) const MAX_OUTCOMES: usize = 1 << (32 - BITS);
/// Greatest number of levels at which all of them are walked: a loop of a known length is faster than one that ends early.
const FIXED: usize = 8;
/// Number of pairs of siblings that are neighbours: 16 nodes of four bytes fill a cache line.
const NEIGHBOURS: usize = 8;

/// Nodes of trees that are walked step by step.
#[derive(Debug, Default)]
pub(super) struct Steps {
    nodes: Vec<u32>,
    /// Number of outcomes that a walk may read.
    outcomes: usize,
}

/// The number of a leaf that a walk has reached.
#[inline(always)]
pub(super) fn leaf_number(node: u32) -> usize {
    (node >> BITS) as usize
}

impl Steps {
    /// `outcomes` is the number of outcomes.
    pub(super) fn new(outcomes: usize) -> Self {
        Self { nodes: Vec::new(), outcomes }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<u32>() * self.nodes.capacity()
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.nodes.shrink_to_fit();
    }

    /// Appends a tree. Returns the place of each of its nodes, or `None`, and appends nothing, if a distance is too
    /// long. `outcome` returns the outcome of a split.
    pub(super) fn push(
        &mut self,
        nodes: &[PackedNode],
        outcome: impl Fn(PackedNode) -> u32,
    ) -> Option<Vec<u32>> {
        let order = neighbours(nodes);
        let first = self.nodes.len();
        let mut places = vec![0_u32; nodes.len()];
        for (place, &node) in order.iter().enumerate() {
            places[node as usize] = place as u32;
        }
        for &index in &order {
            let node = nodes[index as usize];
            let (test, distance) = if node.is_leaf() {
                (node.leaf_number() as u32, 0)
            } else {
                (outcome(node), places[node.left as usize] - places[index as usize])
            };
            if distance > DISTANCE || test as usize >= self.outcomes {
                self.nodes.truncate(first);
                return None;
            }
            self.nodes.push(test << BITS | distance);
        }
        places.iter_mut().for_each(|place| *place += first as u32);
        Some(places)
    }

    /// Walks [`GROUP`] trees from the nodes `at` to their leaves, and returns the leaves' words. No leaf is more than
    /// `levels` levels below the nodes.
    ///
    /// # Safety
    /// `at` are places that [`Steps::push`] returned. `outcomes` has at least as many bytes as `Steps::new` was given,
    /// each of which is 0 or 1, and those at the numbers of leaves are 0.
    #[inline]
    pub(super) unsafe fn walk(&self, levels: usize, at: &[u32; GROUP], outcomes: &[u8]) -> [u32; GROUP] {
        debug_assert!(outcomes.len() >= self.outcomes);
        let mut at = at.map(|at| at as usize);
        // SAFETY: the caller's obligation.
        unsafe {
            if levels <= FIXED {
                for _ in 0..levels {
                    self.step(&mut at, outcomes);
                }
            } else {
                // The last step only finds that all walks have arrived.
                for _ in 0..=levels {
                    if self.step(&mut at, outcomes) & DISTANCE == 0 {
                        break;
                    }
                }
            }
        }
        // SAFETY: places of nodes, as in `step`.
        at.map(|at| unsafe { *self.nodes.get_unchecked(at) })
    }

    /// Takes one step in each tree, and returns the union of the nodes' words.
    ///
    /// # Safety
    /// As [`Steps::walk`].
    #[inline(always)]
    unsafe fn step(&self, at: &mut [usize; GROUP], outcomes: &[u8]) -> u32 {
        let mut all = 0;
        for at in at {
            debug_assert!(*at < self.nodes.len());
            // SAFETY: `at` is the place of a node. `push` has stored the distance from a split to its left child, which
            // the right child follows, so a step with an outcome of 0 or 1 leads to a node. At a leaf both are 0.
            let node = unsafe { *self.nodes.get_unchecked(*at) };
            debug_assert!(leaf_number(node) < outcomes.len());
            // SAFETY: `push` has compared the place of the outcome with the number of outcomes.
            let outcome = unsafe { *outcomes.get_unchecked((node >> BITS) as usize) };
            debug_assert!(outcome <= 1);
            all |= node;
            *at += (node & DISTANCE) as usize + usize::from(outcome);
        }
        all
    }
}

/// An order of a tree's nodes in which siblings are adjacent, children come after their parents, and neighbours are in
/// blocks of a cache line. Small subtrees come first, which keeps distances short.
fn neighbours(nodes: &[PackedNode]) -> Vec<u32> {
    let mut sizes = vec![1_u32; nodes.len()];
    for (index, node) in nodes.iter().enumerate().rev().filter(|(_, node)| !node.is_leaf()) {
        sizes[index] += sizes[node.left as usize] + sizes[node.left as usize + 1];
    }
    let size = |left: &u32| sizes[*left as usize] + sizes[*left as usize + 1];
    let mut order = vec![0];
    let mut waiting = Vec::new();
    if !nodes[0].is_leaf() {
        waiting.push(nodes[0].left);
    }
    while let Some(first) = waiting.pop() {
        let mut block = std::collections::VecDeque::from([first]);
        for _ in 0..NEIGHBOURS {
            let Some(left) = block.pop_front() else { break };
            for child in [left, left + 1] {
                order.push(child);
                if !nodes[child as usize].is_leaf() {
                    block.push_back(nodes[child as usize].left);
                }
            }
        }
        // The last one is taken first.
        let mut rest: Vec<u32> = block.into();
        rest.sort_by_key(|left| std::cmp::Reverse(size(left)));
        waiting.extend(rest);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(left: u32) -> PackedNode {
        PackedNode { key: 0, slot: 1, left }
    }

    /// A chain of this many splits: the left child of each is a leaf, so the deepest subtree is the right one.
    fn chain(splits: u32) -> Vec<PackedNode> {
        let mut nodes = vec![split(1)];
        for at in 1..splits {
            nodes.push(PackedNode::leaf(2 * at - 1, at - 1));
            nodes.push(split(2 * at + 1));
        }
        nodes.push(PackedNode::leaf(2 * splits - 1, splits - 1));
        nodes.push(PackedNode::leaf(2 * splits, splits));
        nodes
    }

    #[test]
    fn every_path_of_a_chain_ends_at_its_leaf() {
        let nodes = chain(40);
        let mut steps = Steps::new(41 + 40);
        // The n-th split has the outcome n, behind those of leaves.
        let places = steps.push(&nodes, |node| 41 + (node.left - 1) / 2).unwrap();
        for end in 0..=40_usize {
            let mut outcomes = vec![0; 81];
            outcomes[41..41 + end].fill(1);
            // SAFETY: a place of this tree, and outcomes of 0 and 1 that are 0 for leaves.
            let found = unsafe { steps.walk(40, &[places[0]; GROUP], &outcomes) };
            assert!(found.iter().all(|&word| leaf_number(word) == end));
        }
    }

    #[test]
    fn a_tree_with_too_many_outcomes_or_too_long_distances_is_left_out() {
        let nodes = chain(3);
        let mut steps = Steps::new(4);
        assert!(steps.push(&nodes, |_| 4).is_none());
        assert!(steps.push(&nodes, |_| 3).is_some());
        // The left subtree of the root is as large as the right one, and one of them comes last.
        let large = {
            let mut nodes = vec![split(1)];
            let mut next = 3_u32;
            while nodes.len() + 20_000 > next as usize && next < 40_000 {
                nodes.push(split(next));
                next += 2;
            }
            let mut number = 0;
            while nodes.len() < next as usize {
                nodes.push(PackedNode::leaf(nodes.len() as u32, number));
                number += 1;
            }
            nodes
        };
        let mut steps = Steps::new(1 << 18);
        assert!(steps.push(&large, |_| 0).is_none());
        assert!(steps.nodes.is_empty());
    }
}
