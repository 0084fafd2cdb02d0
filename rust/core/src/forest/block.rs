//! Evaluates a block of rows at once, for forests on byte ranks.
//!
//! Trees are the outer loop and rows the inner loop, so the leaves of every row are added in the trees' order.

use crate::budget::{Budget, OutOfTime};

use super::cpu::Detected;
use super::kernel::{self, mux};
use super::layout::{Layout, Span};
use super::model::{BaseOrder, Target};
use super::plan::{Engine, Walk};
use super::program::Part;
use super::rank::{Column, ROWS};
use super::sum::Real;

/// Working memory for blocks of one forest.
#[derive(Debug, Clone, Default)]
pub(super) struct Block<T> {
    /// Constants, ranks and temporaries of programs.
    work: Vec<Column>,
    /// `[outputs][ROWS]`.
    sums: Vec<[T; ROWS]>,
    /// The columns of category tables, if the ranks are wide.
    tables: Vec<u64>,
}

impl<T: Real> Block<T> {
    pub(super) fn new(engine: &Engine<T>, layout: &Layout) -> Self {
        if engine.ranks.is_none() {
            return Self::default();
        }
        Self {
            work: engine.programs.work(),
            sums: vec![[T::default(); ROWS]; layout.num_outputs],
            tables: vec![0; engine.table_columns()],
        }
    }

    pub(super) fn fits(&self, engine: &Engine<T>, layout: &Layout) -> bool {
        if engine.ranks.is_none() {
            return self.work.is_empty();
        }
        self.work.len() == engine.programs.work_len()
            && self.sums.len() == layout.num_outputs
            && self.tables.len() == engine.table_columns()
    }
}

impl<T: Real> Engine<T> {
    /// Number of columns of category tables that programs test in place of ranks.
    fn table_columns(&self) -> usize {
        match &self.ranks {
            Some(ranks) if !ranks.is_narrow() => 64 * self.columns.words(),
            _ => 0,
        }
    }

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
        let Block { work, sums, tables } = block;
        let first = self.programs.first_rank();
        mux::rank_rows(isa, ranks, layout, rows, &mut work[first..first + ranks.len()]);
        if !tables.is_empty() {
            mux::fill_tables(isa, self.columns, layout, rows, tables);
        }
        start(layout, sums);
        let mut found = [0; ROWS];
        for run in &self.runs {
            if run.ask && budget.spent() {
                return Err(OutOfTime);
            }
            let trees = &layout.trees[run.first_tree..run.first_tree + run.trees];
            if let Some(first) = run.first_part {
                for (tree, part) in trees.iter().zip(&self.programs.parts[first..]) {
                    self.part(isa, (layout, leaves), (tree, part), count, (work, tables), sums);
                }
                continue;
            }
            // Every other walk has programs.
            let Walk::Ranked { depth, first_line, first_leaf } = run.walk else { continue };
            let columns = &work[first..first + ranks.len()];
            let nodes = self.ranked(usize::from(depth), first_line, run.trees);
            for (t, tree) in trees.iter().enumerate() {
                let first = first_leaf + (t << depth);
                if let Some(values) = self.leaves.get(first..first + (1 << depth)) {
                    let Target::Output(output) = tree.target else { continue };
                    let sums = &mut sums[output as usize];
                    #[expect(unsafe_code, reason = "kernels trust the tables")]
                    // SAFETY: `build` writes only byte slots of these ranks, and `Block::fits` has shown that there is
                    // a column for each of them.
                    unsafe {
                        T::add_block(isa, nodes, t, columns, count, values, sums);
                    }
                } else {
                    #[expect(unsafe_code, reason = "kernels trust the tables")]
                    // SAFETY: as above.
                    unsafe {
                        kernel::positions(isa, nodes, t, columns, count, &mut found);
                    }
                    for (row, &position) in found.iter().enumerate().take(count) {
                        let value = self.rows[first + usize::from(position)] as usize;
                        add_row(tree, &leaves[value..], sums, row);
                    }
                }
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

    /// Adds the leaves of one tree, found by its program.
    #[expect(unsafe_code, reason = "kernels trust the programs")]
    fn part(
        &self,
        isa: Detected,
        (layout, leaves): (&Layout, &[T]),
        (tree, part): (&Span, &Part),
        count: usize,
        (work, tables): (&mut [Column], &[u64]),
        sums: &mut [[T; ROWS]],
    ) {
        let programs = &self.programs;
        mux::expand(isa, tables, programs.columns(part), &mut work[programs.first_table()..]);
        // SAFETY: `Programs` writes operands below the number of columns of a work space, which `Block::fits` has shown.
        unsafe { mux::execute(isa, programs.operations(part), work) };
        let found = &work[usize::from(part.result)];
        let width = layout.width(tree.target);
        let leaves = &leaves[tree.first_value..tree.first_value + tree.leaves() * width];
        if let Some(first_exit) = part.first_exit {
            let numbers = self.rest(first_exit, found, count, (work, tables));
            if let Target::Output(output) = tree.target {
                for (sum, &number) in sums[output as usize].iter_mut().zip(&numbers).take(count) {
                    *sum += leaves[number as usize];
                }
                return;
            }
            for (row, &number) in numbers.iter().enumerate().take(count) {
                add_row(tree, &leaves[number as usize * width..], sums, row);
            }
            return;
        }
        if let Target::Output(output) = tree.target {
            // SAFETY: the program selects among the numbers of the tree's leaves.
            unsafe { T::add_leaves(isa, found, leaves, &mut sums[output as usize]) };
            return;
        }
        for (row, &number) in found.0.iter().enumerate().take(count) {
            add_row(tree, &leaves[usize::from(number) * width..], sums, row);
        }
    }

    /// Walks the rows from the exits of a program to leaves, and returns the numbers of the leaves.
    fn rest(
        &self,
        first_exit: u32,
        found: &Column,
        count: usize,
        (work, tables): (&[Column], &[u64]),
    ) -> [u32; ROWS] {
        let exits = &self.programs.exits[first_exit as usize..];
        let mut at = found.0.map(|exit| exits[usize::from(exit)]);
        #[expect(unsafe_code, reason = "kernels trust the programs")]
        // SAFETY: `Programs` has pushed the branches of a validated tree, whose tests are of these ranks and tables.
        unsafe {
            mux::follow(&self.programs.branches, work, tables, count, &mut at);
        }
        at
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
