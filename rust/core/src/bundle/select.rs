//! Chooses one action: scores every eligible action, applies the policy and draws.

use super::program::End;
use super::{Bundle, EvalError, EvalScratch, FunctionSet, Kind, oracle};
use crate::budget::Budget;
use crate::policy::{Mask, Policy, PolicyError, PolicyScratch, choose, draw};

/// The action that an action bundle chose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SelectOut {
    /// Position of the action in the catalogue.
    pub index: usize,
    /// The probability with which the policy chose it.
    pub propensity: f64,
    /// The oracle's calibrated P(reward | context, action).
    pub expected_reward: f64,
    /// The functions of the bundle that had no result in a transform for one of the eligible actions, so that a column
    /// was missing.
    pub faulted: FunctionSet,
}

impl Bundle {
    /// Chooses one eligible action. The same checkpoint, decision id, row and mask give the same action and propensity.
    /// `row` holds the context's features, which have been checked against [`Bundle::schema`]. Afterwards
    /// [`EvalScratch::pmf`] returns the probability of every action.
    ///
    /// # Errors
    /// Fails if the row or mask has the wrong length, no action is eligible, the bundle is a score bundle, the scratch
    /// belongs to another bundle, a score is not finite, or the budget is spent before every action is scored.
    pub fn select(
        &self,
        row: &[f32],
        eligible: &Mask,
        checkpoint: &str,
        decision_id: &str,
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<SelectOut, EvalError> {
        let (policy, faulted) = self.prepare(row, eligible, budget, scratch)?;
        self.timed_policy(scratch, |EvalScratch { scores, pmf, policy: memory, .. }| {
            policy.pmf(scores, eligible, pmf, memory.as_mut().ok_or(EvalError::Scratch)?)?;
            let point = draw(&policy.salt().0, checkpoint, decision_id);
            // The pmf sums to 1, so at least one action has a probability above 0.
            let index = choose(pmf, point).ok_or(PolicyError::NoEligibleAction)?;
            Ok(SelectOut { index, propensity: pmf[index], expected_reward: scores[index], faulted })
        })
    }

    /// Chooses the best eligible action with propensity 1. The server uses it while exploration is stopped. The pmf is
    /// then 1 for that action and 0 for all others.
    ///
    /// # Errors
    /// Fails as [`Bundle::select`] does.
    pub fn select_greedy(
        &self,
        row: &[f32],
        eligible: &Mask,
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<SelectOut, EvalError> {
        let (policy, faulted) = self.prepare(row, eligible, budget, scratch)?;
        self.timed_policy(scratch, |EvalScratch { scores, pmf, policy: memory, .. }| {
            let memory: &mut PolicyScratch = memory.as_mut().ok_or(EvalError::Scratch)?;
            let index = policy.best(scores, eligible, memory)?;
            pmf.fill(0.0);
            pmf[index] = 1.0;
            Ok(SelectOut { index, propensity: 1.0, expected_reward: scores[index], faulted })
        })
    }

    /// Runs the policy, which is the last node, and measures its time if evaluations are timed.
    fn timed_policy(
        &self,
        scratch: &mut EvalScratch,
        choose: impl FnOnce(&mut EvalScratch) -> Result<SelectOut, EvalError>,
    ) -> Result<SelectOut, EvalError> {
        scratch.buffers.times.begin(self.program.last_node);
        let out = choose(scratch);
        scratch.buffers.times.end();
        out
    }

    fn prepare(
        &self,
        row: &[f32],
        eligible: &Mask,
        budget: &dyn Budget,
        scratch: &mut EvalScratch,
    ) -> Result<(&Policy, FunctionSet), EvalError> {
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
        // An evaluation that failed has left its faults.
        scratch.buffers.take_faulted();
        oracle::fill_scores(self, row, eligible, budget, scratch)?;
        Ok((policy, scratch.buffers.take_faulted()))
    }
}
