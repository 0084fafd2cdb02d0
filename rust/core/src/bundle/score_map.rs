//! The scoremap node: a static map from score to score, so that a new model keeps the thresholds of an older one.

use serde::{Deserialize, Serialize};

use super::BundleError;
use super::calibration::interpolate;

/// Name of the map's file.
pub(super) const SCORE_MAP: &str = "score_map.json";
/// Greatest number of knots.
const MAX_KNOTS: usize = 1 << 16;

/// The contents of `score_map.json`: a piecewise linear function that does not descend and is constant beyond its knots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreMap {
    /// Scores of the model at the knots, strictly ascending.
    pub x: Vec<f64>,
    /// Scores that the program uses instead, which do not descend.
    pub y: Vec<f64>,
}

impl ScoreMap {
    pub(super) fn parse(bytes: &[u8]) -> Result<ScoreMap, BundleError> {
        let map: ScoreMap = serde_json::from_slice(bytes)
            .map_err(|error| BundleError::Json { file: SCORE_MAP, reason: error.to_string() })?;
        map.check().map_err(BundleError::ScoreMap)?;
        Ok(map)
    }

    fn check(&self) -> Result<(), String> {
        let ScoreMap { x, y } = self;
        if x.len() < 2 || x.len() != y.len() || x.len() > MAX_KNOTS {
            let (x, y) = (x.len(), y.len());
            return Err(format!("{x} x and {y} y knots, equally many from 2 to {MAX_KNOTS} are needed"));
        }
        if let Some(at) = (0..x.len()).find(|&at| !x[at].is_finite() || !y[at].is_finite()) {
            return Err(format!("knot {at} is ({}, {}), both must be finite", x[at], y[at]));
        }
        match (1..x.len()).find(|&at| x[at] <= x[at - 1] || y[at] < y[at - 1]) {
            None if y[0] == y[y.len() - 1] => {
                Err(format!("every score becomes {}, the map must ascend somewhere", y[0]))
            }
            None => Ok(()),
            Some(at) => Err(format!("knot {at} goes back, x must ascend and y must not descend")),
        }
    }

    /// Whether every result is a probability.
    pub(super) fn is_probability(&self) -> bool {
        self.y.iter().all(|y| (0.0..=1.0).contains(y))
    }

    /// Returns the mapped score. NaN stays NaN.
    #[must_use]
    pub fn apply(&self, score: f64) -> f64 {
        interpolate(&self.x, &self.y, score)
    }

    /// Heap memory in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        8 * (self.x.capacity() + self.y.capacity())
    }
}
