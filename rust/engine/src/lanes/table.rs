//! The lane table as the control plane sends it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::SwapError;

/// Length of the longest lane name in bytes. Every decision contains the name.
const MAX_NAME: usize = 64;

/// A lane table, as the control plane sends it in JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LaneTable {
    /// Version of the table, higher than that of every earlier table.
    pub version: u64,
    /// Every configured checkpoint with its lanes, which are empty or null if it has no bundle yet.
    pub checkpoints: BTreeMap<String, Option<Vec<Lane>>>,
    /// The previous bundle of each checkpoint. It stays loaded for a rollback and answers while the live bundle is out
    /// of service.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub previous: BTreeMap<String, String>,
    /// The observe lanes of each checkpoint.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub observe: BTreeMap<String, Vec<ObserveLane>>,
}

/// One answer lane.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// Name, unique at its checkpoint.
    pub name: String,
    /// Digest of a loaded bundle, `sha256:<hex>`.
    pub bundle: String,
    /// Share of the traffic, from 0 to 1.
    pub share: f64,
}

/// One observe lane.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ObserveLane {
    /// Name, unique at its checkpoint among answer and observe lanes.
    pub name: String,
    /// Digest of a bundle, `sha256:<hex>`. It must be loaded unless `pool` is set.
    pub bundle: String,
    /// Share of the checkpoint's requests to observe, above 0 and at most 1.
    pub sample: f64,
    /// Conditions that the observed requests must satisfy, all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Condition>,
    /// Whether the shadow pool evaluates the lane.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pool: bool,
    /// For a lane of the pool, whose bundle is not loaded on this server, the features that it reads. Requests may name
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<String>,
}

/// One condition. It does not hold for a missing value, except for the operator `missing`.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// A feature of the answering bundle.
    pub feature: String,
    /// The operator.
    pub op: Op,
    /// A number, a category's name, true or false; a list of them for `in`; nothing for `missing` and `present`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// The operator of a condition.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names state the operators")]
pub enum Op {
    #[serde(rename = "==")]
    Equal,
    #[serde(rename = "!=")]
    Differs,
    #[serde(rename = "<")]
    Below,
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = ">")]
    Above,
    #[serde(rename = ">=")]
    AtLeast,
    #[serde(rename = "in")]
    In,
    #[serde(rename = "missing")]
    Missing,
    #[serde(rename = "present")]
    Present,
}

// === impl LaneTable ===

impl LaneTable {
    /// Parses a table.
    ///
    /// # Errors
    /// Returns [`SwapError::Table`] with the fault of the JSON.
    pub fn from_json(json: &str) -> Result<LaneTable, SwapError> {
        serde_json::from_str(json).map_err(|error| SwapError::Table(error.to_string()))
    }
}

/// Checks the name of a lane.
///
/// # Errors
/// Returns the rule that the name breaks and the remedy.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(format!("a name is 1 to {MAX_NAME} printable characters; rename it"));
    }
    Ok(())
}
