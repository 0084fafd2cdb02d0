//! `tables.json`: a number for each category, such as a target encoding.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::BundleError;
use crate::schema::FeatureSpec;

/// Name of the file of tables.
pub(super) const TABLES: &str = "tables.json";
/// Size of the largest file in bytes.
const MAX_BYTES: usize = 64 << 20;

/// The contents of `tables.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TablesFile {
    /// The tables by name.
    pub tables: BTreeMap<String, Table>,
}

/// A number for each category of a feature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The numbers by category.
    pub values: BTreeMap<String, f64>,
    /// The number for a missing category and for categories that are not listed; without it the result is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<f64>,
}

/// The tables of a bundle, with those that a transform has used.
#[derive(Debug, Default)]
pub(super) struct Tables {
    file: TablesFile,
    used: BTreeSet<String>,
}

impl Tables {
    pub(super) fn parse(bytes: &[u8]) -> Result<Tables, BundleError> {
        if bytes.len() > MAX_BYTES {
            let reason = format!("{} bytes, at most {MAX_BYTES} are allowed", bytes.len());
            return Err(BundleError::Json { file: TABLES, reason });
        }
        let file: TablesFile = serde_json::from_slice(bytes)
            .map_err(|error| BundleError::Json { file: TABLES, reason: error.to_string() })?;
        for (name, table) in &file.tables {
            let numbers = table.values.iter().map(|(category, number)| (category.as_str(), number));
            let default = table.default.iter().map(|number| ("the default", number));
            if let Some((which, number)) =
                numbers.chain(default).find(|(_, number)| !(**number as f32).is_finite())
            {
                let reason = format!("{which:?} is {number}, which is not finite in float32");
                return Err(BundleError::Table { table: name.clone(), reason });
            }
        }
        Ok(Tables { file, used: BTreeSet::new() })
    }

    /// Returns the number of each code of a category and that of all others, which is NaN for a missing value.
    pub(super) fn compile(&mut self, name: &str, spec: &FeatureSpec) -> Result<(Box<[f32]>, f32), String> {
        let table = self
            .file
            .tables
            .get(name)
            .ok_or_else(|| format!("{TABLES} has no table {name:?}; add it or correct the name"))?;
        let known: BTreeSet<&str> = spec.categories.iter().map(String::as_str).collect();
        if let Some(unknown) = table.values.keys().find(|category| !known.contains(category.as_str())) {
            return Err(format!(
                "table {name:?}: {unknown:?} is not a category of {:?}; correct it or leave it out",
                spec.name
            ));
        }
        self.used.insert(name.to_owned());
        let default = table.default.map_or(f32::NAN, |number| number as f32);
        let of = |category: &String| table.values.get(category).map_or(default, |number| *number as f32);
        Ok((spec.categories.iter().map(of).collect(), default))
    }

    /// Whether a table has a number for every category, and for a missing one.
    pub(super) fn has_default(&self, name: &str) -> bool {
        self.file.tables.get(name).is_some_and(|table| table.default.is_some())
    }

    /// Returns the name of a table that no transform uses.
    pub(super) fn unused(&self) -> Option<&String> {
        self.file.tables.keys().find(|name| !self.used.contains(*name))
    }
}
