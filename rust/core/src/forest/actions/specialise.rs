//! Specialises one tree to a catalogue: finds the classes of actions for which the same tests are left, and the
//! residual of each class.
//!
//! A residual is the tree without its settled tests. Residuals are built bottom up, once for all actions that can reach
//! a node. At a test on the context the classes of both sides are intersected; at a settled test they are joined. Equal
//! residuals are merged, so two classes of a tree always have different residuals.

use std::collections::HashMap;

use super::super::layout::PackedNode;
use super::outcomes::KNOWN;
use super::set;
use super::settle::Settled;

/// Greatest number of classes of a tree, because a class number is a byte.
pub(super) const MAX_CLASSES: usize = 256;
/// Number of words of sets that may be intersected for one tree. A tree that needs more is split instead.
const MAX_WORK: usize = 1 << 19;

/// The tree exceeds a limit of specialising.
#[derive(Debug)]
pub(super) struct TooMany;

/// A subtree: a node of the source tree if there is no settled test at or below it, otherwise a made node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Part {
    Source(u32),
    Made(u32),
}

/// A node of a residual above the source's own nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Made {
    /// Number of the context's test.
    pub(super) test: u32,
    pub(super) left: Part,
    pub(super) right: Part,
}

/// Depth and number of leaves.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) depth: u8,
    pub(super) leaves: u32,
}

impl Size {
    fn join(self, other: Self) -> Self {
        Self { depth: 1 + self.depth.max(other.depth), leaves: self.leaves.saturating_add(other.leaves) }
    }
}

/// The classes of one set of profiles.
#[derive(Debug)]
struct Classes {
    parts: Vec<Part>,
    /// The set of each class; empty if there is only one class, which then is the whole set.
    sets: Vec<u64>,
}

/// Specialises the trees of a forest, one after the other.
#[derive(Debug)]
pub(super) struct Specialiser<'a> {
    settled: &'a Settled,
    /// Number of each test on the context, from [`KNOWN`].
    tests: HashMap<(u32, i32), u32>,
    nodes: &'a [PackedNode],
    /// Whether there is a settled test at or below each node.
    mixed: Vec<bool>,
    sizes: Vec<Size>,
    made: Vec<Made>,
    made_sizes: Vec<Size>,
    known: HashMap<Made, Part>,
    work: usize,
}

impl<'a> Specialiser<'a> {
    pub(super) fn new(settled: &'a Settled) -> Self {
        Self {
            settled,
            tests: HashMap::new(),
            nodes: &[],
            mixed: Vec::new(),
            sizes: Vec::new(),
            made: Vec::new(),
            made_sizes: Vec::new(),
            known: HashMap::new(),
            work: 0,
        }
    }

    /// Returns the residuals of a tree, and the sets of profiles of each, one after the other.
    pub(super) fn tree(&mut self, nodes: &'a [PackedNode]) -> Result<(Vec<Part>, Vec<u64>), TooMany> {
        self.nodes = nodes;
        self.made.clear();
        self.made_sizes.clear();
        self.known.clear();
        self.work = 0;
        self.mixed.clear();
        self.mixed.resize(nodes.len(), false);
        self.sizes.clear();
        self.sizes.resize(nodes.len(), Size { depth: 0, leaves: 1 });
        // Children come after their parents, so the reverse order visits children first.
        for (i, node) in nodes.iter().enumerate().rev() {
            if !node.is_leaf() {
                let left = node.left as usize;
                self.mixed[i] = self.settled.is_settled(*node) || self.mixed[left] || self.mixed[left + 1];
                self.sizes[i] = self.sizes[left].join(self.sizes[left + 1]);
            }
        }
        let everyone = set::first(self.settled.profiles);
        let Classes { parts, mut sets } = self.node(0, &everyone)?;
        if sets.is_empty() {
            sets = everyone;
        }
        Ok((parts, sets))
    }

    /// Returns the number of a node's test on the context, and assigns one if it is new.
    pub(super) fn test(&mut self, node: PackedNode) -> u32 {
        let next = (KNOWN + self.tests.len()) as u32;
        *self.tests.entry((node.slot, node.key)).or_insert(next)
    }

    /// `(slot, key)` of each test number, from [`KNOWN`].
    pub(super) fn into_tests(self) -> Vec<(u32, i32)> {
        let mut tests = vec![(0, 0); self.tests.len()];
        for (test, number) in self.tests {
            tests[number as usize - KNOWN] = test;
        }
        tests
    }

    pub(super) fn size(&self, part: Part) -> Size {
        match part {
            Part::Source(node) => self.sizes[node as usize],
            Part::Made(made) => self.made_sizes[made as usize],
        }
    }

    /// Number of made nodes of the last tree.
    pub(super) fn made_count(&self) -> usize {
        self.made.len()
    }

    pub(super) fn made(&self, made: u32) -> Made {
        self.made[made as usize]
    }

    /// Returns the classes of the profiles `arriving` at node `at`. The recursion is bounded by the depth of a
    /// validated tree.
    fn node(&mut self, at: u32, arriving: &[u64]) -> Result<Classes, TooMany> {
        let node = self.nodes[at as usize];
        if !self.mixed[at as usize] {
            return Ok(Classes { parts: vec![Part::Source(at)], sets: Vec::new() });
        }
        if !self.settled.is_settled(node) {
            let left = self.node(node.left, arriving)?;
            let right = self.node(node.left + 1, arriving)?;
            let test = self.test(node);
            return self.intersect(test, left, right);
        }
        let passing = self.settled.passing(self.settled.number(node));
        let go_left: Vec<u64> = arriving.iter().zip(passing).map(|(a, p)| a & p).collect();
        let go_right: Vec<u64> = arriving.iter().zip(passing).map(|(a, p)| a & !p).collect();
        if set::is_empty(&go_right) {
            return self.node(node.left, arriving);
        }
        if set::is_empty(&go_left) {
            return self.node(node.left + 1, arriving);
        }
        let left = self.node(node.left, &go_left)?.spelled_out(&go_left);
        let right = self.node(node.left + 1, &go_right)?.spelled_out(&go_right);
        let mut all = left;
        for (part, set) in right.each(self.settled.words) {
            self.add(&mut all, part, set.iter().copied())?;
        }
        Ok(all.simplified())
    }

    fn intersect(&mut self, test: u32, left: Classes, right: Classes) -> Result<Classes, TooMany> {
        let mut all = Classes { parts: Vec::new(), sets: Vec::new() };
        match (left.parts.as_slice(), right.parts.as_slice()) {
            (&[left], &[right]) => all.parts.push(self.make(test, left, right)),
            (&[left], _) => {
                for (part, set) in right.each(self.settled.words) {
                    let part = self.make(test, left, part);
                    self.add(&mut all, part, set.iter().copied())?;
                }
            }
            (_, &[right]) => {
                for (part, set) in left.each(self.settled.words) {
                    let part = self.make(test, part, right);
                    self.add(&mut all, part, set.iter().copied())?;
                }
            }
            _ => {
                for (left, of_left) in left.each(self.settled.words) {
                    for (right, of_right) in right.each(self.settled.words) {
                        self.work += self.settled.words;
                        if of_left.iter().zip(of_right).all(|(a, b)| a & b == 0) {
                            continue;
                        }
                        let part = self.make(test, left, right);
                        self.add(&mut all, part, of_left.iter().zip(of_right).map(|(a, b)| a & b))?;
                    }
                }
            }
        }
        Ok(all.simplified())
    }

    /// Adds a class, or adds its set to that of an equal class.
    fn add(&mut self, all: &mut Classes, part: Part, set: impl Iterator<Item = u64>) -> Result<(), TooMany> {
        let words = self.settled.words;
        self.work += words + all.parts.len() / 4;
        if let Some(at) = all.parts.iter().position(|&known| known == part) {
            all.sets[at * words..].iter_mut().zip(set).for_each(|(to, from)| *to |= from);
        } else {
            all.parts.push(part);
            all.sets.extend(set);
        }
        if all.parts.len() > MAX_CLASSES || self.work > MAX_WORK { Err(TooMany) } else { Ok(()) }
    }

    fn make(&mut self, test: u32, left: Part, right: Part) -> Part {
        if left == right {
            // Both sides are equal, so the test is not needed.
            return left;
        }
        let made = Made { test, left, right };
        if let Some(&known) = self.known.get(&made) {
            return known;
        }
        let part = Part::Made(self.made.len() as u32);
        self.made_sizes.push(self.size(left).join(self.size(right)));
        self.made.push(made);
        self.known.insert(made, part);
        part
    }
}

impl Classes {
    fn each(&self, words: usize) -> impl Iterator<Item = (Part, &[u64])> {
        self.parts.iter().copied().zip(self.sets.chunks_exact(words))
    }

    fn spelled_out(mut self, arriving: &[u64]) -> Self {
        if self.sets.is_empty() {
            self.sets.extend_from_slice(arriving);
        }
        self
    }

    fn simplified(mut self) -> Self {
        if self.parts.len() == 1 {
            self.sets.clear();
        }
        self
    }
}
