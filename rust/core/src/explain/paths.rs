//! Path attributions: each step of the walk gives the change of the expectation to the feature that was tested.

use std::sync::Arc;

use super::{Covers, expectation};
use crate::budget::{Budget, OutOfTime};
use crate::forest::{Forest, LeafNumbers, NodeView, Scratch, TreeView};

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
    numbers: LeafNumbers,
    /// One entry per tree of the forest.
    trees: Box<[Paths]>,
    /// The rows of tables, each of the tree's width.
    steps: Box<[Step]>,
    links: Box<[Link]>,
    expectation: f64,
}

/// The place of one tree's contributions.
#[derive(Debug, Clone, Copy)]
enum Paths {
    /// `width` steps per leaf, from `first` on.
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
        let nothing = Step { feature: forest.num_features() as u32, delta: 0.0 };
        let (mut trees, mut steps, mut links) = (Vec::new(), Vec::new(), Vec::new());
        let expectation = expectation(forest, covers, output, |tree, expected| {
            let Some(expected) = expected else {
                trees.push(Paths::Table { first: 0, width: 0 });
                return;
            };
            let edges = Edges::new(tree, expected, &features);
            let first = steps.len();
            trees.push(match edges.table(tree, TABLE, nothing, &mut steps) {
                Some(width) => Paths::Table { first, width },
                None => {
                    let first = links.len();
                    links.extend(edges.links());
                    links.extend(tree.nodes().enumerate().filter_map(|(at, node)| {
                        let own = Link { parent: at as u32, step: nothing };
                        matches!(node, NodeView::Leaf(_)).then_some(own)
                    }));
                    Paths::Linked { first, nodes: tree.len() }
                }
            });
        });
        PathAttributions {
            forest: Arc::clone(forest),
            output,
            numbers: forest.leaf_numbers(),
            trees: trees.into_boxed_slice(),
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

    /// Number of values of the buffer for contributions: one per feature and one more.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        self.forest.num_features() + 1
    }

    /// Heap memory in bytes, without that of the forest.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.numbers.heap_bytes()
            + size_of_val(&*self.trees)
            + size_of_val(&*self.steps)
            + size_of_val(&*self.links)
    }

    /// Computes the margins of one row as [`Forest::margins_within`] does, in the same walk the contribution of each
    /// feature. The last value of `contributions` is not used. It allocates nothing.
    ///
    /// # Errors
    /// Returns [`OutOfTime`] if the budget is spent before the end; the results are then unspecified.
    ///
    /// # Panics
    /// Panics as [`Forest::margins`] does, and if `contributions` has not [`PathAttributions::buffer_len`] values.
    pub fn margins(
        &self,
        row: &[f32],
        budget: &dyn Budget,
        scratch: &mut Scratch,
        margins: &mut [f64],
        contributions: &mut [f64],
    ) -> Result<(), OutOfTime> {
        assert_eq!(
            contributions.len(),
            self.buffer_len(),
            "the buffer has not one value per feature and one"
        );
        contributions.fill(0.0);
        let (trees, steps) = (&*self.trees, &*self.steps);
        // A row of steps is rarely in the nearest cache. Reading the first step of many rows before any is added lets the
        // processor fetch them at the same time.
        let mut waiting = [(0, 0); WAITING];
        let (mut count, mut touched) = (0, 0);
        let add = |rows: &[(usize, usize)], contributions: &mut [f64]| {
            for &(start, width) in rows {
                for step in &steps[start..start + width] {
                    contributions[step.feature as usize] += f64::from(step.delta);
                }
            }
        };
        let each = |tree: usize, leaf: usize| match trees[tree] {
            Paths::Table { first, width } => {
                let start = first + leaf * width;
                touched |= steps.get(start).map_or(0, |step| step.feature);
                waiting[count] = (start, width);
                count += 1;
                if count == WAITING {
                    add(&waiting, contributions);
                    count = 0;
                }
            }
            Paths::Linked { first, nodes } => {
                let mut at = self.links[first + nodes + leaf].parent as usize;
                while at != 0 {
                    let link = self.links[first + at];
                    contributions[link.step.feature as usize] += f64::from(link.step.delta);
                    at = link.parent as usize;
                }
            }
        };
        self.forest.margins_reaching(row, budget, scratch, (&self.numbers, each), margins)?;
        add(&waiting[..count], contributions);
        std::hint::black_box(touched);
        Ok(())
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

    /// Appends a row for each leaf: the steps on its path, one per feature, filled up to the longest row. Returns the
    /// length of the rows, or `None` and appends nothing if it would be above `limit`.
    fn table(&self, tree: TreeView<'_>, limit: usize, nothing: Step, steps: &mut Vec<Step>) -> Option<usize> {
        let mut all: Vec<(u32, f64)> = Vec::new();
        let mut ends = Vec::with_capacity(tree.leaves());
        let mut width = 0;
        for (at, node) in tree.nodes().enumerate() {
            if !matches!(node, NodeView::Leaf(_)) {
                continue;
            }
            let (start, mut at) = (all.len(), at);
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
            ends.push(all.len());
        }
        let mut start = 0;
        for end in ends {
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
