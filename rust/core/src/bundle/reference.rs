//! `reference.json`: the distribution of scores when the bundle was built. Drift is measured against it.

use serde::{Deserialize, Serialize};

use super::BundleError;

/// The contents of `reference.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// Scores of the training data.
    pub training: Distribution,
    /// Scores of the validation data, which the model has not seen.
    pub validation: Distribution,
}

/// A distribution of scores; in an action bundle, of expected rewards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// Number of scores.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Quantiles at even steps from the least to the greatest score, such as 101 values for the percentiles.
    pub quantiles: Vec<f64>,
    /// Edges of the histogram's bins, one more than `counts`. The outer edges may be beyond the data.
    pub edges: Vec<f64>,
    /// Number of scores in each bin, from its lower edge up to its upper edge. Only the last bin includes its upper
    /// edge.
    pub counts: Vec<u64>,
}

impl Reference {
    pub(super) fn parse(bytes: &[u8]) -> Result<Reference, BundleError> {
        let reference: Reference = serde_json::from_slice(bytes)
            .map_err(|error| BundleError::Json { file: "reference.json", reason: error.to_string() })?;
        reference.training.check("training")?;
        reference.validation.check("validation")?;
        Ok(reference)
    }
}

impl Distribution {
    fn check(&self, which: &str) -> Result<(), BundleError> {
        let fail = |rule: &str| Err(BundleError::Reference(format!("{which}: {rule}")));
        if self.count == 0 || !self.mean.is_finite() {
            return fail("count must be above 0 and mean finite");
        }
        let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
        if self.quantiles.len() < 2 || !finite(&self.quantiles) || !self.quantiles.is_sorted() {
            return fail("quantiles must be at least two finite numbers in ascending order");
        }
        if self.counts.is_empty() || self.edges.len() != self.counts.len() + 1 {
            return fail("edges must be one more than counts");
        }
        if !finite(&self.edges) || self.edges.windows(2).any(|pair| pair[0] >= pair[1]) {
            return fail("edges must be finite and ascending");
        }
        match self.counts.iter().try_fold(0_u64, |sum, &count| sum.checked_add(count)) {
            Some(sum) if sum == self.count => Ok(()),
            _ => fail("counts must add up to count"),
        }
    }
}
