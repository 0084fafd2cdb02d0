//! The feature schema: which values a request must have, and how they become the forest's row of float32 values.
//!
//! A row has one float32 per feature in schema order. NaN is a missing value, a category is its code (its position in
//! the dictionary), a flag is 0 or 1. Numbers arrive as float64 and are rounded to the nearest float32, ties to even,
//! as the training libraries do. Both the value and the limits of its range are rounded before they are compared, so
//! a value sent by name and the same value in a dense row are always treated alike.
//!
//! Encoding a valid row allocates no memory. An error owns its text.

mod error;
mod fingerprint;
mod spec;

use std::collections::HashMap;

pub use error::SchemaError;
pub use spec::{FeatureSpec, FeatureType, MissingRule, UnknownCategoryRule};

/// Greatest number of features of a schema.
pub const MAX_FEATURES: usize = 4096;
/// Greatest number of categories of one feature. It is far below 2^24, up to which float32 holds every integer.
pub const MAX_CATEGORIES: usize = 65_536;

/// A feature's value in a request that names its features.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// A number. NaN is a missing value.
    Number(f64),
    /// A category's name.
    Category(&'a str),
    /// True or false.
    Flag(bool),
    /// The feature is named, but has no value.
    Missing,
}

impl Value<'_> {
    fn type_name(&self) -> &'static str {
        match self {
            Value::Number(_) => "a number",
            Value::Category(_) => "a category",
            Value::Flag(_) => "a flag",
            Value::Missing => "missing",
        }
    }
}

/// A validated schema.
#[derive(Debug, Clone)]
pub struct Schema {
    features: Vec<FeatureSpec>,
    fingerprint: u64,
    by_name: HashMap<Box<str>, u32>,
    codes: Vec<HashMap<Box<str>, u32>>,
    /// The allowed range of each feature as float32. A side without a limit is infinite.
    ranges: Vec<(f32, f32)>,
}

impl Schema {
    /// Checks the features and builds the look-up tables.
    ///
    /// # Errors
    /// Fails if there are too many features, a name is invalid or repeated, a dictionary does not match the type, or a
    /// range is empty.
    pub fn new(features: Vec<FeatureSpec>) -> Result<Schema, SchemaError> {
        if features.len() > MAX_FEATURES {
            return Err(SchemaError::TooManyFeatures(features.len()));
        }
        let mut by_name = HashMap::with_capacity(features.len());
        let mut codes = Vec::with_capacity(features.len());
        let mut ranges = Vec::with_capacity(features.len());
        for (index, feature) in features.iter().enumerate() {
            codes.push(spec::check(feature)?);
            ranges.push((
                feature.minimum.map_or(f32::NEG_INFINITY, |minimum| minimum as f32),
                feature.maximum.map_or(f32::INFINITY, |maximum| maximum as f32),
            ));
            if by_name.insert(feature.name.as_str().into(), index as u32).is_some() {
                return Err(SchemaError::RepeatedName(feature.name.clone()));
            }
        }
        let fingerprint = fingerprint::of(&features);
        Ok(Schema { features, fingerprint, by_name, codes, ranges })
    }

    /// The features in row order.
    #[must_use]
    pub fn features(&self) -> &[FeatureSpec] {
        &self.features
    }

    /// The code of a category; `None` if the feature's dictionary has no such name.
    #[must_use]
    pub fn code_of(&self, feature: usize, category: &str) -> Option<u32> {
        self.codes.get(feature)?.get(category).copied()
    }

    /// Number of features, the length of a row.
    #[must_use]
    pub fn len(&self) -> usize {
        self.features.len()
    }

    /// Whether the schema has no features.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.features.is_empty()
    }

    /// A stable 64-bit hash of the names, types and dictionaries in order, which give a dense row its meaning.
    ///
    /// Ranges and rules for missing values are not included, so that callers need no change for a retrained model with
    /// a wider range.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The position of a feature in a row; `None` if the schema has no such feature.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).map(|&index| index as usize)
    }

    /// Fills `row` from named values. A feature that is not named is missing.
    ///
    /// # Errors
    /// Fails if a name is unknown or repeated, a value has the wrong type, is an unknown category, is out of range,
    /// infinite or too large for float32, or is missing although the schema refuses that. The contents of `row` are
    /// then unspecified.
    pub fn encode_named<'a>(
        &self,
        values: impl IntoIterator<Item = (&'a str, Value<'a>)>,
        row: &mut [f32],
    ) -> Result<(), SchemaError> {
        self.check_length(row.len())?;
        row.fill(f32::NAN);
        let mut seen = [0_u64; MAX_FEATURES / 64];
        for (name, value) in values {
            let index = self.index_of(name).ok_or_else(|| error::unknown_feature(name, &self.features))?;
            let (word, bit) = (index / 64, 1 << (index % 64));
            if seen[word] & bit != 0 {
                return Err(SchemaError::Duplicate { feature: name.to_owned() });
            }
            seen[word] |= bit;
            row[index] = self.encode(index, value)?;
        }
        for (index, feature) in self.features.iter().enumerate() {
            if row[index].is_nan() && feature.missing == MissingRule::Refuse {
                return Err(SchemaError::Missing { feature: feature.name.clone() });
            }
        }
        Ok(())
    }

    /// Checks a row whose values are in schema order.
    ///
    /// # Errors
    /// Fails if the row has the wrong length, a number is infinite or out of range, a category is not a valid code, a
    /// flag is neither 0 nor 1, or a value is NaN although the schema refuses missing values.
    pub fn check_dense(&self, row: &[f32]) -> Result<(), SchemaError> {
        self.check_length(row.len())?;
        for (index, (feature, &value)) in self.features.iter().zip(row).enumerate() {
            if value.is_nan() {
                if feature.missing == MissingRule::Refuse {
                    return Err(SchemaError::Missing { feature: feature.name.clone() });
                }
                continue;
            }
            match feature.kind {
                FeatureType::Number => self.check_number(index, value)?,
                FeatureType::Category => {
                    let categories = feature.categories.len();
                    // The cast is exact, because a feature has at most `MAX_CATEGORIES` categories.
                    if !(value >= 0.0 && value < categories as f32 && value.fract() == 0.0) {
                        return Err(SchemaError::CategoryCode { feature: feature.name.clone(), categories });
                    }
                }
                FeatureType::Flag => {
                    if value != 0.0 && value != 1.0 {
                        return Err(SchemaError::FlagValue { feature: feature.name.clone() });
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the float32 that represents a value of the feature at position `feature` in a row.
    ///
    /// # Errors
    /// Fails as [`Schema::encode_named`] does for this feature, and if there is no such position.
    pub fn encode_value(&self, feature: usize, value: Value<'_>) -> Result<f32, SchemaError> {
        match self.features.get(feature) {
            Some(_) => self.encode(feature, value),
            None => Err(SchemaError::RowLength { got: feature, expected: self.len() }),
        }
    }

    fn check_length(&self, got: usize) -> Result<(), SchemaError> {
        if got == self.len() { Ok(()) } else { Err(SchemaError::RowLength { got, expected: self.len() }) }
    }

    fn encode(&self, index: usize, value: Value<'_>) -> Result<f32, SchemaError> {
        let feature = &self.features[index];
        match (feature.kind, value) {
            (_, Value::Missing) => Ok(f32::NAN),
            (FeatureType::Number, Value::Number(number)) => {
                let rounded = number as f32;
                if !rounded.is_nan() {
                    self.check_number(index, rounded)?;
                }
                Ok(rounded)
            }
            (FeatureType::Category, Value::Category(category)) => match self.codes[index].get(category) {
                Some(&code) => Ok(code as f32),
                None if feature.unknown_category == UnknownCategoryRule::Missing => Ok(f32::NAN),
                None => Err(SchemaError::UnknownCategory {
                    feature: feature.name.clone(),
                    known: feature.categories.len(),
                }),
            },
            (FeatureType::Flag, Value::Flag(flag)) => Ok(f32::from(u8::from(flag))),
            (expected, _) => Err(SchemaError::WrongType {
                feature: feature.name.clone(),
                got: value.type_name(),
                expected: expected.name(),
            }),
        }
    }

    fn check_number(&self, index: usize, rounded: f32) -> Result<(), SchemaError> {
        let feature = || self.features[index].name.clone();
        if rounded.is_infinite() {
            return Err(SchemaError::Infinite { feature: feature() });
        }
        let (minimum, maximum) = self.ranges[index];
        if rounded < minimum {
            let limit = self.features[index].minimum.unwrap_or(f64::from(minimum));
            return Err(SchemaError::Below { feature: feature(), limit });
        }
        if rounded > maximum {
            let limit = self.features[index].maximum.unwrap_or(f64::from(maximum));
            return Err(SchemaError::Above { feature: feature(), limit });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
