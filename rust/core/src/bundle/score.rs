//! Scoring one row.

use super::program::End;
use super::{Bundle, EvalError, EvalScratch, Kind};
use crate::budget::Budget;

/// The result of a score bundle for one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreOut {
    /// The forest's raw output that the score comes from.
    pub margin: f64,
    /// The calibrated probability; without a calibration map the transformed output.
    pub score: f64,
    /// The score's band, an index into [`Bundle::labels`].
    pub band: usize,
}

impl Bundle {
    /// Scores one row, given in schema order and already checked against [`Bundle::schema`].
    ///
    /// # Errors
    /// A row of the wrong length, a bundle of the other kind, a score that is not finite, a budget that is spent
    /// before there is a score.
    pub fn score(
        &self,
        row: &[f32],
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<ScoreOut, EvalError> {
        if self.kind() != Kind::Score {
            return Err(EvalError::Kind { found: self.kind(), wanted: Kind::Score });
        }
        self.check_row(row, scratch)?;
        let buffers = &mut scratch.buffers;
        buffers.rows[..row.len()].copy_from_slice(row);
        self.program.run(budget, buffers)?;
        self.band(&buffers.values)
    }

    /// The answer from what the program left in its buffer of values.
    pub(super) fn band(&self, values: &[f64]) -> Result<ScoreOut, EvalError> {
        let End::Threshold(thresholds) = &self.program.end else {
            return Err(EvalError::Kind { found: self.kind(), wanted: Kind::Score });
        };
        let (margin, score) = (values[self.program.margin], values[self.program.score]);
        if !score.is_finite() {
            return Err(EvalError::NotFinite { what: "the score", value: score });
        }
        Ok(ScoreOut { margin, score, band: thresholds.band(score) })
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
