//! The nodes mean and stack, which compute one score from the scores of several models.
//!
//! The sums run in the order of the inputs, in float64, and the functions are those of `libm`, so the bits are the same
//! on every machine.

use super::calibration::sigmoid;
use super::node::Quantity;
use super::overlay::LEAST;

/// Greatest number of inputs.
pub(super) const MAX_INPUTS: usize = 128;

/// An input of an ensemble.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Term {
    /// Position of the score.
    pub(super) at: usize,
    /// Weight or coefficient.
    pub(super) factor: f64,
}

/// A compiled mean or stack.
#[derive(Debug, Clone)]
pub(super) struct Combination {
    pub(super) terms: Box<[Term]>,
    of: Quantity,
    finish: Finish,
}

#[derive(Debug, Clone, Copy)]
enum Finish {
    /// Divides by the sum of the weights.
    Mean { total: f64 },
    /// Adds the intercept and computes the probability.
    Stack { intercept: f64 },
}

impl Combination {
    pub(super) fn mean(slots: &[usize], weights: &[f64], of: Quantity) -> Result<Combination, String> {
        let weights = if weights.is_empty() { vec![1.0; slots.len()] } else { weights.to_vec() };
        if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
            return Err(format!("weight {weight} must be finite and above 0; correct it"));
        }
        let total = weights.iter().sum::<f64>();
        if !total.is_finite() {
            return Err("the sum of the weights is not finite; give smaller weights".to_owned());
        }
        Ok(Combination { terms: terms(slots, &weights, "weights")?, of, finish: Finish::Mean { total } })
    }

    pub(super) fn stack(
        slots: &[usize],
        coefficients: &[f64],
        intercept: f64,
        of: Quantity,
    ) -> Result<Combination, String> {
        if let Some(number) = coefficients.iter().chain([&intercept]).find(|number| !number.is_finite()) {
            return Err(format!("coefficient or intercept {number} must be finite; correct it"));
        }
        if coefficients.iter().all(|coefficient| *coefficient == 0.0) {
            return Err("every coefficient is 0, so no input counts; give the fitted coefficients".to_owned());
        }
        let terms = terms(slots, coefficients, "coefficients")?;
        Ok(Combination { terms, of, finish: Finish::Stack { intercept } })
    }

    /// Computes the score and the number that it comes from: the logit, or the score itself for a mean of scores. `read`
    /// returns the value at a position. If an input is NaN, both are NaN.
    pub(super) fn apply(&self, read: impl Fn(usize) -> f64) -> (f64, f64) {
        let sum = self.terms.iter().fold(0.0, |sum, term| {
            let score = read(term.at);
            sum + term.factor
                * match self.of {
                    Quantity::Scores => score,
                    Quantity::Logits => logit(score),
                }
        });
        match (self.finish, self.of) {
            (Finish::Mean { total }, Quantity::Scores) => (sum / total, sum / total),
            (Finish::Mean { total }, Quantity::Logits) => (sigmoid(sum / total), sum / total),
            (Finish::Stack { intercept }, _) => (sigmoid(sum + intercept), sum + intercept),
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.terms)
    }
}

/// Returns the logit of a probability, which is clamped away from 0 and 1. NaN stays NaN.
fn logit(score: f64) -> f64 {
    let score = score.clamp(LEAST, 1.0 - LEAST);
    libm::log(score / (1.0 - score))
}

fn terms(slots: &[usize], factors: &[f64], what: &str) -> Result<Box<[Term]>, String> {
    if slots.len() < 2 || slots.len() > MAX_INPUTS {
        return Err(format!("{} inputs; give 2 to {MAX_INPUTS}", slots.len()));
    }
    if slots.len() != factors.len() {
        return Err(format!("{} {what} for {} inputs; give one for each", factors.len(), slots.len()));
    }
    Ok(slots.iter().zip(factors).map(|(&at, &factor)| Term { at, factor }).collect())
}
