//! Chooses the walk of each group of trees and copies the data that the walk needs from the layout.

use super::kernel::{GROUP, LINE_DEPTH, Line, MAX_DEPTH, MIN_DEPTH, Nodes};
use super::layout::{Layout, Leaves, PackedNode, Span};
use super::model::Target;
use super::plan::{Engine, Plan, RUN, Run, Walk};
use super::rank::Ranker;
use super::sum::Real;
use super::walk::PaddedNode;

/// Settings of the planner.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choices {
    /// Greatest number of leaves of the complete trees per real leaf at which trees deeper than a line are padded. With
    /// six bytes per position, this keeps the loaded forest within twice the size of its UBJ file.
    pub(super) padding: usize,
    /// Whether byte ranks may be used.
    pub(super) ranked: bool,
}

impl Default for Choices {
    fn default() -> Self {
        Self { padding: 4, ranked: true }
    }
}

pub(super) fn plan(layout: &Layout, choices: Choices) -> Plan {
    match &layout.leaves {
        Leaves::F32(leaves) => Plan::F32(Builder::new(layout, leaves, choices).build()),
        Leaves::F64(leaves) => Plan::F64(Builder::new(layout, leaves, choices).build()),
    }
}

struct Builder<'a, T> {
    layout: &'a Layout,
    leaves: &'a [T],
    choices: Choices,
    /// Whether any leaf is a vector.
    vectors: bool,
    ranker: Option<Ranker>,
    engine: Engine<T>,
}

impl<'a, T: Real> Builder<'a, T> {
    fn new(layout: &'a Layout, leaves: &'a [T], choices: Choices) -> Self {
        let vectors = layout.trees.iter().any(|tree| tree.target == Target::All);
        let ranker = if choices.ranked { Ranker::new(layout) } else { None };
        let engine = Engine {
            runs: Vec::new(),
            ranks: None,
            needs_slots: false,
            lines: Vec::new(),
            nodes: Vec::new(),
            leaves: Vec::new(),
            rows: Vec::new(),
            exits: Vec::new(),
        };
        Self { layout, leaves, choices, vectors, ranker, engine }
    }

    fn build(mut self) -> Engine<T> {
        for (g, trees) in self.layout.trees.chunks(GROUP).enumerate() {
            let walk = self.walk(trees);
            self.push(Run { first_tree: g * GROUP, trees: trees.len(), ask: false, walk });
        }
        let Self { mut engine, ranker, .. } = self;
        let mut since = RUN;
        for run in &mut engine.runs {
            run.ask = since + run.trees > RUN;
            since = if run.ask { run.trees } else { since + run.trees };
        }
        engine.needs_slots = engine.runs.iter().any(|run| !matches!(run.walk, Walk::Ranked { .. }));
        engine.ranks = ranker.map(Ranker::finish);
        engine.runs.shrink_to_fit();
        engine.lines.shrink_to_fit();
        engine.nodes.shrink_to_fit();
        engine.leaves.shrink_to_fit();
        engine.rows.shrink_to_fit();
        engine.exits.shrink_to_fit();
        engine
    }

    /// Appends a group's run, or extends the last run if both have the same walk.
    fn push(&mut self, run: Run) {
        if let Some(last) = self.engine.runs.last_mut()
            && last.trees + run.trees <= RUN
        {
            match (&mut last.walk, &run.walk) {
                (Walk::Ranked { depth, .. }, Walk::Ranked { depth: own, .. }) if depth == own => {
                    last.trees += run.trees;
                    return;
                }
                (Walk::Tipped { steps, .. }, Walk::Tipped { steps: own, .. }) => {
                    *steps = (*steps).max(*own);
                    last.trees += run.trees;
                    return;
                }
                _ => {}
            }
        }
        self.engine.runs.push(run);
    }

    fn walk(&mut self, trees: &[Span]) -> Walk {
        let depth = trees.iter().map(|tree| usize::from(tree.depth)).max().unwrap_or(0);
        let real: usize = trees.iter().map(Span::leaves).sum();
        // The positions of vector leaves are stored in 32 bits.
        let addressable = !self.vectors || u32::try_from(self.leaves.len()).is_ok();
        let dense = depth <= MAX_DEPTH && GROUP << depth <= self.choices.padding.saturating_mul(real);
        if self.ranker.is_some() && addressable && (depth <= LINE_DEPTH || dense) {
            let depth = depth.max(MIN_DEPTH);
            let (first_line, first_leaf) = (self.engine.lines.len(), self.leaf_count());
            self.rank(trees, depth);
            return Walk::Ranked { depth: depth as u8, first_line, first_leaf };
        }
        if self.ranker.is_some() && depth > LINE_DEPTH {
            let (first_line, first_exit) = (self.engine.lines.len(), self.engine.exits.len());
            self.tip(trees);
            return Walk::Tipped { first_line, first_exit, steps: (depth - LINE_DEPTH) as u8 };
        }
        if dense && addressable {
            let (first_node, first_leaf) = (self.engine.nodes.len(), self.leaf_count());
            self.pad(trees, depth);
            return Walk::Padded { depth: depth as u8, first_node, first_leaf };
        }
        Walk::Linked { steps: depth as u8 }
    }

    fn leaf_count(&self) -> usize {
        self.engine.leaves.len().max(self.engine.rows.len())
    }

    fn rank(&mut self, trees: &[Span], depth: usize) {
        let half = GROUP << depth;
        let mut bytes = vec![0_u8; 2 * half];
        for (lane, tree) in trees.iter().enumerate() {
            let ends = self.top(tree, depth, &mut bytes[lane << depth..], half);
            self.push_leaves(tree, &ends);
        }
        self.push_lines(&bytes, depth);
    }

    fn tip(&mut self, trees: &[Span]) {
        let half = GROUP << LINE_DEPTH;
        let mut bytes = vec![0_u8; 2 * half];
        for (lane, tree) in trees.iter().enumerate() {
            let ends = self.top(tree, LINE_DEPTH, &mut bytes[lane << LINE_DEPTH..], half);
            self.engine.exits.extend(&ends);
        }
        self.push_lines(&bytes, LINE_DEPTH);
    }

    fn push_lines(&mut self, bytes: &[u8], depth: usize) {
        debug_assert_eq!(bytes.len(), 64 * Nodes::lines_per_group(depth));
        self.engine.lines.extend(bytes.as_chunks::<64>().0.iter().map(|&line| Line(line)));
    }

    /// Writes the byte slots of a tree's upper levels to `bytes`, and their cuts `half` bytes after them. Returns the
    /// node that is reached at each position.
    fn top(&self, tree: &Span, depth: usize, bytes: &mut [u8], half: usize) -> Vec<u32> {
        complete(self.nodes(tree), depth, |position, node| {
            if let Some(ranker) = &self.ranker {
                (bytes[position], bytes[half + position]) = ranker.test(node);
            }
        })
    }

    fn nodes(&self, tree: &Span) -> &'a [PackedNode] {
        &self.layout.nodes[tree.first_node..tree.first_node + tree.nodes]
    }

    /// Copies the leaves of a complete tree.
    fn push_leaves(&mut self, tree: &Span, ends: &[u32]) {
        let (nodes, width) = (self.nodes(tree), self.layout.width(tree.target));
        let rows = ends.iter().map(|&end| tree.first_value + nodes[end as usize].leaf_number() * width);
        if self.vectors {
            self.engine.rows.extend(rows.map(|row| row as u32));
        } else {
            self.engine.leaves.extend(rows.map(|row| self.leaves[row]));
        }
    }

    fn pad(&mut self, trees: &[Span], depth: usize) {
        for tree in trees {
            let first = self.engine.nodes.len();
            self.engine.nodes.resize(first + (1 << depth), PaddedNode::default());
            let heap = &mut self.engine.nodes[first..];
            let nodes = &self.layout.nodes[tree.first_node..tree.first_node + tree.nodes];
            let ends = complete(nodes, depth, |position, node| {
                heap[position] = PaddedNode { key: node.key, slot: node.slot };
            });
            self.push_leaves(tree, &ends);
        }
        // The last group is completed with trees whose leaves are not added.
        let missing = GROUP - trees.len();
        self.engine.nodes.resize(self.engine.nodes.len() + (missing << depth), PaddedNode::default());
    }
}

/// Visits the splits of a tree's upper levels by heap position, and returns the node reached at each position of the
/// level below them. Every position below a leaf of an upper level is that leaf.
pub(super) fn complete(
    nodes: &[PackedNode],
    depth: usize,
    mut split: impl FnMut(usize, PackedNode),
) -> Vec<u32> {
    let mut level = vec![0_u32];
    for _ in 0..depth {
        let first = level.len();
        let mut next = Vec::with_capacity(2 * first);
        for (at, &index) in level.iter().enumerate() {
            let node = nodes[index as usize];
            if node.is_leaf() {
                next.extend([index, index]);
            } else {
                split(first + at, node);
                next.extend([node.left, node.left + 1]);
            }
        }
        level = next;
    }
    level
}
