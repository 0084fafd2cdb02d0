//! Policies: they turn oracle scores and the eligible set into a probability for every action.
//!
//! A rule computes the probabilities of the eligible actions from their Lagrangian scores (the score minus the prices
//! of the caps). Floors are then applied by projection (see [`floor`]). For every rule the result
//!
//! * sums to 1 within 1e-6 over the eligible actions and is exactly 0 everywhere else,
//! * is at least the floor on every eligible action,
//! * does not depend on the order of the catalogue, because tied actions have equal probabilities before floors,
//! * is never NaN: a score that is not finite is an error, and the server then answers with the fallback.
//!
//! The module uses no random numbers. [`draw`] hashes the checkpoint and the decision id with the policy's salt, and
//! [`choose`] inverts the cumulative sum, so a retry gets the same action and propensity.

mod bagging;
mod catalogue;
mod draw;
mod epsilon_greedy;
mod fastcb;
pub mod floor;
mod loss_ratio;
mod mask;
mod softmax;
mod spec;
mod squarecb;
mod uniform;

pub use catalogue::{Action, ActionCatalogue, CatalogueError, MAX_ACTIONS};
pub use draw::{Salt, choose, draw, unit};
pub use mask::{Mask, MaskError};
pub use spec::{Cap, PolicySpec, Rule, SpecError};

use floor::Floors;

/// The reason why probabilities could not be computed. The server then answers with the fallback.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// The eligible set is empty.
    #[error("eligible: no action is eligible; mark at least one action of the catalogue as eligible")]
    NoEligibleAction,
    /// The mask is for a catalogue of another size.
    #[error(
        "eligible: the mask covers {mask} actions, the catalogue has {catalogue}; build it from the bundle's own catalogue"
    )]
    MaskLength {
        /// Number of actions that the mask covers.
        mask: usize,
        /// Number of actions in the catalogue.
        catalogue: usize,
    },
    /// A buffer has the wrong length.
    #[error("{what}: {got} values, {expected} are needed; size it from the policy")]
    Length {
        /// The buffer.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length it must have.
        expected: usize,
    },
    /// An eligible action's score is NaN or infinite.
    #[error("score of action {action} (voter {voter}) is {value}; an eligible action's score must be finite")]
    NonFiniteScore {
        /// Position in the catalogue.
        action: usize,
        /// 0 for the oracle, then the voters in order.
        voter: usize,
        /// The score.
        value: f64,
    },
    /// A rule on losses needs scores of at most 1.
    #[error(
        "score of action {action} is {value}; rules on losses take 1 - score, so a score may not be above 1"
    )]
    ScoreAboveOne {
        /// Position in the catalogue.
        action: usize,
        /// The score.
        value: f64,
    },
}

/// A compiled policy for one catalogue.
#[derive(Debug, Clone)]
pub struct Policy {
    spec: PolicySpec,
    salt: Salt,
    actions: usize,
    /// For each action the sum over caps of lambda × attribute; empty if there are no caps.
    penalties: Box<[f64]>,
    floors: Floors,
}

/// Working memory of [`Policy::pmf`]. Each thread allocates one and uses it again.
#[derive(Debug, Clone)]
pub struct PolicyScratch {
    indices: Vec<u32>,
    scores: Vec<f64>,
    probabilities: Vec<f64>,
    floors: Vec<f64>,
}

impl PolicyScratch {
    /// Allocates memory for every action of the policy's catalogue.
    #[must_use]
    pub fn new(policy: &Policy) -> PolicyScratch {
        let n = policy.actions;
        PolicyScratch {
            indices: Vec::with_capacity(n),
            scores: Vec::with_capacity(n),
            probabilities: Vec::with_capacity(n),
            floors: Vec::with_capacity(n),
        }
    }
}

impl Policy {
    /// Checks a policy against its catalogue and compiles it.
    ///
    /// # Errors
    /// Returns the first rule that a setting breaks; the message names the setting and the remedy.
    pub fn compile(spec: &PolicySpec, catalogue: &ActionCatalogue) -> Result<Policy, SpecError> {
        spec.rule.check()?;
        if catalogue.is_empty() {
            return Err(SpecError::NoActions);
        }
        let salt = Salt::parse(&spec.salt)?;
        let penalties = spec::penalties(&spec.caps, catalogue)?;
        let floors = Floors::compile(spec.floor, &spec.action_floors, catalogue)?;
        Ok(Policy { spec: spec.clone(), salt, actions: catalogue.len(), penalties, floors })
    }

    /// Fills `out` with the probability of every action of the catalogue.
    ///
    /// `scores` holds the oracle's score of every action and then, for bagging, one such row per voter:
    /// `scores[v * actions + a]`. Scores of actions that are not eligible are never read.
    ///
    /// # Errors
    /// Fails if the eligible set is empty, a length is wrong, a score is not finite, or a rule on losses is given a
    /// score above 1. The contents of `out` are then unspecified.
    pub fn pmf(
        &self,
        scores: &[f64],
        eligible: &Mask,
        out: &mut [f64],
        scratch: &mut PolicyScratch,
    ) -> Result<(), PolicyError> {
        self.check_lengths(scores, eligible, out)?;
        scratch.indices.clear();
        scratch.indices.extend(eligible.iter().map(|index| index as u32));
        let count = scratch.indices.len();
        if count == 0 {
            return Err(PolicyError::NoEligibleAction);
        }
        scratch.probabilities.clear();
        scratch.probabilities.resize(count, 0.0);
        self.gather(scores, 0, scratch)?;
        let (given, p) = (&scratch.scores, &mut scratch.probabilities);
        match self.spec.rule {
            Rule::Uniform => uniform::fill(p),
            Rule::EpsilonGreedy { epsilon } => epsilon_greedy::fill(epsilon, given, p),
            Rule::Softmax { inverse_temperature } => softmax::fill(inverse_temperature, given, p),
            Rule::SquareCb { gamma } => squarecb::fill(gamma, given, p),
            Rule::FastCb { gamma } => {
                check_losses(given, &scratch.indices)?;
                fastcb::fill(gamma, given, p);
            }
            Rule::LossRatio { exponent } => {
                check_losses(given, &scratch.indices)?;
                loss_ratio::fill(exponent, given, p);
            }
            Rule::Bagging { voters } => {
                for voter in 1..=voters {
                    self.gather(scores, voter, scratch)?;
                    bagging::add_vote(voters, &scratch.scores, &mut scratch.probabilities);
                }
            }
        }
        normalise(&mut scratch.probabilities);
        self.floors.apply(&scratch.indices, &mut scratch.probabilities, &mut scratch.floors);
        out.fill(0.0);
        for (&index, &p) in scratch.indices.iter().zip(&scratch.probabilities) {
            out[index as usize] = p;
        }
        Ok(())
    }

    /// Returns the eligible action with the best Lagrangian score, the first in catalogue order at a tie. The server
    /// chooses it while exploration is stopped.
    ///
    /// # Errors
    /// Fails if the eligible set is empty, a length is wrong or a score is not finite.
    pub fn best(
        &self,
        scores: &[f64],
        eligible: &Mask,
        scratch: &mut PolicyScratch,
    ) -> Result<usize, PolicyError> {
        self.check_mask(eligible)?;
        if scores.len() < self.actions {
            return Err(PolicyError::Length { what: "scores", got: scores.len(), expected: self.actions });
        }
        scratch.indices.clear();
        scratch.indices.extend(eligible.iter().map(|index| index as u32));
        self.gather(scores, 0, scratch)?;
        let mut best: Option<(u32, f64)> = None;
        for (&index, &score) in scratch.indices.iter().zip(&scratch.scores) {
            if best.is_none_or(|(_, top)| score > top) {
                best = Some((index, score));
            }
        }
        best.map(|(index, _)| index as usize).ok_or(PolicyError::NoEligibleAction)
    }

    /// The specification that this policy was compiled from.
    #[must_use]
    pub fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    /// The key of the draw.
    #[must_use]
    pub fn salt(&self) -> &Salt {
        &self.salt
    }

    /// Number of actions in the catalogue.
    #[must_use]
    pub fn actions(&self) -> usize {
        self.actions
    }

    /// Number of score rows needed in addition to the oracle's: the ensemble members of bagging, 0 for other rules.
    #[must_use]
    pub fn voters(&self) -> usize {
        self.spec.rule.voters()
    }

    /// The least probability of an action if `eligible` actions are eligible.
    #[must_use]
    pub fn floor(&self, action: usize, eligible: usize) -> f64 {
        self.floors.of(action, eligible)
    }

    fn check_mask(&self, eligible: &Mask) -> Result<(), PolicyError> {
        if eligible.len() == self.actions {
            Ok(())
        } else {
            Err(PolicyError::MaskLength { mask: eligible.len(), catalogue: self.actions })
        }
    }

    fn check_lengths(&self, scores: &[f64], eligible: &Mask, out: &[f64]) -> Result<(), PolicyError> {
        self.check_mask(eligible)?;
        let expected = self.actions * (1 + self.voters());
        if scores.len() != expected {
            return Err(PolicyError::Length { what: "scores", got: scores.len(), expected });
        }
        if out.len() != self.actions {
            return Err(PolicyError::Length { what: "pmf", got: out.len(), expected: self.actions });
        }
        Ok(())
    }

    /// Fills `scratch.scores` with one voter's Lagrangian scores of the eligible actions.
    fn gather(&self, scores: &[f64], voter: usize, scratch: &mut PolicyScratch) -> Result<(), PolicyError> {
        let row = &scores[voter * self.actions..(voter + 1) * self.actions];
        scratch.scores.clear();
        for &index in &scratch.indices {
            let action = index as usize;
            let penalty = self.penalties.get(action).copied().unwrap_or(0.0);
            let value = row[action] - penalty;
            if !value.is_finite() {
                return Err(PolicyError::NonFiniteScore { action, voter, value });
            }
            scratch.scores.push(value);
        }
        Ok(())
    }
}

/// Checks that no score is above 1, which would be a loss below 0.
fn check_losses(scores: &[f64], indices: &[u32]) -> Result<(), PolicyError> {
    match scores.iter().position(|&score| score > 1.0) {
        None => Ok(()),
        Some(at) => Err(PolicyError::ScoreAboveOne { action: indices[at] as usize, value: scores[at] }),
    }
}

/// Divides `p` by its sum. The probabilities of every rule sum to 1 except for rounding errors.
fn normalise(p: &mut [f64]) {
    let sum: f64 = p.iter().sum();
    for value in p {
        *value /= sum;
    }
}

/// Returns the highest score and how many actions share it. `scores` is not empty and has no NaN.
fn top(scores: &[f64]) -> (f64, usize) {
    let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (best, scores.iter().filter(|&&score| score == best).count())
}

#[cfg(test)]
mod tests;
