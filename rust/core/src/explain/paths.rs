//! Path attributions: each step of the walk gives the change of the expectation to the feature that was tested.

use std::sync::Arc;

use super::complete::{CompleteTrees, Sums};
use super::{Covers, expectation};
use crate::budget::{Budget, OutOfTime};
use crate::forest::{Forest, NodeView, Reach, Scratch, TreeView};

/// Greatest number of steps of a leaf that are stored in a table. The steps of deeper trees are followed from the leaf
/// to the root, so the memory per node stays bounded.
const TABLE: usize = 16;
/// Number of rows of steps that are read before they are added.
const WAITING: usize = 32;

/// The contributions of all leaves of a forest to one output, computed once.
#[derive(Debug)]
pub struct PathAttributions {
    forest: Arc<Forest>,
    output: usize,
    /// One entry per tree of the forest.
    trees: Box<[Paths]>,
    complete: CompleteTrees,
    /// The rows of tables, each of the tree's width.
    steps: Box<[Step]>,
    links: Box<[Link]>,
    expectation: f64,
}

/// Working memory of one thread for [`PathAttributions::margins`], with the contributions of its last row.
#[derive(Debug, Clone)]
pub struct PathScratch {
    sums: Sums,
    /// One value per feature, and one that belongs to no feature.
    contributions: Vec<f64>,
}

/// The place of one tree's contributions.
#[derive(Debug, Clone, Copy)]
enum Paths {
    /// A complete tree whose leaves are counted from `first` on.
    Complete { first: u32 },
    /// `width` steps per position of a complete tree or per leaf of another tree, from `first` on.
    Table { first: usize, width: usize },
    /// One link per node, from `first` on. The leaves' own links are after those of all nodes.
    Linked { first: usize, nodes: usize },
}

/// The contribution of one feature on the path to a leaf. Rows are filled up with steps of no feature.
#[derive(Debug, Clone, Copy)]
struct Step {
    feature: u32,
    delta: f32,
}

/// The step to a node from its parent.
#[derive(Debug, Clone, Copy)]
struct Link {
    parent: u32,
    step: Step,
}

impl PathAttributions {
    /// Computes the contributions to one output of a forest.
    ///
    /// # Panics
    /// Panics if the covers belong to another forest or there is no such output.
    #[must_use]
    pub fn new(forest: &Arc<Forest>, covers: &Covers, output: usize) -> PathAttributions {
        let features = forest.slot_features();
        let depths = forest.complete_depths();
        let nothing = Step { feature: forest.num_features() as u32, delta: 0.0 };
        let ranges = forest.trees().filter(|tree| tree.adds_to(output)).map(|tree| tree.range(output));
        // Slot 0 belongs to no feature.
        let mut complete = CompleteTrees::new(forest, features[1..].to_vec(), ranges.sum());
        let (mut trees, mut steps, mut links) = (Vec::with_capacity(depths.len()), Vec::new(), Vec::new());
        let expectation = expectation(forest, covers, output, |tree, expected| {
            let depth = depths[trees.len()];
            let Some(expected) = expected else {
                trees.push(Paths::Table { first: 0, width: 0 });
                return;
            };
            let edges = Edges::new(tree, expected, &features);
            let first = steps.len();
            let ends: Vec<usize> = match depth {
                None => {
                    tree.nodes().enumerate().filter(|(_, node)| node.is_leaf()).map(|(at, _)| at).collect()
                }
                Some(depth) => {
                    let heap = tree.complete(depth);
                    if let Some(first) = complete.push(depth, |at| edges.step(heap[at / 2], heap[at])) {
                        trees.push(Paths::Complete { first });
                        return;
                    }
                    heap[1 << depth..].to_vec()
                }
            };
            trees.push(match edges.table(&ends, TABLE, nothing, &mut steps) {
                Some(width) => Paths::Table { first, width },
                None => {
                    let first = links.len();
                    links.extend(edges.links());
                    links.extend(ends.iter().map(|&at| Link { parent: at as u32, step: nothing }));
                    Paths::Linked { first, nodes: tree.len() }
                }
            });
        });
        complete.shrink();
        PathAttributions {
            forest: Arc::clone(forest),
            output,
            trees: trees.into_boxed_slice(),
            complete,
            steps: steps.into_boxed_slice(),
            links: links.into_boxed_slice(),
            expectation,
        }
    }

    /// The forest.
    #[must_use]
    pub fn forest(&self) -> &Arc<Forest> {
        &self.forest
    }

    /// The output that is explained.
    #[must_use]
    pub fn output(&self) -> usize {
        self.output
    }

    /// The expectation of the margin over the training rows, to which all contributions add.
    #[must_use]
    pub fn expectation(&self) -> f64 {
        self.expectation
    }

    /// Heap memory in bytes, without that of the forest.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.complete.heap_bytes()
            + size_of_val(&*self.trees)
            + size_of_val(&*self.steps)
            + size_of_val(&*self.links)
    }

    /// Computes the margins of one row as [`Forest::margins_within`] does, in the same walk the contribution of each
    /// feature, which [`PathScratch::contributions`] returns. It allocates nothing.
    ///
    /// # Errors
    /// Returns [`OutOfTime`] if the budget is spent before the end; the results are then unspecified.
    ///
    /// # Panics
    /// Panics as [`Forest::margins`] does, and if `paths` belongs to a forest with another number of features.
    pub fn margins(
        &self,
        row: &[f32],
        budget: &dyn Budget,
        scratch: &mut Scratch,
        margins: &mut [f64],
        paths: &mut PathScratch,
    ) -> Result<(), OutOfTime> {
        let PathScratch { sums, contributions } = paths;
        assert_eq!(
            contributions.len(),
            self.forest.num_features() + 1,
            "the memory belongs to a forest with another number of features"
        );
        contributions.fill(0.0);
        self.complete.start(sums);
        let waiting = [(0, 0); WAITING];
        let listed = Listed { of: self, contributions, waiting, count: 0, touched: 0 };
        let mut adder = Adder { sums, listed };
        self.forest.margins_reaching(row, budget, scratch, &mut adder, margins)?;
        adder.listed.add_waiting();
        std::hint::black_box(adder.listed.touched);
        self.complete.finish(sums, contributions);
        Ok(())
    }
}

impl PathScratch {
    /// Allocates the memory for one forest.
    #[must_use]
    pub fn new(paths: &PathAttributions) -> PathScratch {
        PathScratch { sums: Sums::new(), contributions: vec![0.0; paths.forest.num_features() + 1] }
    }

    /// The contribution of each feature in the last row.
    #[must_use]
    pub fn contributions(&self) -> &[f64] {
        self.contributions.split_last().map_or(&[], |(_, rest)| rest)
    }
}

/// Adds the contributions of the leaves that a row reaches.
struct Adder<'a> {
    sums: &'a mut Sums,
    listed: Listed<'a>,
}

/// Adds those of other trees.
struct Listed<'a> {
    of: &'a PathAttributions,
    contributions: &'a mut [f64],
    /// Rows of steps, as start and width. A row of steps is rarely in the nearest cache. Reading the first step of many
    /// rows before any is added lets the processor fetch them at the same time.
    waiting: [(usize, usize); WAITING],
    count: usize,
    touched: u32,
}

impl Listed<'_> {
    /// Adds the steps to an end of a tree.
    #[inline]
    fn add(&mut self, tree: usize, end: usize) {
        match self.of.trees[tree] {
            Paths::Table { first, width } => {
                let start = first + end * width;
                self.touched |= self.of.steps.get(start).map_or(0, |step| step.feature);
                self.waiting[self.count] = (start, width);
                self.count += 1;
                if self.count == WAITING {
                    self.add_waiting();
                }
            }
            Paths::Linked { first, nodes } => {
                let links = &self.of.links;
                let mut at = links[first + nodes + end].parent as usize;
                while at != 0 {
                    let link = links[first + at];
                    self.contributions[link.step.feature as usize] += f64::from(link.step.delta);
                    at = link.parent as usize;
                }
            }
            Paths::Complete { .. } => {}
        }
    }

    fn add_waiting(&mut self) {
        for &(start, width) in &self.waiting[..self.count] {
            for step in &self.of.steps[start..start + width] {
                self.contributions[step.feature as usize] += f64::from(step.delta);
            }
        }
        self.count = 0;
    }
}

impl Reach for Adder<'_> {
    #[inline(always)]
    fn complete(&mut self, first_tree: usize, depth: usize, positions: &[u8]) {
        let of = self.listed.of;
        let trees = &of.trees[first_tree..first_tree + positions.len()];
        if let [Paths::Complete { first }, .., Paths::Complete { first: last }] = trees
            && *last == *first + ((trees.len() as u32 - 1) << depth)
        {
            // Leaves are counted without gaps, so all trees between them are stored like this as well.
            of.complete.add_consecutive(depth, *first, positions, self.sums);
            return;
        }
        let leaves =
            trees.iter().zip(positions).enumerate().filter_map(|(at, (tree, &position))| match *tree {
                Paths::Complete { first } => Some(first + u32::from(position)),
                Paths::Table { .. } | Paths::Linked { .. } => {
                    self.listed.add(first_tree + at, usize::from(position));
                    None
                }
            });
        of.complete.add(depth, leaves, self.sums);
    }

    #[inline(always)]
    fn leaf(&mut self, tree: usize, leaf: usize) {
        self.listed.add(tree, leaf);
    }
}

/// The step to each node of a tree; that of the root is empty.
struct Edges(Vec<(u32, u32, f64)>);

impl Edges {
    fn new(tree: TreeView<'_>, expected: &[f64], features: &[u32]) -> Edges {
        let mut edges = vec![(0, 0, 0.0); tree.len()];
        for (at, node) in tree.nodes().enumerate() {
            if let NodeView::Split { slot, left, .. } = node {
                for child in [left, left + 1] {
                    edges[child] = (at as u32, features[slot], expected[child] - expected[at]);
                }
            }
        }
        Edges(edges)
    }

    /// The feature and the amount of the step from a node to its child; `None` if both are the same leaf.
    fn step(&self, parent: usize, child: usize) -> Option<(u32, f64)> {
        let (_, feature, delta) = self.0[child];
        (parent != child).then_some((feature, delta))
    }

    /// Appends a row for each of a tree's ends: the steps on its path, one per feature, filled up to the longest row.
    /// Returns the length of the rows, or `None` and appends nothing if it would be above `limit`.
    fn table(&self, ends: &[usize], limit: usize, nothing: Step, steps: &mut Vec<Step>) -> Option<usize> {
        let mut all: Vec<(u32, f64)> = Vec::new();
        let mut rows = Vec::with_capacity(ends.len());
        let mut width = 0;
        for &end in ends {
            let (start, mut at) = (all.len(), end);
            while at != 0 {
                let (parent, feature, delta) = self.0[at];
                match all[start..].iter_mut().find(|(known, _)| *known == feature) {
                    Some((_, sum)) => *sum += delta,
                    None => all.push((feature, delta)),
                }
                at = parent as usize;
            }
            width = width.max(all.len() - start);
            if width > limit {
                return None;
            }
            rows.push(all.len());
        }
        let mut start = 0;
        for end in rows {
            let row = all[start..end].iter();
            steps.extend(row.map(|&(feature, delta)| Step { feature, delta: delta as f32 }));
            steps.extend(std::iter::repeat_n(nothing, width - (end - start)));
            start = end;
        }
        Some(width)
    }

    fn links(&self) -> impl Iterator<Item = Link> {
        let link = |&(parent, feature, delta): &(u32, u32, f64)| Link {
            parent,
            step: Step { feature, delta: delta as f32 },
        };
        self.0.iter().map(link)
    }
}
