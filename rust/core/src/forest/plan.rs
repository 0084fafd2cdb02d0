//! The plan by which a forest is evaluated: runs of consecutive trees, each with its own kind of walk.
//!
//! Runs keep the order of the trees, so leaves are added exactly in the training library's order.

use crate::budget::{Budget, OutOfTime};

use super::bits::Columns;
use super::cpu::Detected;
use super::kernel::{self, GROUP, LINE_DEPTH, Line, Nodes};
use super::layout::{Layout, Span};
use super::model::{BaseOrder, Target};
use super::outcome::Outcomes;
use super::program::Programs;
use super::rank::Ranks;
use super::reach::Reach;
use super::scratch::Scratch;
use super::slots::Stretch;
use super::steps::{Steps, leaf_number};
use super::sum::Real;
use super::walk::{self, PaddedNode};
use super::work::Work;

/// Greatest number of trees of a run, and between two checks of the budget.
pub(super) const RUN: usize = kernel::RUN * GROUP;

#[derive(Debug)]
pub(super) enum Plan {
    F32(Engine<f32>),
    F64(Engine<f64>),
}

impl Plan {
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::F32(engine) => engine.heap_bytes(),
            Self::F64(engine) => engine.heap_bytes(),
        }
    }

    /// Number of bytes for the outcomes of a row's tests.
    pub(super) fn outcomes_room(&self) -> usize {
        let outcomes = match self {
            Self::F32(engine) => &engine.outcomes,
            Self::F64(engine) => &engine.outcomes,
        };
        outcomes.as_ref().map_or(0, Outcomes::room)
    }

    /// Least number of rows that are evaluated as a block.
    pub(super) fn least_rows(&self, isa: Detected) -> usize {
        let work = match self {
            Self::F32(engine) => engine.work,
            Self::F64(engine) => engine.work,
        };
        work.least_rows(isa).unwrap_or(usize::MAX)
    }
}

/// At most [`RUN`] consecutive trees with one walk.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) first_tree: usize,
    pub(super) trees: usize,
    /// Whether the budget is checked before the run.
    pub(super) ask: bool,
    pub(super) walk: Walk,
    /// The first of its trees' programs, with which blocks of rows are evaluated. Blocks of other runs are evaluated
    /// by the complete trees of the walk.
    pub(super) first_part: Option<usize>,
}

#[derive(Debug)]
pub(super) enum Walk {
    /// Complete trees of one depth on byte ranks; leaf values copied into the engine.
    Ranked { depth: u8, first_line: usize, first_leaf: usize },
    /// Trees whose upper levels are evaluated on byte ranks, and the rest step by step.
    Tipped { first_line: usize, first_exit: usize },
    /// Trees that are walked step by step from their roots.
    Stepped { first_root: usize },
    /// At most [`GROUP`] complete trees of one depth on 32-bit keys, for forests of many features.
    Padded { depth: u8, first_node: usize, first_leaf: usize },
    /// At most [`GROUP`] trees, walked in the layout itself.
    Linked { steps: u8 },
}

/// The runs of a forest and their data in addition to the layout.
#[derive(Debug)]
pub(super) struct Engine<T> {
    pub(super) runs: Vec<Run>,
    /// The computation of ranks, if a walk or a program uses them.
    pub(super) ranks: Option<Ranks>,
    /// Whether a walk needs the narrow ranks of a row.
    pub(super) needs_ranks: bool,
    /// The outcomes of a row's tests, if a walk goes step by step.
    pub(super) outcomes: Option<Outcomes>,
    pub(super) steps: Steps,
    /// The columns of category tables, for programs.
    pub(super) columns: Columns,
    pub(super) programs: Programs,
    pub(super) work: Work,
    /// Whether a leaf is a vector.
    pub(super) vectors: bool,
    /// Whether a run needs the layout's 32-bit slots.
    pub(super) needs_slots: bool,
    pub(super) stretches: Vec<Stretch>,
    /// For each group of [`GROUP`] ranked trees their byte slots, then their cut numbers.
    pub(super) lines: Vec<Line>,
    /// For each padded group `[GROUP][2^depth]` nodes in heap order: node 0 is not used, the root is node 1.
    pub(super) nodes: Vec<PaddedNode>,
    /// For each complete tree `[2^depth]` leaf values. Empty if the forest has vector leaves; see `rows`.
    pub(super) leaves: Vec<T>,
    /// In forests with vector leaves, the index of each leaf's first value in the layout.
    pub(super) rows: Vec<u32>,
    /// For each tipped tree `[2^LINE_DEPTH]` places in `steps` from which the walk continues, and for each other tree
    /// that is walked step by step the place of its root.
    pub(super) exits: Vec<u32>,
}

impl<T: Real> Engine<T> {
    fn heap_bytes(&self) -> usize {
        size_of::<Run>() * self.runs.capacity()
            + size_of::<Stretch>() * self.stretches.capacity()
            + self.ranks.as_ref().map_or(0, Ranks::heap_bytes)
            + self.outcomes.as_ref().map_or(0, Outcomes::heap_bytes)
            + self.steps.heap_bytes()
            + self.programs.heap_bytes()
            + size_of::<Line>() * self.lines.capacity()
            + size_of::<PaddedNode>() * self.nodes.capacity()
            + size_of::<T>() * self.leaves.capacity()
            + size_of::<u32>() * (self.rows.capacity() + self.exits.capacity())
    }

    /// Computes the margins of one row. `reach` receives the leaves that the row reaches.
    #[expect(clippy::too_many_arguments, reason = "the parts of one evaluation, which different owners hold")]
    pub(super) fn margins<B: Budget + ?Sized>(
        &self,
        isa: Detected,
        (layout, leaves): (&Layout, &[T]),
        row: &[f32],
        budget: &B,
        scratch: &mut Scratch,
        reach: &mut impl Reach,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        if self.needs_slots {
            kernel::fill_slots(isa, &self.stretches, layout, row, &mut scratch.slots);
        }
        if let Some(ranks) = &self.ranks {
            if self.needs_ranks {
                kernel::rank_row(isa, ranks, layout, row, &mut scratch.ranks);
            }
            if let Some(outcomes) = &self.outcomes {
                let all = &mut scratch.outcomes;
                kernel::fill_outcomes(isa, (outcomes, ranks), layout, row, &scratch.ranks, all);
            }
        }
        let sums = T::sums(&mut scratch.sums);
        start(layout, sums);
        for run in &self.runs {
            if run.ask && budget.spent() {
                return Err(OutOfTime);
            }
            let trees = &layout.trees[run.first_tree..run.first_tree + run.trees];
            match run.walk {
                Walk::Ranked { depth, first_line, first_leaf } => {
                    let nodes = self.ranked(usize::from(depth), first_line, run.trees);
                    kernel::find(isa, nodes, self.byte_slots(), &scratch.ranks, &mut scratch.positions);
                    self.add(leaves, trees, usize::from(depth), first_leaf, &scratch.positions, sums);
                    reach.complete(run.first_tree, usize::from(depth), &scratch.positions[..run.trees]);
                }
                Walk::Tipped { first_line, first_exit } => {
                    let nodes = self.ranked(LINE_DEPTH, first_line, run.trees);
                    kernel::find(isa, nodes, self.byte_slots(), &scratch.ranks, &mut scratch.positions);
                    for (g, trees) in trees.chunks(GROUP).enumerate() {
                        let mut at = [self.exits[first_exit]; GROUP];
                        for (lane, at) in at.iter_mut().enumerate().take(trees.len()) {
                            let tree = GROUP * g + lane;
                            let position = usize::from(scratch.positions[tree]);
                            *at = self.exits[first_exit + (tree << LINE_DEPTH) + position];
                        }
                        let numbered = (run.first_tree + GROUP * g, trees);
                        let at = (LINE_DEPTH, &at);
                        self.add_stepped(layout, leaves, numbered, at, &scratch.outcomes, reach, sums);
                    }
                }
                Walk::Stepped { first_root } => {
                    let roots = &self.exits[first_root..first_root + run.trees];
                    for (g, (trees, roots)) in trees.chunks(GROUP).zip(roots.chunks(GROUP)).enumerate() {
                        let mut at = [roots[0]; GROUP];
                        at[..roots.len()].copy_from_slice(roots);
                        let numbered = (run.first_tree + GROUP * g, trees);
                        let at = (0, &at);
                        self.add_stepped(layout, leaves, numbered, at, &scratch.outcomes, reach, sums);
                    }
                }
                Walk::Padded { depth, first_node, first_leaf } => {
                    let nodes = &self.nodes[first_node..first_node + (GROUP << depth)];
                    #[expect(unsafe_code, reason = "the layout has been validated")]
                    // SAFETY: `build::plan` copied GROUP complete trees of this depth from a validated layout,
                    // and `Scratch::check` has shown that there are as many slots as the layout has.
                    let found = unsafe { walk::padded(usize::from(depth), nodes, &scratch.slots) };
                    self.add(leaves, trees, usize::from(depth), first_leaf, &found, sums);
                    reach.complete(run.first_tree, usize::from(depth), &found[..run.trees]);
                }
                Walk::Linked { steps } => {
                    let (steps, numbered) = (usize::from(steps), (run.first_tree, trees));
                    add_linked(layout, leaves, numbered, steps, &scratch.slots, reach, sums);
                }
            }
        }
        finish(layout, sums);
        for (out, &sum) in out.iter_mut().zip(sums.iter()) {
            *out = sum.to_f64();
        }
        Ok(())
    }

    fn byte_slots(&self) -> usize {
        self.ranks.as_ref().map_or(0, Ranks::len)
    }

    pub(super) fn ranked(&self, depth: usize, first_line: usize, trees: usize) -> Nodes<'_> {
        let lines = trees.div_ceil(GROUP) * Nodes::lines_per_group(depth);
        Nodes::new(depth, &self.lines[first_line..first_line + lines])
    }

    /// Walks at most [`GROUP`] trees, of which the first is tree `first_tree`, step by step from the places `at`, which
    /// are `above` levels below the roots, and adds the leaves.
    #[expect(clippy::too_many_arguments, reason = "the parts of one evaluation, which different owners hold")]
    #[inline]
    fn add_stepped(
        &self,
        layout: &Layout,
        leaves: &[T],
        (first_tree, trees): (usize, &[Span]),
        (above, at): (usize, &[u32; GROUP]),
        outcomes: &[u8],
        reach: &mut impl Reach,
        sums: &mut [T],
    ) {
        let levels = trees.iter().map(|tree| usize::from(tree.depth)).max().unwrap_or(0);
        #[expect(unsafe_code, reason = "the nodes were built from a validated layout")]
        // SAFETY: `build` took the places from `Steps::push`, and `Outcomes::fill` has written 0 or 1 to all outcomes,
        // and 0 to those of leaves.
        let found = unsafe { self.steps.walk(levels.saturating_sub(above), at, outcomes) };
        if let ([sum], false) = (&mut *sums, self.vectors) {
            // All leaves are scalars of one output, so the sum can stay in a register.
            let mut own = *sum;
            for (lane, (tree, &leaf)) in trees.iter().zip(&found).enumerate() {
                own += leaves[tree.first_value + leaf_number(leaf)];
                reach.leaf(first_tree + lane, leaf_number(leaf));
            }
            *sum = own;
            return;
        }
        for (lane, (tree, &leaf)) in trees.iter().zip(&found).enumerate() {
            let first = tree.first_value + leaf_number(leaf) * layout.width(tree.target);
            add_row(tree, &leaves[first..], sums);
            reach.leaf(first_tree + lane, leaf_number(leaf));
        }
    }

    /// Adds the leaves at `positions` of complete trees.
    #[inline]
    fn add(
        &self,
        leaves: &[T],
        trees: &[Span],
        depth: usize,
        first_leaf: usize,
        positions: &[u8],
        sums: &mut [T],
    ) {
        if self.rows.is_empty() {
            let values = &self.leaves[first_leaf..first_leaf + (trees.len() << depth)];
            let found = values.chunks_exact(1 << depth).zip(positions).map(|(values, &position)| {
                debug_assert!(usize::from(position) < values.len());
                #[expect(unsafe_code, reason = "a check per tree costs as much as the addition")]
                // SAFETY: kernels return positions below 2^depth, and a complete tree has that many values.
                unsafe {
                    *values.get_unchecked(usize::from(position))
                }
            });
            if let [sum] = sums {
                // All leaves are scalars of one output, so the sum can stay in a register.
                let mut own = *sum;
                found.for_each(|value| own += value);
                *sum = own;
            } else {
                for (tree, value) in trees.iter().zip(found) {
                    add_scalar(tree, value, sums);
                }
            }
        } else {
            let rows = &self.rows[first_leaf..first_leaf + (trees.len() << depth)];
            for (t, (tree, &position)) in trees.iter().zip(positions).enumerate() {
                let row = rows[(t << depth) + usize::from(position)] as usize;
                add_row(tree, &leaves[row..], sums);
            }
        }
    }
}

/// Walks at most [`GROUP`] trees, of which the first is tree `first_tree`, by `steps` steps from their roots to the
/// leaves and adds the leaves.
#[inline]
fn add_linked<T: Real>(
    layout: &Layout,
    leaves: &[T],
    (first_tree, trees): (usize, &[Span]),
    steps: usize,
    slots: &[i32],
    reach: &mut impl Reach,
    sums: &mut [T],
) {
    #[expect(unsafe_code, reason = "the layout has been validated")]
    // SAFETY: `Forest` holds only validated layouts, and `Scratch::check` has shown that there are as many slots as the
    // layout has.
    let found = unsafe { walk::linked(steps, &layout.nodes, trees, slots) };
    for (lane, tree) in trees.iter().enumerate() {
        let number = layout.nodes[tree.first_node + found[lane]].leaf_number();
        let first = tree.first_value + number * layout.width(tree.target);
        add_row(tree, &leaves[first..], sums);
        reach.leaf(first_tree + lane, number);
    }
}

fn start<T: Real>(layout: &Layout, sums: &mut [T]) {
    match layout.base_order {
        BaseOrder::First => {
            for (sum, &base) in sums.iter_mut().zip(&layout.base) {
                *sum = T::from_f64(base);
            }
        }
        BaseOrder::Last => sums.fill(T::default()),
    }
}

fn finish<T: Real>(layout: &Layout, sums: &mut [T]) {
    for (sum, &divisor) in sums.iter_mut().zip(&layout.divisor) {
        *sum /= T::from_f64(divisor);
    }
    if layout.base_order == BaseOrder::Last {
        for (sum, &base) in sums.iter_mut().zip(&layout.base) {
            *sum = T::from_f64(sum.to_f64() + base);
        }
    }
}

#[inline]
fn add_scalar<T: Real>(tree: &Span, value: T, sums: &mut [T]) {
    if let Target::Output(output) = tree.target {
        sums[output as usize] += value;
    }
}

#[inline]
fn add_row<T: Real>(tree: &Span, values: &[T], sums: &mut [T]) {
    match tree.target {
        Target::Output(output) => sums[output as usize] += values[0],
        Target::All => {
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += value;
            }
        }
    }
}
