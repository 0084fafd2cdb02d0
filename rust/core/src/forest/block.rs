//! Evaluates a block of rows at once, for forests on byte ranks.
//!
//! Trees are the outer loop and rows the inner loop, so the leaves of every row are added in the trees' order.

use crate::budget::{Budget, OutOfTime};

use super::cpu::Detected;
use super::kernel::{self, GROUP, LINE_DEPTH};
use super::layout::{Layout, Span};
use super::model::{BaseOrder, Target};
use super::plan::{Engine, Walk};
use super::rank::{Column, ROWS};
use super::sum::Real;
use super::walk;

/// Working memory for blocks of one forest.
#[derive(Debug, Clone, Default)]
pub(super) struct Block<T> {
    columns: Vec<Column>,
    /// `[outputs][ROWS]`.
    sums: Vec<[T; ROWS]>,
    /// `[ROWS][slots]`; empty if the engine does not need slots.
    slots: Vec<i32>,
}

impl<T: Real> Block<T> {
    pub(super) fn new(engine: &Engine<T>, layout: &Layout) -> Self {
        let Some(ranks) = &engine.ranks else { return Self::default() };
        let slots = if engine.needs_slots { layout.slots.sentinels(ROWS) } else { Vec::new() };
        Self {
            columns: vec![Column([0; ROWS]); ranks.len()],
            sums: vec![[T::default(); ROWS]; layout.num_outputs],
            slots,
        }
    }

    pub(super) fn fits(&self, engine: &Engine<T>, layout: &Layout) -> bool {
        let Some(ranks) = &engine.ranks else { return self.columns.is_empty() };
        let slots = if engine.needs_slots { ROWS * layout.slots.len() } else { 0 };
        self.columns.len() == ranks.len()
            && self.sums.len() == layout.num_outputs
            && self.slots.len() == slots
    }
}

impl<T: Real> Engine<T> {
    /// Computes the margins `[rows, outputs]` of at most [`ROWS`] rows. The engine has ranks.
    pub(super) fn block<B: Budget + ?Sized>(
        &self,
        isa: Detected,
        (layout, leaves): (&Layout, &[T]),
        rows: &[f32],
        budget: &B,
        block: &mut Block<T>,
        out: &mut [f64],
    ) -> Result<(), OutOfTime> {
        let Some(ranks) = &self.ranks else { return Ok(()) };
        let count = rows.len() / layout.num_features;
        let Block { columns, sums, slots } = block;
        kernel::rank_rows(isa, ranks, layout, rows, columns);
        if self.needs_slots {
            let width = layout.slots.len();
            for (row, slots) in rows.chunks_exact(layout.num_features).zip(slots.chunks_exact_mut(width)) {
                layout.slots.fill(row, slots);
            }
        }
        start(layout, sums);
        let mut found = [[0; ROWS]; GROUP];
        for run in &self.runs {
            if run.ask && budget.spent() {
                return Err(OutOfTime);
            }
            let trees = &layout.trees[run.first_tree..run.first_tree + run.trees];
            match run.walk {
                Walk::Ranked { depth, first_line, first_leaf } => {
                    let nodes = self.ranked(usize::from(depth), first_line, run.trees);
                    for (t, tree) in trees.iter().enumerate() {
                        let first = first_leaf + (t << depth);
                        if let Some(values) = self.leaves.get(first..first + (1 << depth)) {
                            let Target::Output(output) = tree.target else { continue };
                            let sums = &mut sums[output as usize];
                            #[expect(unsafe_code, reason = "kernels trust the tables")]
                            // SAFETY: `build` writes only byte slots of these ranks, and `Block::fits` has
                            // shown that there is a column for each of them.
                            unsafe {
                                T::add_block(isa, nodes, t, columns, count, values, sums);
                            }
                        } else {
                            #[expect(unsafe_code, reason = "kernels trust the tables")]
                            // SAFETY: as above.
                            unsafe {
                                kernel::positions(isa, nodes, t, columns, count, &mut found[0]);
                            }
                            for (row, &position) in found[0].iter().enumerate().take(count) {
                                let value = self.rows[first + usize::from(position)] as usize;
                                add_row(tree, &leaves[value..], sums, row);
                            }
                        }
                    }
                }
                Walk::Tipped { first_line, first_exit, steps } => {
                    let nodes = self.ranked(LINE_DEPTH, first_line, run.trees);
                    for (g, trees) in trees.chunks(GROUP).enumerate() {
                        for (lane, found) in found.iter_mut().enumerate().take(trees.len()) {
                            #[expect(unsafe_code, reason = "kernels trust the tables")]
                            // SAFETY: as above.
                            unsafe {
                                kernel::positions(isa, nodes, GROUP * g + lane, columns, count, found);
                            }
                        }
                        let exits = &self.exits[first_exit + ((GROUP * g) << LINE_DEPTH)..];
                        for (row, slots) in slots.chunks_exact(layout.slots.len()).enumerate().take(count) {
                            let mut at = [0; GROUP];
                            for (lane, at) in at.iter_mut().enumerate().take(trees.len()) {
                                *at = exits[(lane << LINE_DEPTH) + usize::from(found[lane][row])];
                            }
                            #[expect(unsafe_code, reason = "the layout has been validated")]
                            // SAFETY: `Forest` holds only validated layouts, exits are nodes of the layout's
                            // trees, and each row has as many slots as the layout.
                            let ends =
                                unsafe { walk::linked(usize::from(steps), &layout.nodes, trees, at, slots) };
                            for (tree, end) in trees.iter().zip(ends) {
                                let number = layout.nodes[tree.first_node + end].leaf_number();
                                let first = tree.first_value + number * layout.width(tree.target);
                                add_row(tree, &leaves[first..], sums, row);
                            }
                        }
                    }
                }
                // A forest with ranks has no other runs.
                Walk::Padded { .. } | Walk::Linked { .. } => {}
            }
        }
        finish(layout, sums);
        for (row, out) in out.chunks_exact_mut(layout.num_outputs).enumerate() {
            for (out, sums) in out.iter_mut().zip(sums.iter()) {
                *out = sums[row].to_f64();
            }
        }
        Ok(())
    }
}

fn start<T: Real>(layout: &Layout, sums: &mut [[T; ROWS]]) {
    for (sums, &base) in sums.iter_mut().zip(&layout.base) {
        *sums = match layout.base_order {
            BaseOrder::First => [T::from_f64(base); ROWS],
            BaseOrder::Last => [T::default(); ROWS],
        };
    }
}

fn finish<T: Real>(layout: &Layout, sums: &mut [[T; ROWS]]) {
    for (sums, &divisor) in sums.iter_mut().zip(&layout.divisor) {
        let divisor = T::from_f64(divisor);
        sums.iter_mut().for_each(|sum| *sum /= divisor);
    }
    if layout.base_order == BaseOrder::Last {
        for (sums, &base) in sums.iter_mut().zip(&layout.base) {
            sums.iter_mut().for_each(|sum| *sum = T::from_f64(sum.to_f64() + base));
        }
    }
}

#[inline]
fn add_row<T: Real>(tree: &Span, values: &[T], sums: &mut [[T; ROWS]], row: usize) {
    match tree.target {
        Target::Output(output) => sums[output as usize][row] += values[0],
        Target::All => {
            for (sums, &value) in sums.iter_mut().zip(values) {
                sums[row] += value;
            }
        }
    }
}
