//! What can be wrong with a schema or with a row.

use super::{FeatureSpec, MAX_CATEGORIES, MAX_FEATURES};
use crate::quote::quotable;

/// Each message names the feature, the rule and the remedy, and never repeats a value: it may be personal.
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
    /// A range on a type without one.
    #[error("feature {feature:?}: a {kind} has no minimum or maximum; remove them")]
    RangeOnType {
        /// The feature.
        feature: String,
        /// Its type.
        kind: &'static str,
    },
    /// A range that is empty or not finite in float32.
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
    /// A dictionary that does not fit the type.
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
        /// Values given.
        got: usize,
        /// Features of the schema.
        expected: usize,
    },
    /// A name that the schema does not have.
    #[error("feature {feature:?}: not in the schema{hint}; remove it or correct the name")]
    UnknownFeature {
        /// The name given.
        feature: String,
        /// The nearest name, ready to print; may be empty.
        hint: String,
    },
    /// A name given twice.
    #[error("feature {feature:?}: given twice; send it once")]
    Duplicate {
        /// The feature.
        feature: String,
    },
    /// No value where one is needed.
    #[error("feature {feature:?}: missing, and the schema refuses missing values for it; send a value")]
    Missing {
        /// The feature.
        feature: String,
    },
    /// A value of another type.
    #[error("feature {feature:?}: {got} was sent, the schema has a {expected}; send a {expected}")]
    WrongType {
        /// The feature.
        feature: String,
        /// What was sent.
        got: &'static str,
        /// The schema's type.
        expected: &'static str,
    },
    /// An infinite number, or one beyond float32.
    #[error(
        "feature {feature:?}: the value is infinite or beyond float32; send a finite value or leave it out"
    )]
    Infinite {
        /// The feature.
        feature: String,
    },
    /// Below the range.
    #[error(
        "feature {feature:?}: the value is below the allowed minimum {limit}; clip it or extend the schema's range"
    )]
    Below {
        /// The feature.
        feature: String,
        /// The minimum.
        limit: f64,
    },
    /// Above the range.
    #[error(
        "feature {feature:?}: the value is above the allowed maximum {limit}; clip it or extend the schema's range"
    )]
    Above {
        /// The feature.
        feature: String,
        /// The maximum.
        limit: f64,
    },
    /// A category outside the dictionary.
    #[error(
        "feature {feature:?}: the category is not among the {known} of its dictionary; map it to a known one or leave it out"
    )]
    UnknownCategory {
        /// The feature.
        feature: String,
        /// Size of the dictionary.
        known: usize,
    },
    /// A dense value that is no category code.
    #[error(
        "feature {feature:?}: the value is no category code; send a whole number from 0 below {categories}, or NaN if missing"
    )]
    CategoryCode {
        /// The feature.
        feature: String,
        /// Size of the dictionary.
        categories: usize,
    },
    /// A dense value that is no flag.
    #[error("feature {feature:?}: the value is no flag; send 0 or 1, or NaN if missing")]
    FlagValue {
        /// The feature.
        feature: String,
    },
}

/// Most characters of an unknown name that are compared with known ones.
const MAX_SHOWN: usize = 64;

pub(super) fn unknown_feature(name: &str, features: &[FeatureSpec]) -> SchemaError {
    let name: String = name.chars().take(MAX_SHOWN).collect();
    let lowered = name.to_lowercase();
    let near = features.iter().find(|feature| {
        // Cheap first: a schema has thousands of names, and anybody can send a wrong one.
        if feature.name.len().abs_diff(lowered.len()) > 2 {
            return false;
        }
        let known = feature.name.to_lowercase();
        known == lowered || (lowered.len() > 3 && distance_at_most_two(&known, &lowered))
    });
    let hint = near.map(|feature| format!(" (did you mean {:?}?)", feature.name)).unwrap_or_default();
    SchemaError::UnknownFeature { feature: quotable(&name), hint }
}

/// Whether at most two characters have to be inserted, removed or replaced.
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
