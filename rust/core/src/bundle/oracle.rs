//! Scores of all eligible actions in one context.
//!
//! This is the one place that knows how: today the program runs once per action; an evaluator that settles the
//! action features at load would replace [`fill_scores`] and nothing else.

use super::{Bundle, EvalError, EvalScratch};
use crate::budget::Budget;
use crate::policy::Mask;

/// Fills `scratch.scores` (and the margins behind them) for every eligible action; NaN for all others.
pub(super) fn fill_scores(
    bundle: &Bundle,
    context: &[f32],
    eligible: &Mask,
    budget: &dyn Budget,
    scratch: &mut EvalScratch,
) -> Result<(), EvalError> {
    let (program, actions) = (&bundle.program, bundle.catalogue.len());
    let EvalScratch { buffers, scores, margins, .. } = scratch;
    scores.fill(f64::NAN);
    buffers.rows[..context.len()].copy_from_slice(context);
    let per_action = margins.len() / actions;
    for action in eligible.iter() {
        let own = &bundle.action_rows[action * bundle.action_width..(action + 1) * bundle.action_width];
        buffers.rows[context.len()..program.width].copy_from_slice(own);
        program.run(budget, buffers)?;
        scores[action] = buffers.values[program.score];
        for (voter, &at) in program.voters.iter().enumerate() {
            scores[(voter + 1) * actions + action] = buffers.values[at];
        }
        let mut kept = margins[action * per_action..(action + 1) * per_action].iter_mut();
        for range in &program.margins {
            // In this order: the other way round, zip takes one place too many.
            buffers.values[range.clone()]
                .iter()
                .zip(kept.by_ref())
                .for_each(|(&margin, kept)| *kept = margin);
        }
    }
    Ok(())
}
