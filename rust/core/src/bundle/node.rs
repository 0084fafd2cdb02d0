//! The nodes of a program in the form that the manifest states them.
//!
//! The set of kinds is closed. A later release may add a kind; builds that do not know it refuse the bundle and name
//! the kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::BundleError;
pub use super::date::Part;
use super::rules::ListEntry;
use crate::policy::PolicySpec;

/// The slot that holds the request's row. In an action bundle the action's own features follow the request's.
pub const INPUT: &str = "row";

const KINDS: [&str; 13] = [
    "transform",
    "forest",
    "onnx",
    "link",
    "calibrate",
    "scoremap",
    "mean",
    "stack",
    "switch",
    "overlay",
    "rules",
    "threshold",
    "policy",
];

/// One node of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Node {
    /// Computes a row from a row: replaces single features by functions of them, and adds columns.
    Transform {
        /// A row slot.
        input: String,
        /// The new row slot.
        output: String,
        /// The functions, in the order in which they are computed. At most one replaces each feature; features that none
        /// names stay as they are.
        steps: Vec<TransformStep>,
    },
    /// Computes margins, a forest's raw outputs, from a row.
    Forest {
        /// `forest.bin`, or `member-01.bin` and so on for members of an ensemble.
        file: String,
        /// A row slot.
        input: String,
        /// The new margins slot.
        output: String,
    },
    /// Computes a score from a row by a model in the ONNX format, in a score bundle.
    Onnx {
        /// `model.onnx`, or `member-01.onnx` and so on for members of an ensemble.
        file: String,
        /// A row slot.
        input: String,
        /// The new score slot.
        output: String,
        /// Which value of the model's output is the score. Without it the output has one value, or two, of which the
        /// second one is the positive class.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        index: Option<usize>,
        /// The function that gives the score from the model's output.
        #[serde(default)]
        link: NetLink,
        /// What takes the place of missing values. It is needed if a column of the row may be missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        missing: Option<MissingInput>,
    },
    /// Computes a score from margins: applies the training library's link function and selects one of its outputs.
    Link {
        /// A margins slot.
        input: String,
        /// The new score slot.
        output: String,
        /// Index of the output, such as the class of a multi-class model.
        #[serde(default)]
        index: usize,
    },
    /// Computes a score from a score by a calibration map, which was fitted on held-out data.
    Calibrate {
        /// The map's name in `calibration.json`.
        map: String,
        /// A score slot, or the margins slot of a forest with one output.
        input: String,
        /// The new score slot.
        output: String,
    },
    /// Computes a score from a score by a static map, so that a new model keeps the thresholds of an older one.
    ScoreMap {
        /// `score_map.json`.
        file: String,
        /// A score slot.
        input: String,
        /// The new score slot.
        output: String,
    },
    /// Computes the weighted mean of scores.
    Mean {
        /// Score slots.
        inputs: Vec<String>,
        /// One weight above 0 for each input; equal weights if it is empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        weights: Vec<f64>,
        /// The numbers of which the mean is computed.
        #[serde(default)]
        of: Quantity,
        /// The new score slot.
        output: String,
    },
    /// Computes a probability from scores by a logistic regression.
    Stack {
        /// Score slots.
        inputs: Vec<String>,
        /// One finite coefficient for each input.
        coefficients: Vec<f64>,
        /// The number that is added; any finite one.
        #[serde(default)]
        intercept: f64,
        /// The numbers that the coefficients multiply.
        #[serde(default = "logits")]
        of: Quantity,
        /// The new score slot.
        output: String,
    },
    /// Selects one of several scores by a value of the row. The nodes that only another score needs are not evaluated.
    Switch {
        /// The row slot that has the feature.
        #[serde(default = "input_row")]
        row: String,
        /// A category, or a number or flag that ranges are stated of.
        feature: String,
        /// The scores with the categories or the range for which each is selected.
        cases: Vec<SwitchCase>,
        /// The score slot for a missing value and for values that no case lists.
        default: String,
        /// The new score slot.
        output: String,
    },
    /// Computes a score from a score for every action: adds the overlay's offsets to the logits.
    Overlay {
        /// `overlay.json`.
        file: String,
        /// A score slot that holds probabilities.
        input: String,
        /// The new score slot.
        output: String,
    },
    /// Applies rules: to the decision of a score, or to the eligible actions. It comes directly before the last node.
    Rules {
        /// `rules.toml`.
        file: String,
        /// The slot of the score that the threshold reads; in an action bundle `row`.
        input: String,
        /// The new slot: the same score, or the eligible actions.
        output: String,
        /// The lists that conditions name, by name.
        #[serde(default)]
        lists: BTreeMap<String, ListEntry>,
        /// The key of roll-outs and lists, 32 hexadecimal digits.
        salt: String,
    },
    /// Computes the decision from a score.
    Threshold {
        /// A score slot.
        input: String,
        /// The decision slot.
        output: String,
        /// Ordered bands.
        bands: Vec<Band>,
    },
    /// Chooses one action from the scores of all eligible actions.
    Policy {
        /// The score slot of the oracle.
        input: String,
        /// The score slots of the ensemble members; for bagging only.
        #[serde(default)]
        voters: Vec<String>,
        /// The slot of the actions that the rules leave eligible; absent without rules.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        eligible: Option<String>,
        /// The action slot.
        output: String,
        /// The policy.
        policy: PolicySpec,
    },
}

/// The numbers that an ensemble combines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantity {
    /// The scores themselves.
    #[default]
    Scores,
    /// The logits of scores that are probabilities.
    Logits,
}

fn logits() -> Quantity {
    Quantity::Logits
}

fn input_row() -> String {
    INPUT.to_owned()
}

/// The function that gives the score from the output of an ONNX model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetLink {
    /// The output is the score.
    #[default]
    Identity,
    /// The output is a logit, and the score is its probability.
    Sigmoid,
}

/// What an ONNX model reads in place of a missing value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MissingInput {
    /// This number.
    Number(f64),
    /// NaN, which the model itself handles.
    Nan(NanWord),
}

/// The word `nan`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NanWord {
    /// Not a number.
    Nan,
}

/// A case of a switch: either categories or a range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchCase {
    /// The score slot.
    pub input: String,
    /// The categories for which the score is selected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Least value of the range, inclusive; without it the range has no lower end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<f64>,
    /// End of the range, exclusive; without it the range has no upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<f64>,
}

/// A function of columns of a row. It is computed in float64 and rounded once to float32. Unless stated
/// otherwise, a missing value (NaN) gives a missing value.
///
/// With an `output` the function adds a column of this name to the row, otherwise it replaces the feature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "function", rename_all = "lowercase", deny_unknown_fields)]
pub enum TransformStep {
    /// `ln(1 + x)`; the schema must keep the feature above -1.
    Log1p {
        /// The feature's name.
        feature: String,
        /// The new column.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
    },
    /// `(x - mean) / scale`.
    Standardise {
        /// The feature's name.
        feature: String,
        /// The number that is subtracted.
        mean: f64,
        /// The divisor; above 0.
        scale: f64,
        /// The new column.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
    },
    /// The nearest number from `low` to `high`.
    Clip {
        /// The feature's name.
        feature: String,
        /// Least result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        low: Option<f64>,
        /// Greatest result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        high: Option<f64>,
        /// The new column.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<String>,
    },
    /// The number of edges at or below the value: 0 below the first edge.
    Bucket {
        /// The feature's name.
        feature: String,
        /// Ascending edges. They are rounded to float32, as the values are.
        edges: Vec<f64>,
        /// The new column.
        output: String,
    },
    /// A flag: 1 for a missing value, otherwise 0.
    Missing {
        /// The name of a feature of any type.
        feature: String,
        /// The new column.
        output: String,
    },
    /// `left + right`.
    Add {
        /// A number or flag.
        left: String,
        /// A number or flag.
        right: String,
        /// The new column.
        output: String,
    },
    /// `left - right`.
    Subtract {
        /// A number or flag.
        left: String,
        /// A number or flag.
        right: String,
        /// The new column.
        output: String,
    },
    /// `left * right`.
    Multiply {
        /// A number or flag.
        left: String,
        /// A number or flag.
        right: String,
        /// The new column.
        output: String,
    },
    /// `left / right`.
    Ratio {
        /// A number or flag.
        left: String,
        /// A number or flag.
        right: String,
        /// The result if `right` is 0, or so near to 0 that the quotient is not finite in float32, and no value is missing.
        zero: ZeroDivisor,
        /// The new column.
        output: String,
    },
    /// The number that a table of `tables.json` has for a category. A missing category has the table's default.
    Table {
        /// The name of a category.
        feature: String,
        /// The name of the table.
        table: String,
        /// The new column.
        output: String,
    },
    /// A function of `functions.json`. It gets NaN for a missing value. A fault gives a missing value, and so does a result
    /// that is not finite in float32.
    Custom {
        /// The name of the function.
        name: String,
        /// Numbers or flags, one for each parameter.
        inputs: Vec<String>,
        /// The new column.
        output: String,
    },
    /// A part of a time in seconds since 1970-01-01 00:00 UTC.
    DatePart {
        /// The name of a number with a range in the schema.
        feature: String,
        /// The part.
        part: Part,
        /// Seconds that are added to the time, such as 3600 for UTC+1.
        #[serde(default)]
        offset: i64,
        /// The new column.
        output: String,
    },
}

/// The result of a ratio with a divisor of 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ZeroDivisor {
    /// The result is missing.
    Missing(MissingWord),
    /// The result is this number.
    Number(f64),
}

/// The word `missing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissingWord {
    /// A missing value.
    Missing,
}

impl TransformStep {
    /// The name of the function.
    #[must_use]
    pub fn function(&self) -> &'static str {
        match self {
            TransformStep::Log1p { .. } => "log1p",
            TransformStep::Standardise { .. } => "standardise",
            TransformStep::Clip { .. } => "clip",
            TransformStep::Bucket { .. } => "bucket",
            TransformStep::Missing { .. } => "missing",
            TransformStep::Add { .. } => "add",
            TransformStep::Subtract { .. } => "subtract",
            TransformStep::Multiply { .. } => "multiply",
            TransformStep::Ratio { .. } => "ratio",
            TransformStep::Table { .. } => "table",
            TransformStep::DatePart { .. } => "datepart",
            TransformStep::Custom { .. } => "custom",
        }
    }

    /// The column that is added; `None` if the function replaces its feature.
    #[must_use]
    pub fn output(&self) -> Option<&str> {
        match self {
            TransformStep::Log1p { output, .. }
            | TransformStep::Standardise { output, .. }
            | TransformStep::Clip { output, .. } => output.as_deref(),
            TransformStep::Bucket { output, .. }
            | TransformStep::Missing { output, .. }
            | TransformStep::Add { output, .. }
            | TransformStep::Subtract { output, .. }
            | TransformStep::Multiply { output, .. }
            | TransformStep::Ratio { output, .. }
            | TransformStep::Table { output, .. }
            | TransformStep::DatePart { output, .. }
            | TransformStep::Custom { output, .. } => Some(output),
        }
    }
}

/// A band of scores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Band {
    /// The band starts here, inclusive, and ends where the next one starts.
    pub from: f64,
    /// The decision for scores in the band, such as `approve`.
    pub label: String,
}

impl Node {
    /// Parses the node at position `node` of the manifest's program.
    pub(super) fn parse(node: usize, value: &serde_json::Value) -> Result<Node, BundleError> {
        let kind = value.get("kind").and_then(serde_json::Value::as_str).unwrap_or_default();
        let Some(&known) = KINDS.iter().find(|&&known| known == kind) else {
            return Err(BundleError::UnknownNode { node, kind: kind.to_owned(), known: KINDS.join(", ") });
        };
        Node::deserialize(value).map_err(|error| BundleError::Node {
            node,
            kind: known,
            reason: format!("{error}; correct the node"),
        })
    }

    /// The name of the node's kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Node::Transform { .. } => "transform",
            Node::Forest { .. } => "forest",
            Node::Onnx { .. } => "onnx",
            Node::Link { .. } => "link",
            Node::Calibrate { .. } => "calibrate",
            Node::ScoreMap { .. } => "scoremap",
            Node::Mean { .. } => "mean",
            Node::Stack { .. } => "stack",
            Node::Switch { .. } => "switch",
            Node::Overlay { .. } => "overlay",
            Node::Rules { .. } => "rules",
            Node::Threshold { .. } => "threshold",
            Node::Policy { .. } => "policy",
        }
    }

    pub(super) fn output(&self) -> &str {
        match self {
            Node::Transform { output, .. }
            | Node::Forest { output, .. }
            | Node::Onnx { output, .. }
            | Node::Link { output, .. }
            | Node::Calibrate { output, .. }
            | Node::ScoreMap { output, .. }
            | Node::Mean { output, .. }
            | Node::Stack { output, .. }
            | Node::Switch { output, .. }
            | Node::Overlay { output, .. }
            | Node::Rules { output, .. }
            | Node::Threshold { output, .. }
            | Node::Policy { output, .. } => output,
        }
    }
}
