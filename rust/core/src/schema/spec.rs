//! The specification of one feature in `schema.json`.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{MAX_CATEGORIES, SchemaError};

/// Length of the longest feature name in bytes.
const MAX_NAME: usize = 128;

/// The type of a feature's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureType {
    /// A floating-point number.
    Number,
    /// A name from a dictionary.
    Category,
    /// True or false.
    Flag,
}

impl FeatureType {
    /// The name in `schema.json`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FeatureType::Number => "number",
            FeatureType::Category => "category",
            FeatureType::Flag => "flag",
        }
    }
}

/// How a feature without a value is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingRule {
    /// The model receives a missing value (NaN).
    #[default]
    Allow,
    /// The request is refused.
    Refuse,
}

/// How a category that is not in the dictionary is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownCategoryRule {
    /// The request is refused.
    #[default]
    Refuse,
    /// The value is treated as missing.
    Missing,
}

/// The specification of one feature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureSpec {
    /// Unique name.
    pub name: String,
    /// The type of its values.
    #[serde(rename = "type")]
    pub kind: FeatureType,
    /// The dictionary, if the type is [`FeatureType::Category`]. A category's position is its code.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// How a missing value is treated.
    #[serde(default)]
    pub missing: MissingRule,
    /// How a category that is not in the dictionary is treated.
    #[serde(default)]
    pub unknown_category: UnknownCategoryRule,
    /// Least allowed number, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum: Option<f64>,
    /// Greatest allowed number, inclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum: Option<f64>,
}

/// Checks one feature and returns its dictionary as a look-up table.
pub(super) fn check(feature: &FeatureSpec) -> Result<HashMap<Box<str>, u32>, SchemaError> {
    let name = || feature.name.clone();
    if feature.name.is_empty() || feature.name.len() > MAX_NAME || feature.name.chars().any(char::is_control)
    {
        return Err(SchemaError::BadName(name()));
    }
    if feature.kind != FeatureType::Number && (feature.minimum.is_some() || feature.maximum.is_some()) {
        return Err(SchemaError::RangeOnType { feature: name(), kind: feature.kind.name() });
    }
    let bounds = [feature.minimum, feature.maximum];
    if bounds.into_iter().flatten().any(|bound| !(bound as f32).is_finite()) {
        return Err(SchemaError::BadRange { feature: name(), minimum: bounds[0], maximum: bounds[1] });
    }
    if let (Some(minimum), Some(maximum)) = (feature.minimum, feature.maximum)
        && minimum > maximum
    {
        return Err(SchemaError::BadRange { feature: name(), minimum: bounds[0], maximum: bounds[1] });
    }
    match (feature.kind, feature.categories.len()) {
        (FeatureType::Category, 1..=MAX_CATEGORIES) | (FeatureType::Number | FeatureType::Flag, 0) => {}
        (kind, count) => {
            return Err(SchemaError::DictionarySize { feature: name(), kind: kind.name(), count });
        }
    }
    let mut codes = HashMap::with_capacity(feature.categories.len());
    for (code, category) in feature.categories.iter().enumerate() {
        if codes.insert(category.as_str().into(), code as u32).is_some() {
            return Err(SchemaError::RepeatedCategory { feature: name(), category: category.clone() });
        }
    }
    Ok(codes)
}
