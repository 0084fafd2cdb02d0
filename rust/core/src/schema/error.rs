//! The errors of schemas and rows.

use super::{FeatureSpec, MAX_CATEGORIES, MAX_FEATURES};
use crate::quote::quotable;

/// The reason why a schema or a row was refused. Each message names the feature, the rule and the remedy. It never
/// contains a value, because values may be personal data.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SchemaError {
    /// The schema has too many features.
    #[error("schema: {0} features, at most {MAX_FEATURES} are allowed; drop some")]
    TooManyFeatures(usize),
    /// A name is empty, too long or not printable.
    #[error("feature {0:?}: a name is 1 to 128 printable characters; rename it")]
    BadName(String),
    /// Two features have the same name.
    #[error("feature {0:?}: the name occurs twice in the schema; rename one")]
    RepeatedName(String),
    /// A feature of a type without range has a minimum or maximum.
    #[error("feature {feature:?}: a {kind} has no minimum or maximum; remove them")]
    RangeOnType {
        /// The feature.
        feature: String,
        /// Its type.
        kind: &'static str,
    },
    /// A range is empty, or its limits are not finite in float32.
    #[error(
        "feature {feature:?}: minimum {minimum:?} and maximum {maximum:?} must be finite float32 values in ascending order; correct the range"
    )]
    BadRange {
        /// The feature.
        feature: String,
        /// Its minimum.
        minimum: Option<f64>,
        /// Its maximum.
        maximum: Option<f64>,
    },
    /// The size of a dictionary is not allowed for the feature's type.
    #[error(
        "feature {feature:?}: a {kind} with {count} categories; a category has 1 to {MAX_CATEGORIES}, other types none"
    )]
    DictionarySize {
        /// The feature.
        feature: String,
        /// Its type.
        kind: &'static str,
        /// The size of its dictionary.
        count: usize,
    },
    /// A category occurs twice.
    #[error("feature {feature:?}: category {category:?} occurs twice in its dictionary; remove one")]
    RepeatedCategory {
        /// The feature.
        feature: String,
        /// The category.
        category: String,
    },

    /// A row has the wrong length.
    #[error(
        "features: {got} values, the schema has {expected}; call Describe for the features and their order"
    )]
    RowLength {
        /// Number of values in the row.
        got: usize,
        /// Number of features in the schema.
        expected: usize,
    },
    /// The schema has no feature of this name.
    #[error("feature {feature:?}: not in the schema{hint}; remove it or correct the name")]
    UnknownFeature {
        /// The name that was sent.
        feature: String,
        /// A question with the nearest known name, formatted for the message; may be empty.
        hint: String,
    },
    /// A feature was sent twice.
    #[error("feature {feature:?}: given twice; send it once")]
    Duplicate {
        /// The feature.
        feature: String,
    },
    /// A feature that must have a value has none.
    #[error("feature {feature:?}: missing, and the schema refuses missing values for it; send a value")]
    Missing {
        /// The feature.
        feature: String,
    },
    /// The value has another type than the feature.
    #[error("feature {feature:?}: {got} was sent, the schema has a {expected}; send a {expected}")]
    WrongType {
        /// The feature.
        feature: String,
        /// The type that was sent.
        got: &'static str,
        /// The schema's type.
        expected: &'static str,
    },
    /// The number is infinite or beyond the range of float32.
    #[error(
        "feature {feature:?}: the value is infinite or beyond float32; send a finite value or leave it out"
    )]
    Infinite {
        /// The feature.
        feature: String,
    },
    /// The number is below the feature's range.
    #[error(
        "feature {feature:?}: the value is below the allowed minimum {limit}; clip it or extend the schema's range"
    )]
    Below {
        /// The feature.
        feature: String,
        /// The minimum.
        limit: f64,
    },
    /// The number is above the feature's range.
    #[error(
        "feature {feature:?}: the value is above the allowed maximum {limit}; clip it or extend the schema's range"
    )]
    Above {
        /// The feature.
        feature: String,
        /// The maximum.
        limit: f64,
    },
    /// The category is not in the feature's dictionary.
    #[error(
        "feature {feature:?}: the category is not among the {known} of its dictionary; map it to a known one or leave it out"
    )]
    UnknownCategory {
        /// The feature.
        feature: String,
        /// Size of the dictionary.
        known: usize,
    },
    /// The value of a dense row is not a category code.
    #[error(
        "feature {feature:?}: the value is not a category code; send a whole number from 0 and below {categories}, or NaN if missing"
    )]
    CategoryCode {
        /// The feature.
        feature: String,
        /// Size of the dictionary.
        categories: usize,
    },
    /// The value of a dense row is not a flag.
    #[error("feature {feature:?}: the value is not a flag; send 0 or 1, or NaN if missing")]
    FlagValue {
        /// The feature.
        feature: String,
    },
}

/// Number of characters of an unknown name that are compared with known names.
const MAX_SHOWN: usize = 64;

pub(super) fn unknown_feature(name: &str, features: &[FeatureSpec]) -> SchemaError {
    let name: String = name.chars().take(MAX_SHOWN).collect();
    let lowered = name.to_lowercase();
    let near = features.iter().find(|feature| {
        // The cheap test comes first: a schema can have thousands of names, and any caller can send wrong ones.
        if feature.name.len().abs_diff(lowered.len()) > 2 {
            return false;
        }
        let known = feature.name.to_lowercase();
        known == lowered || (lowered.len() > 3 && distance_at_most_two(&known, &lowered))
    });
    let hint = near.map(|feature| format!(" (did you mean {:?}?)", feature.name)).unwrap_or_default();
    SchemaError::UnknownFeature { feature: quotable(&name), hint }
}

/// Whether the edit distance of `a` and `b` (insertions, deletions, replacements) is at most 2.
fn distance_at_most_two(a: &str, b: &str) -> bool {
    fn within(a: &[char], b: &[char], budget: u8) -> bool {
        match (a, b) {
            ([x, a @ ..], [y, b @ ..]) if x == y => within(a, b, budget),
            _ if a.len().max(b.len()) <= budget as usize => true,
            _ if budget == 0 => false,
            _ => {
                let (rest_a, rest_b) = (a.get(1..).unwrap_or(&[]), b.get(1..).unwrap_or(&[]));
                (!a.is_empty() && !b.is_empty() && within(rest_a, rest_b, budget - 1))
                    || (!a.is_empty() && within(rest_a, b, budget - 1))
                    || (!b.is_empty() && within(a, rest_b, budget - 1))
            }
        }
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    a.len().abs_diff(b.len()) <= 2 && within(&a, &b, 2)
}
