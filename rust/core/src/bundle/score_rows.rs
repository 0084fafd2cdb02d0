//! Scores many rows. Forests evaluate them in blocks, all other nodes row by row.

use super::program::{End, Program, Step};
use super::scratch::Buffers;
use super::transform::Run;
use super::{Bundle, EvalError, EvalScratch, FunctionSet, Kind, ScoreOut};
use crate::budget::Budget;

/// Number of rows that are prepared at a time and that forests evaluate as one block.
const BLOCK: usize = 64;

/// The position of a forest's input that a row does not need.
const SKIPPED: usize = usize::MAX;

/// The inputs and outputs of the forests for one block of rows.
#[derive(Debug, Clone, Default)]
pub(super) struct Blocks {
    /// Input rows of each forest, `[BLOCK, width]`: those of the rows that need it, without gaps.
    rows: Vec<Vec<f32>>,
    /// Margins of each forest, `[BLOCK, outputs]`.
    margins: Vec<Vec<f64>>,
    /// Output of each ONNX model for each row, `[BLOCK, models]`.
    nets: Vec<f64>,
    /// Number of input rows of each forest.
    counts: Vec<usize>,
    /// For each row the position of its input for each forest, `[BLOCK, forests]`; `SKIPPED` where a switch has chosen
    /// another branch.
    places: Vec<usize>,
    /// For each row the branch of each switch, `[BLOCK, switches]`.
    chosen: Vec<usize>,
    /// For each row the error of a transform, if one failed.
    failed: Vec<Option<EvalError>>,
    /// For each row the functions that had no result.
    faulted: Vec<FunctionSet>,
}

impl Blocks {
    pub(super) fn new(program: &Program) -> Blocks {
        // Action bundles do not score blocks of rows, so they need no buffers.
        if !matches!(program.end, End::Threshold(_)) {
            return Blocks::default();
        }
        Blocks {
            rows: program.forests.iter().map(|forest| vec![0.0; BLOCK * forest.num_features()]).collect(),
            margins: program.margins.iter().map(|range| vec![0.0; BLOCK * range.len()]).collect(),
            nets: vec![0.0; BLOCK * program.nets.len()],
            counts: vec![0; program.forests.len()],
            places: vec![SKIPPED; BLOCK * program.forests.len()],
            chosen: vec![0; BLOCK * program.selectors.len()],
            failed: vec![None; BLOCK],
            faulted: vec![FunctionSet::default(); BLOCK],
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
        let (forests, switches) = (program.forests.len(), program.selectors.len());
        blocks.counts.fill(0);
        for (at, row) in rows.chunks_exact(width).enumerate() {
            buffers.rows[..width].copy_from_slice(row);
            // An evaluation that failed has left its faults.
            buffers.take_faulted();
            blocks.failed[at] = match program.prepare(budget, buffers, blocks, at) {
                Err(EvalError::OutOfTime(late)) => return Err(late.into()),
                prepared => prepared.err(),
            };
            blocks.faulted[at] = buffers.take_faulted();
            blocks.chosen[at * switches..][..switches].copy_from_slice(&buffers.chosen);
        }
        for (number, forest) in program.forests.iter().enumerate() {
            let count = blocks.counts[number];
            let rows = &blocks.rows[number][..count * forest.num_features()];
            let margins = &mut blocks.margins[number][..count * forest.num_outputs()];
            forest.margins_rows(rows, budget, &mut buffers.forests[number], margins)?;
        }
        for at in 0..count {
            if let Some(error) = blocks.failed[at].take() {
                out.push(Err(error));
                continue;
            }
            buffers.chosen.copy_from_slice(&blocks.chosen[at * switches..][..switches]);
            let places = &blocks.places[at * forests..][..forests];
            for ((margins, range), &place) in blocks.margins.iter().zip(&program.margins).zip(places) {
                if place != SKIPPED {
                    buffers.values[range.clone()]
                        .copy_from_slice(&margins[place * range.len()..][..range.len()]);
                }
            }
            let outputs = &blocks.nets[at * program.nets.len()..];
            for (node, &output) in program.nets.iter().zip(outputs) {
                buffers.values[node.margin] = output;
            }
            for (step, guard) in program.steps.iter().zip(&program.guards) {
                if guard.is_none_or(|guard| guard.holds(&buffers.chosen)) {
                    program.value(step, buffers);
                }
            }
            out.push(self.band(&buffers.values, blocks.faulted[at]));
        }
        Ok(())
    }
}

impl Program {
    /// Transforms the row in slot 0, adds it to the inputs of each forest that it needs, and evaluates ONNX models. It is
    /// the block's row `at`.
    fn prepare(
        &self,
        budget: &dyn Budget,
        buffers: &mut Buffers,
        blocks: &mut Blocks,
        at: usize,
    ) -> Result<(), EvalError> {
        let forests = self.forests.len();
        blocks.places[at * forests..][..forests].fill(SKIPPED);
        for (step, guard) in self.steps.iter().zip(&self.guards) {
            if guard.is_some_and(|guard| !guard.holds(&buffers.chosen)) {
                continue;
            }
            match step {
                Step::Transform { transform, from, to } => {
                    let run = Run { budget, calls: buffers.functions.as_mut(), until: usize::MAX };
                    self.transform(transform, *from, *to, &mut buffers.rows, run)?;
                }
                Step::Choose { switch } => buffers.chosen[*switch] = self.choice(*switch, &buffers.rows),
                Step::Forest { forest, row } => {
                    let row = &buffers.rows[self.rows[*row].range.clone()];
                    let place = blocks.counts[*forest];
                    blocks.rows[*forest][place * row.len()..][..row.len()].copy_from_slice(row);
                    blocks.places[at * forests + *forest] = place;
                    blocks.counts[*forest] += 1;
                }
                Step::Net { net } => {
                    blocks.nets[at * self.nets.len() + *net] =
                        self.net_output(*net, &buffers.rows, budget, &mut buffers.nets[*net])?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
