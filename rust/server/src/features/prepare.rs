//! What every source of computed features does with sets and bundles.

use scorer_core::bundle::ComputedFeatures;
use scorer_engine::{ReadColumn, SourceRefusal};
use scorer_features::{FeatureSet, Plan, PlanError};

use crate::config::FeatureConfig;
use crate::error::ServerError;

/// Parses the sets of a configuration.
pub(super) fn parse_sets(config: &FeatureConfig) -> Result<Vec<FeatureSet>, ServerError> {
    let parse = |set: &serde_json::Value| FeatureSet::parse(set.to_string().as_bytes());
    let sets: Result<Vec<_>, _> = config.sets.iter().map(parse).collect();
    sets.map_err(|error| ServerError::Config(format!("features: {error}")))
}

/// Prepares the read of a bundle's columns. `of` plans the read of features by name and digest.
pub(super) fn plan(
    features: &ComputedFeatures,
    of: impl FnOnce(&[(&str, [u8; 32])]) -> Result<Plan, PlanError>,
) -> Result<Plan, SourceRefusal> {
    let set = FeatureSet::parse(&features.set).map_err(|error| SourceRefusal(error.to_string()))?;
    let mut wanted = Vec::with_capacity(features.columns.len());
    for column in &features.columns {
        let digest = set.feature_digest(&column.feature).ok_or_else(|| {
            SourceRefusal(format!(
                "set {} has no feature {:?}; rebuild the bundle",
                set.label(),
                column.feature
            ))
        })?;
        wanted.push((column.feature.as_str(), digest));
    }
    of(&wanted).map_err(|error| SourceRefusal(error.to_string()))
}

/// Whether the entities of a column have keys and no state: no event has named one of them.
pub(super) fn unknown_entity(
    columns: &[ReadColumn],
    keys: &[Option<&str>],
    is_known: impl Fn(usize) -> bool,
) -> bool {
    let mut with_key = 0;
    for (at, key) in keys.iter().enumerate() {
        with_key |= u16::from(key.is_some()) << at;
    }
    let mut columns = columns.iter().enumerate();
    columns.any(|(at, column)| column.entities & with_key == column.entities && !is_known(at))
}
