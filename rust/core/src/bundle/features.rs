//! `features.json`: the feature set whose features the server computes, and the columns of the schema that they fill.
//!
//! This module checks the file against the schema. The definition of the set is validated in full by the source of the
//! features, which also decides whether a server has them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::BundleError;
use crate::schema::{FeatureType, MissingRule, Schema};

pub(super) const FEATURES: &str = "features.json";

/// The contents of `features.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FeaturesFile {
    /// The definition of the set in its canonical form.
    set: Value,
    /// The feature of the set by column of the schema.
    columns: BTreeMap<String, String>,
}

/// The computed features of a bundle.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputedFeatures {
    /// Name of the set.
    pub set_name: String,
    /// The definition of the set, as JSON with sorted keys and without spaces.
    pub set: Vec<u8>,
    /// The columns, in the order of the schema; at least one.
    pub columns: Vec<ComputedColumn>,
}

/// A column of the schema that a computed feature fills.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputedColumn {
    /// Position in the schema.
    pub at: usize,
    /// Name of the feature in the set.
    pub feature: String,
    /// The declared value if nothing is known; NaN is a missing value.
    pub default: f32,
}

impl ComputedFeatures {
    pub(super) fn parse(bytes: &[u8], schema: &Schema) -> Result<ComputedFeatures, BundleError> {
        let fail = |reason: String| BundleError::Features(reason);
        let FeaturesFile { set, columns } = serde_json::from_slice(bytes)
            .map_err(|error| BundleError::Json { file: FEATURES, reason: error.to_string() })?;
        let set_name = set.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if set_name.is_empty() {
            return Err(fail("set: has no name; write the canonical form of a feature set".to_owned()));
        }
        let declared = set.get("features").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let default_of = |feature: &str| {
            let found =
                declared.iter().find(|known| known.get("name").and_then(Value::as_str) == Some(feature));
            found.map(|known| {
                known.get("default").and_then(Value::as_f64).map_or(f32::NAN, |value| value as f32)
            })
        };
        let mut used = BTreeSet::new();
        let mut filled = Vec::with_capacity(columns.len());
        for (column, feature) in &columns {
            let default = default_of(feature).ok_or_else(|| {
                fail(format!("column {column:?}: set {set_name:?} has no feature {feature:?}"))
            })?;
            let Some((at, spec)) =
                schema.index_of(column).and_then(|at| Some((at, schema.features().get(at)?)))
            else {
                return Err(fail(format!("column {column:?}: schema.json has no such feature")));
            };
            if spec.kind != FeatureType::Number
                || spec.missing == MissingRule::Refuse
                || spec.minimum.is_some()
                || spec.maximum.is_some()
            {
                return Err(fail(format!(
                    "column {column:?}: a computed feature is a number without minimum and maximum that may be missing; correct schema.json"
                )));
            }
            if !used.insert(feature) {
                return Err(fail(format!("feature {feature:?}: fills two columns; keep one")));
            }
            filled.push(ComputedColumn { at, feature: feature.clone(), default });
        }
        if filled.is_empty() {
            return Err(fail("columns: is empty; name at least one column".to_owned()));
        }
        filled.sort_by_key(|column| column.at);
        let set = serde_json::to_vec(&set)
            .map_err(|error| BundleError::Json { file: FEATURES, reason: error.to_string() })?;
        Ok(ComputedFeatures { set_name, set, columns: filled })
    }
}
