//! Scores many rows. Forests evaluate them in blocks, all other nodes row by row.

use super::program::{End, Program, Step};
use super::scratch::Buffers;
use super::{Bundle, EvalError, EvalScratch, Kind, ScoreOut};
use crate::budget::Budget;

/// Number of rows that are prepared at a time and that forests evaluate as one block.
const BLOCK: usize = 64;

/// The inputs and outputs of the forests for one block of rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Blocks {
    /// Input rows of each forest, `[BLOCK, width]`.
    rows: Vec<Vec<f32>>,
    /// Margins of each forest, `[BLOCK, outputs]`.
    margins: Vec<Vec<f64>>,
    /// For each row the error of a transform, if one failed.
    failed: Vec<Option<EvalError>>,
}

impl Blocks {
    pub(super) fn new(program: &Program) -> Blocks {
        // Action bundles do not score blocks of rows, so they need no buffers.
        if !matches!(program.end, End::Threshold(_)) {
            return Blocks::default();
        }
        Blocks {
            rows: program.forests.iter().map(|_| vec![0.0; BLOCK * program.width]).collect(),
            margins: program.margins.iter().map(|range| vec![0.0; BLOCK * range.len()]).collect(),
            failed: vec![None; BLOCK],
        }
    }
}

impl Bundle {
    /// Scores row-major rows, each as described at [`Bundle::score`], and appends one result per row to `out`. The
    /// results have the same bits as those of single calls; for dozens of rows this takes a fraction of the time. It
    /// allocates memory only if `out` lacks capacity.
    ///
    /// # Errors
    /// Fails if `rows` is not a whole number of rows, the bundle is an action bundle, or the budget is spent before
    /// every row is scored. `out` then holds the results of the blocks that were completed. A single row that cannot be
    /// scored is an error in `out`.
    pub fn score_rows(
        &self,
        rows: &[f32],
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
        out: &mut Vec<Result<ScoreOut, EvalError>>,
    ) -> Result<(), EvalError> {
        if self.kind() != Kind::Score {
            return Err(EvalError::Kind { found: self.kind(), wanted: Kind::Score });
        }
        let width = self.schema.len();
        if !rows.len().is_multiple_of(width.max(1)) {
            return Err(EvalError::RowLength { got: rows.len() % width.max(1), expected: width });
        }
        for rows in rows.chunks(BLOCK * width.max(1)) {
            self.check_row(&rows[..width], scratch)?;
            self.score_block(rows, budget, scratch, out)?;
        }
        Ok(())
    }

    fn score_block(
        &self,
        rows: &[f32],
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
        out: &mut Vec<Result<ScoreOut, EvalError>>,
    ) -> Result<(), EvalError> {
        let (program, width) = (&self.program, self.schema.len());
        let count = rows.len() / width;
        let EvalScratch { buffers, blocks, .. } = scratch;
        for (at, row) in rows.chunks_exact(width).enumerate() {
            buffers.rows[..width].copy_from_slice(row);
            blocks.failed[at] = program.rows_of_forests(buffers, &mut blocks.rows, at).err();
        }
        for (number, forest) in program.forests.iter().enumerate() {
            let rows = &blocks.rows[number][..count * width];
            let margins = &mut blocks.margins[number][..count * forest.num_outputs()];
            forest.margins_rows(rows, budget, &mut buffers.forests[number], margins)?;
        }
        for at in 0..count {
            if let Some(error) = blocks.failed[at].take() {
                out.push(Err(error));
                continue;
            }
            for (margins, range) in blocks.margins.iter().zip(&program.margins) {
                buffers.values[range.clone()].copy_from_slice(&margins[at * range.len()..][..range.len()]);
            }
            for step in &program.steps {
                program.value(step, buffers);
            }
            out.push(self.band(&buffers.values));
        }
        Ok(())
    }
}

impl Program {
    /// Transforms the row in slot 0 and stores the input of each forest as its `at`-th row.
    fn rows_of_forests(
        &self,
        buffers: &mut Buffers,
        forests: &mut [Vec<f32>],
        at: usize,
    ) -> Result<(), EvalError> {
        for step in &self.steps {
            match step {
                Step::Transform { transform, from, to } => {
                    self.transform(transform, *from, *to, &mut buffers.rows)?;
                }
                Step::Forest { forest, row } => {
                    let row = &buffers.rows[row * self.width..(row + 1) * self.width];
                    forests[*forest][at * self.width..(at + 1) * self.width].copy_from_slice(row);
                }
                Step::Link { .. } | Step::Calibrate { .. } | Step::Overlay { .. } => {}
            }
        }
        Ok(())
    }
}
