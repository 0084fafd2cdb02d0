//! The lane table as the control plane gives it: plain data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::SwapError;

/// Longest lane name, bytes; it is part of every decision.
const MAX_NAME: usize = 64;

/// A lane table as the control plane gives it in JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LaneTable {
    /// Higher than that of every table before.
    pub version: u64,
    /// Every configured checkpoint with its lanes; empty or null where it has no bundle yet.
    pub checkpoints: BTreeMap<String, Option<Vec<Lane>>>,
    /// The bundle that answered each checkpoint before, kept loaded: what to fall back to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub previous: BTreeMap<String, String>,
    /// Who observes what is answered at each checkpoint. Apart from the answer lanes in everything but their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub observe: BTreeMap<String, Vec<ObserveLane>>,
}

/// One lane.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// Unique at its checkpoint.
    pub name: String,
    /// `sha256:<hex>` of a loaded bundle.
    pub bundle: String,
    /// Share of traffic, 0 to 1.
    pub share: f64,
}

/// One observe lane as the control plane gives it in JSON.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ObserveLane {
    /// Unique at its checkpoint, answer lanes included.
    pub name: String,
    /// `sha256:<hex>` of a bundle: loaded, unless it is in the pool.
    pub bundle: String,
    /// Share of the checkpoint's requests that it observes, above 0, to 1.
    pub sample: f64,
    /// Which of them; all conditions must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Condition>,
    /// It is evaluated by the shadow pool.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pool: bool,
    /// For a lane of the pool, whose bundle is not here: the features that it reads. Requests may name them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<String>,
}

/// One condition. On a missing value it does not hold, except for `missing`.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// A feature of the bundle that answers.
    pub feature: String,
    /// What is asked of it.
    pub op: Op,
    /// A number, a category's name, true or false; a list of them for `in`; nothing for `missing` and `present`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// What a condition asks.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[allow(missing_docs, reason = "each says what it is")]
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
    /// Reads a table.
    ///
    /// # Errors
    /// [`SwapError::Table`] says what is not as documented.
    pub fn from_json(json: &str) -> Result<LaneTable, SwapError> {
        serde_json::from_str(json).map_err(|error| SwapError::Table(error.to_string()))
    }
}

/// Checks the name of a lane.
///
/// # Errors
/// The rule and the remedy.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        return Err(format!("a name is 1 to {MAX_NAME} printable characters; rename it"));
    }
    Ok(())
}
