//! The transform node, which replaces single features by a function of them.

use super::node::TransformStep;
use crate::schema::{FeatureSpec, FeatureType};

/// A compiled transform.
#[derive(Debug, Clone)]
pub(super) struct Transform {
    steps: Vec<(usize, Function)>,
}

#[derive(Debug, Clone, Copy)]
enum Function {
    Log1p,
    Standardise { mean: f64, scale: f64 },
}

impl Transform {
    /// Checks and compiles the steps. `features` are the columns of the row: the context's, then the action's.
    pub(super) fn compile(steps: &[TransformStep], features: &[FeatureSpec]) -> Result<Transform, String> {
        let mut compiled: Vec<(usize, Function)> = Vec::with_capacity(steps.len());
        for step in steps {
            let (TransformStep::Log1p { feature: name } | TransformStep::Standardise { feature: name, .. }) =
                step;
            let index = features
                .iter()
                .position(|feature| feature.name == *name)
                .ok_or_else(|| format!("feature {name:?} is not in the schema; correct the name"))?;
            let feature = &features[index];
            if feature.kind != FeatureType::Number {
                let kind = feature.kind.name();
                return Err(format!(
                    "feature {name:?} is a {kind}, only numbers are transformed; remove the step"
                ));
            }
            if compiled.iter().any(|(at, _)| *at == index) {
                return Err(format!("feature {name:?} has two steps; chain a second transform node"));
            }
            let function = match *step {
                TransformStep::Log1p { .. } if feature.minimum.is_none_or(|minimum| minimum <= -1.0) => {
                    return Err(format!(
                        "feature {name:?}: log1p needs values above -1; give it a minimum in the schema"
                    ));
                }
                TransformStep::Log1p { .. } => Function::Log1p,
                TransformStep::Standardise { mean, scale, .. }
                    if !(mean.is_finite() && scale.is_finite() && scale > 0.0) =>
                {
                    return Err(format!(
                        "feature {name:?}: mean {mean} and scale {scale} must be finite and the scale above 0; correct them"
                    ));
                }
                TransformStep::Standardise { mean, scale, .. } => Function::Standardise { mean, scale },
            };
            compiled.push((index, function));
        }
        Ok(Transform { steps: compiled })
    }

    /// Transforms `row` in place. `Err` holds the first value that did not stay finite.
    pub(super) fn apply(&self, row: &mut [f32]) -> Result<(), f64> {
        for &(index, function) in &self.steps {
            let value = f64::from(row[index]);
            if value.is_nan() {
                continue;
            }
            let result = match function {
                // `libm::log1p` gives the same bits on every machine.
                Function::Log1p => libm::log1p(value),
                Function::Standardise { mean, scale } => (value - mean) / scale,
            };
            row[index] = result as f32;
            if !row[index].is_finite() {
                return Err(result);
            }
        }
        Ok(())
    }
}
