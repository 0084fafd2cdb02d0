//! Calibration maps, which turn a model's output into a probability.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BundleError;

/// Greatest number of knots of an isotonic map.
const MAX_KNOTS: usize = 1 << 20;

/// The contents of `calibration.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The maps by name.
    pub maps: BTreeMap<String, CalibrationMap>,
}

/// One calibration map. Every map is non-decreasing, so calibration never reorders two rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "lowercase", deny_unknown_fields)]
pub enum CalibrationMap {
    /// Isotonic regression: linear between knots, constant below the first and above the last.
    Isotonic {
        /// Model outputs at the knots, strictly ascending.
        x: Vec<f64>,
        /// Probabilities at the knots, non-decreasing, from 0 to 1.
        y: Vec<f64>,
    },
    /// Platt scaling: `1 / (1 + exp(-(slope * x + intercept)))`.
    Sigmoid {
        /// Above 0.
        slope: f64,
        /// Any finite number.
        intercept: f64,
    },
}

impl Calibration {
    pub(super) fn parse(bytes: &[u8]) -> Result<Calibration, BundleError> {
        let calibration: Calibration = serde_json::from_slice(bytes)
            .map_err(|error| BundleError::Json { file: "calibration.json", reason: error.to_string() })?;
        for (name, map) in &calibration.maps {
            map.check().map_err(|reason| BundleError::Calibration { map: name.clone(), reason })?;
        }
        Ok(calibration)
    }
}

impl CalibrationMap {
    fn check(&self) -> Result<(), String> {
        match self {
            CalibrationMap::Isotonic { x, y } => {
                if x.is_empty() || x.len() != y.len() || x.len() > MAX_KNOTS {
                    return Err(format!(
                        "{} x and {} y knots, equally many from 1 to {MAX_KNOTS} are needed",
                        x.len(),
                        y.len()
                    ));
                }
                if let Some(at) = (0..x.len()).find(|&at| !x[at].is_finite() || !(0.0..=1.0).contains(&y[at]))
                {
                    return Err(format!(
                        "knot {at} is ({}, {}), x must be finite and y between 0 and 1",
                        x[at], y[at]
                    ));
                }
                match (1..x.len()).find(|&at| x[at] <= x[at - 1] || y[at] < y[at - 1]) {
                    None => Ok(()),
                    Some(at) => Err(format!("knot {at} goes back, x must ascend and y must not descend")),
                }
            }
            CalibrationMap::Sigmoid { slope, intercept } => {
                if slope.is_finite() && *slope > 0.0 && intercept.is_finite() {
                    Ok(())
                } else {
                    Err(format!(
                        "slope {slope} and intercept {intercept}, both must be finite and the slope above 0"
                    ))
                }
            }
        }
    }

    /// Applies [`CalibrationMap::apply`] to each value in place.
    pub fn apply_all(&self, values: &mut [f64]) {
        for value in values {
            *value = self.apply(*value);
        }
    }

    /// Returns the calibrated value. NaN stays NaN.
    #[must_use]
    pub fn apply(&self, value: f64) -> f64 {
        match self {
            CalibrationMap::Isotonic { x, y } => interpolate(x, y, value),
            CalibrationMap::Sigmoid { slope, intercept } => sigmoid(slope * value + intercept),
        }
    }
}

/// Returns `1 / (1 + exp(-logit))`. `libm::exp` is implemented in Rust and gives the same bits on every machine.
pub(super) fn sigmoid(logit: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-logit))
}

/// Returns the value of a piecewise linear function, which is constant beyond its knots. `x` is strictly ascending and
/// `y` does not descend. NaN stays NaN.
pub(super) fn interpolate(x: &[f64], y: &[f64], value: f64) -> f64 {
    let above = x.partition_point(|&knot| knot <= value);
    match above {
        // Every comparison with NaN is false, so NaN has position 0 too.
        0 if value.is_nan() => value,
        0 => y[0],
        _ if above == x.len() => y[above - 1],
        _ => {
            let (x0, x1, y0, y1) = (x[above - 1], x[above], y[above - 1], y[above]);
            // Rounding could otherwise give a value above the upper knot, and so above 1.
            (y0 + (y1 - y0) * ((value - x0) / (x1 - x0))).min(y1)
        }
    }
}
