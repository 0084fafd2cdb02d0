//! Scores one row.

use super::program::End;
use super::scratch::Buffers;
use super::{Bundle, EvalError, EvalScratch, FunctionSet, Kind};
use crate::budget::Budget;

/// The result of a score bundle for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreOut {
    /// The forest's raw output from which the score is computed.
    pub margin: f64,
    /// The calibrated probability; in a program without a calibration map, the output of the link function.
    pub score: f64,
    /// Index of the score's band in [`Bundle::labels`].
    pub band: usize,
    /// The functions of the bundle that had no result in a transform, so that a column was missing.
    pub faulted: FunctionSet,
}

impl Bundle {
    /// Scores one row, which is in schema order and has been checked against [`Bundle::schema`].
    ///
    /// # Errors
    /// Fails if the row has the wrong length, the bundle is an action bundle, the scratch belongs to another bundle,
    /// the score is not finite, or the budget is spent before the score is computed.
    pub fn score(
        &self,
        row: &[f32],
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<ScoreOut, EvalError> {
        self.set_row(row, scratch)?;
        self.program.run(budget, &mut scratch.buffers, None)?;
        self.timed_band(&mut scratch.buffers)
    }

    /// Reads the result as [`Bundle::band`] does, with the faults since [`Bundle::set_row`], and measures the time of
    /// the last node if evaluations are timed.
    pub(super) fn timed_band(&self, buffers: &mut Buffers) -> Result<ScoreOut, EvalError> {
        buffers.times.begin(self.program.last_node);
        let faulted = buffers.take_faulted();
        let out = self.band(&buffers.values, faulted);
        buffers.times.end();
        out
    }

    /// Checks the row of a score and makes it the program's input.
    pub(super) fn set_row(&self, row: &[f32], scratch: &mut EvalScratch) -> Result<(), EvalError> {
        if self.kind() != Kind::Score {
            return Err(EvalError::Kind { found: self.kind(), wanted: Kind::Score });
        }
        self.check_row(row, scratch)?;
        scratch.buffers.rows[..row.len()].copy_from_slice(row);
        // An evaluation that failed has left its faults.
        scratch.buffers.take_faulted();
        Ok(())
    }

    /// Reads the result from the buffer of values that the program has filled.
    pub(super) fn band(&self, values: &[f64], faulted: FunctionSet) -> Result<ScoreOut, EvalError> {
        let End::Threshold(thresholds) = &self.program.end else {
            return Err(EvalError::Kind { found: self.kind(), wanted: Kind::Score });
        };
        let (margin, score) = (values[self.program.margin], values[self.program.score]);
        if !score.is_finite() {
            return Err(EvalError::NotFinite { what: "the score", value: score });
        }
        Ok(ScoreOut { margin, score, band: thresholds.band(score), faulted })
    }

    /// The band of a score; `None` for an action bundle.
    #[must_use]
    pub fn band_of(&self, score: f64) -> Option<usize> {
        match &self.program.end {
            End::Threshold(thresholds) => Some(thresholds.band(score)),
            End::Policy(_) => None,
        }
    }

    pub(super) fn check_row(&self, row: &[f32], scratch: &EvalScratch) -> Result<(), EvalError> {
        if scratch.bundle != self.digest {
            return Err(EvalError::Scratch);
        }
        if row.len() != self.schema.len() {
            return Err(EvalError::RowLength { got: row.len(), expected: self.schema.len() });
        }
        Ok(())
    }
}
