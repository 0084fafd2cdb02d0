//! Choosing one action: score every eligible one, apply the policy, draw.

use super::program::End;
use super::{Bundle, EvalError, EvalScratch, Kind, oracle};
use crate::budget::Budget;
use crate::policy::{Mask, Policy, PolicyError, PolicyScratch, choose, draw};

/// What an action bundle chose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SelectOut {
    /// Position of the action in the catalogue.
    pub index: usize,
    /// The probability with which the policy chose it.
    pub propensity: f64,
    /// The oracle's calibrated P(reward | context, action).
    pub expected_reward: f64,
}

impl Bundle {
    /// Chooses one eligible action. The same checkpoint, decision id, row and mask give the same action and
    /// propensity. `row` holds the context's features, already checked against [`Bundle::schema`]; afterwards
    /// [`EvalScratch::pmf`] holds every action's probability.
    ///
    /// # Errors
    /// A row or mask of the wrong length, no eligible action, a bundle of the other kind, a score that is not
    /// finite, a budget that is spent before every action has its score.
    pub fn select(
        &self,
        row: &[f32],
        eligible: &Mask,
        checkpoint: &str,
        decision_id: &str,
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<SelectOut, EvalError> {
        let policy = self.prepare(row, eligible, budget, scratch)?;
        let EvalScratch { scores, pmf, policy: memory, .. } = scratch;
        policy.pmf(scores, eligible, pmf, memory.as_mut().ok_or(EvalError::Scratch)?)?;
        let point = draw(&policy.salt().0, checkpoint, decision_id);
        // The pmf sums to 1, so there always is an action to choose.
        let index = choose(pmf, point).ok_or(PolicyError::NoEligibleAction)?;
        Ok(SelectOut { index, propensity: pmf[index], expected_reward: scores[index] })
    }

    /// The best eligible action with propensity 1: what is played while exploration is stopped. The pmf is then
    /// 1 for that action and 0 for every other.
    ///
    /// # Errors
    /// As [`Bundle::select`].
    pub fn select_greedy(
        &self,
        row: &[f32],
        eligible: &Mask,
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<SelectOut, EvalError> {
        let policy = self.prepare(row, eligible, budget, scratch)?;
        let EvalScratch { scores, pmf, policy: memory, .. } = scratch;
        let memory: &mut PolicyScratch = memory.as_mut().ok_or(EvalError::Scratch)?;
        let index = policy.best(scores, eligible, memory)?;
        pmf.fill(0.0);
        pmf[index] = 1.0;
        Ok(SelectOut { index, propensity: 1.0, expected_reward: scores[index] })
    }

    fn prepare(
        &self,
        row: &[f32],
        eligible: &Mask,
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<&Policy, EvalError> {
        let End::Policy(policy) = &self.program.end else {
            return Err(EvalError::Kind { found: self.kind(), wanted: Kind::Action });
        };
        self.check_row(row, scratch)?;
        if eligible.len() != self.catalogue.len() {
            let (mask, catalogue) = (eligible.len(), self.catalogue.len());
            return Err(PolicyError::MaskLength { mask, catalogue }.into());
        }
        if eligible.is_empty() {
            return Err(PolicyError::NoEligibleAction.into());
        }
        oracle::fill_scores(self, row, eligible, budget, scratch)?;
        Ok(policy)
    }
}
