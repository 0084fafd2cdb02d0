//! Chooses the walk of each group of trees and copies the data that the walk needs from the layout.

use super::bits::Columns;
use super::kernel::{GROUP, LINE_DEPTH, Line, MAX_DEPTH, MIN_DEPTH, Nodes};
use super::layout::{Layout, Leaves, PackedNode, Span};
use super::model::Target;
use super::outcome::Outcomes;
use super::plan::{Engine, Plan, RUN, Run, Walk};
use super::program::{self, Programs};
use super::rank::{Ranker, Ranks, Tested};
use super::steps::{MAX_OUTCOMES, Steps};
use super::sum::Real;
use super::walk::PaddedNode;
use super::work::{RowCosts, Work};

/// Settings of the planner.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choices {
    /// Greatest number of leaves of the complete trees per real leaf at which trees deeper than a line are padded. With
    /// six bytes per position, this keeps the loaded forest within twice the size of its UBJ file.
    pub(super) padding: usize,
    /// Whether ranks may be used.
    pub(super) ranked: bool,
    /// Whether ranks may be narrow.
    pub(super) narrow: bool,
    /// Whether complete trees on 32-bit keys are preferred to steps: `None` if they are faster.
    pub(super) padded: Option<bool>,
    /// Whether complete trees on ranks have programs too: `None` if that is faster.
    pub(super) programs: Option<bool>,
    /// Greatest number of leaves of a tree whose program is whole.
    pub(super) leaves: usize,
    /// Least number of rows of a block: `None` if the costs determine it.
    pub(super) least_rows: Option<usize>,
}

impl Default for Choices {
    fn default() -> Self {
        Self {
            padding: 4,
            ranked: true,
            narrow: true,
            padded: None,
            programs: None,
            leaves: program::CONSTANTS,
            least_rows: None,
        }
    }
}

pub(super) fn plan(layout: &Layout, choices: Choices) -> Plan {
    match &layout.leaves {
        Leaves::F32(leaves) => Plan::F32(Builder::new(layout, leaves, choices).build()),
        Leaves::F64(leaves) => Plan::F64(Builder::new(layout, leaves, choices).build()),
    }
}

/// A program takes as long per split as complete trees per 4/3 tests.
const OPERATION_TESTS: (usize, usize) = (4, 3);

struct Builder<'a, T> {
    layout: &'a Layout,
    leaves: &'a [T],
    choices: Choices,
    /// Whether any leaf is a vector.
    vectors: bool,
    ranker: Option<Ranker>,
    /// Whether complete trees on 32-bit keys are faster than steps.
    favours_padding: bool,
    engine: Engine<T>,
}

impl<'a, T: Real> Builder<'a, T> {
    fn new(layout: &'a Layout, leaves: &'a [T], choices: Choices) -> Self {
        let vectors = layout.trees.iter().any(|tree| tree.target == Target::All);
        let ranker = if choices.ranked { Ranker::new(layout, choices.narrow) } else { None };
        let columns = Columns::new(&layout.slots);
        let outcomes = ranker.as_ref().and_then(|ranker| {
            let most = layout.trees.iter().map(Span::leaves).max().unwrap_or(0);
            let outcomes = Outcomes::new(ranker.ranks(), columns, most);
            (outcomes.len() <= MAX_OUTCOMES).then_some(outcomes)
        });
        let engine = Engine {
            runs: Vec::new(),
            ranks: None,
            needs_ranks: false,
            steps: Steps::new(outcomes.as_ref().map_or(0, Outcomes::len)),
            outcomes,
            columns,
            programs: ranker.as_ref().map(|ranker| Programs::new(ranker.ranks())).unwrap_or_default(),
            work: Work { least: choices.least_rows, ..Work::default() },
            vectors,
            needs_slots: false,
            stretches: Vec::new(),
            lines: Vec::new(),
            nodes: Vec::new(),
            leaves: Vec::new(),
            rows: Vec::new(),
            exits: Vec::new(),
        };
        let depth = layout.trees.iter().map(|tree| usize::from(tree.depth)).max().unwrap_or(0);
        let costs = RowCosts {
            slots: layout.slots.numeric.len(),
            columns: 64 * columns.words(),
            searches: ranker.as_ref().map_or(0, |ranker| ranker.ranks().searches.len()),
            outcomes: engine.outcomes.as_ref().map_or(0, Outcomes::len),
            trees: layout.trees.len(),
            depth,
        };
        let favours_padding = choices.padded.unwrap_or(depth <= MAX_DEPTH && costs.favour_padding());
        Self { layout, leaves, choices, vectors, ranker, favours_padding, engine }
    }

    fn build(mut self) -> Engine<T> {
        for (g, trees) in self.layout.trees.chunks(GROUP).enumerate() {
            let walk = self.walk(trees);
            let first_part = self.program(trees, &walk);
            self.push(Run { first_tree: g * GROUP, trees: trees.len(), ask: false, walk, first_part });
        }
        let Self { mut engine, ranker, layout, .. } = self;
        let mut since = RUN;
        for run in &mut engine.runs {
            run.ask = since + run.trees > RUN;
            since = if run.ask { run.trees } else { since + run.trees };
        }
        let any = |of: fn(&Walk) -> bool| engine.runs.iter().any(|run| of(&run.walk));
        let needs_slots = any(|walk| matches!(walk, Walk::Padded { .. } | Walk::Linked { .. }));
        let takes_steps = any(|walk| matches!(walk, Walk::Tipped { .. } | Walk::Stepped { .. }));
        let complete = any(|walk| matches!(walk, Walk::Ranked { .. } | Walk::Tipped { .. }));
        engine.needs_slots = needs_slots;
        if needs_slots {
            engine.stretches = layout.slots.stretches();
        }
        if !takes_steps {
            engine.outcomes = None;
        }
        engine.ranks = ranker.map(Ranker::finish);
        let narrow = engine.ranks.as_ref().is_some_and(Ranks::is_narrow);
        engine.needs_ranks = complete || (takes_steps && narrow);
        engine.work.blocks = engine.ranks.is_some();
        engine.programs.finish();
        engine.steps.shrink_to_fit();
        engine.runs.shrink_to_fit();
        engine.lines.shrink_to_fit();
        engine.nodes.shrink_to_fit();
        engine.leaves.shrink_to_fit();
        engine.rows.shrink_to_fit();
        engine.exits.shrink_to_fit();
        engine
    }

    /// Appends the programs of a group, if blocks of rows are faster with them than with the walk's complete trees.
    fn program(&mut self, trees: &[Span], walk: &Walk) -> Option<usize> {
        let ranker = self.ranker.as_ref()?;
        let splits: usize = trees.iter().map(|tree| tree.leaves() - 1).sum();
        let work = &mut self.engine.work;
        if let Walk::Ranked { depth, .. } = *walk {
            let complete = trees.len() << depth;
            let is_faster = OPERATION_TESTS.0 * splits < OPERATION_TESTS.1 * complete;
            if !self.choices.programs.unwrap_or(is_faster) {
                work.complete += complete;
                work.taken += trees.len() * usize::from(depth);
                return None;
            }
        }
        let first = self.engine.programs.parts.len();
        for tree in trees {
            let nodes = &self.layout.nodes[tree.first_node..tree.first_node + tree.nodes];
            self.engine.programs.push(tree, nodes, self.choices.leaves, |node| ranker.test(node));
            // Paths of unbalanced trees are longer than those of balanced ones.
            let steps = 2 + 5 * (usize::BITS - tree.leaves().leading_zeros()) as usize / 4;
            work.steps += steps;
            if tree.leaves() > self.choices.leaves {
                work.followed += steps.saturating_sub(LINE_DEPTH);
            }
        }
        let parts = &self.engine.programs.parts[first..];
        work.programs += trees.len();
        work.operations += parts.iter().map(|part| part.operations as usize).sum::<usize>();
        Some(first)
    }

    /// Appends a group's run, or extends the last run if both have the same walk.
    fn push(&mut self, run: Run) {
        if let Some(last) = self.engine.runs.last_mut()
            && last.trees + run.trees <= RUN
            && last.first_part.is_some() == run.first_part.is_some()
        {
            match (&mut last.walk, &run.walk) {
                (Walk::Ranked { depth, .. }, Walk::Ranked { depth: own, .. }) if depth == own => {
                    last.trees += run.trees;
                    return;
                }
                (Walk::Tipped { .. }, Walk::Tipped { .. }) | (Walk::Stepped { .. }, Walk::Stepped { .. }) => {
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
        let narrow = self.ranker.as_ref().is_some_and(|ranker| ranker.ranks().is_narrow());
        if narrow && addressable && (depth <= LINE_DEPTH || dense) {
            let depth = depth.max(MIN_DEPTH);
            let (first_line, first_leaf) = (self.engine.lines.len(), self.leaf_count());
            self.rank(trees, depth);
            return Walk::Ranked { depth: depth as u8, first_line, first_leaf };
        }
        let (first_line, first_exit) = (self.engine.lines.len(), self.engine.exits.len());
        if narrow && depth > LINE_DEPTH && self.tip(trees) {
            return Walk::Tipped { first_line, first_exit };
        }
        let padded = self.favours_padding && dense && addressable;
        if !narrow && !padded && self.root(trees) {
            return Walk::Stepped { first_root: first_exit };
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

    /// Appends the upper levels of a group, and all of its nodes step by step. Returns false, and appends nothing that
    /// is used, if a tree cannot be walked step by step.
    fn tip(&mut self, trees: &[Span]) -> bool {
        let half = GROUP << LINE_DEPTH;
        let mut bytes = vec![0_u8; 2 * half];
        let mut exits = Vec::with_capacity(trees.len() << LINE_DEPTH);
        for (lane, tree) in trees.iter().enumerate() {
            let Some(places) = self.step(tree) else { return false };
            let ends = self.top(tree, LINE_DEPTH, &mut bytes[lane << LINE_DEPTH..], half);
            exits.extend(ends.iter().map(|&end| places[end as usize]));
        }
        self.engine.exits.extend(exits);
        self.push_lines(&bytes, LINE_DEPTH);
        true
    }

    /// Appends all nodes of a group step by step, and their roots. Returns false, and appends nothing that is used, if a
    /// tree cannot be walked step by step.
    fn root(&mut self, trees: &[Span]) -> bool {
        let roots: Option<Vec<u32>> = trees.iter().map(|tree| Some(*self.step(tree)?.first()?)).collect();
        self.engine.exits.extend(roots.iter().flatten());
        roots.is_some()
    }

    /// Appends the nodes of a tree step by step, and returns their places.
    fn step(&mut self, tree: &Span) -> Option<Vec<u32>> {
        let (ranker, outcomes) = (self.ranker.as_ref()?, self.engine.outcomes.as_ref()?);
        let nodes = &self.layout.nodes[tree.first_node..tree.first_node + tree.nodes];
        self.engine.steps.push(nodes, |node| match ranker.test(node) {
            Tested::Rank { slot, cut } => outcomes.of_cut(slot, cut),
            Tested::Column(column) => outcomes.of_column(column),
        })
    }

    fn push_lines(&mut self, bytes: &[u8], depth: usize) {
        debug_assert_eq!(bytes.len(), 64 * Nodes::lines_per_group(depth));
        self.engine.lines.extend(bytes.as_chunks::<64>().0.iter().map(|&line| Line(line)));
    }

    /// Writes the byte slots of a tree's upper levels to `bytes`, and their cuts `half` bytes after them. Returns the
    /// node that is reached at each position.
    fn top(&self, tree: &Span, depth: usize, bytes: &mut [u8], half: usize) -> Vec<u32> {
        complete(self.nodes(tree), depth, |position, node| {
            // Narrow ranks have a byte slot for each test, whose number is a byte.
            if let Some(Tested::Rank { slot, cut }) = self.ranker.as_ref().map(|ranker| ranker.test(node)) {
                (bytes[position], bytes[half + position]) = (slot as u8, cut);
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
