//! Models in the ONNX format: the node `onnx`, and the values that may be missing in its row.

use scorer_onnx::{Net, NetOptions};

use super::BundleError;
use super::calibration::sigmoid;
use super::node::{MissingInput, NetLink, TransformStep, ZeroDivisor};
use super::tables::Tables;
use super::transform::Column;
use crate::schema::{FeatureSpec, MissingRule, UnknownCategoryRule};

/// The model of a bundle that has no other one, and the first one of an ensemble.
pub(super) const MODEL: &str = "model.onnx";

/// A compiled node.
#[derive(Debug)]
pub(super) struct NetNode {
    pub(super) net: Net,
    /// The file of the bundle.
    pub(super) file: String,
    /// The row slot.
    pub(super) row: usize,
    /// Position of the model's output.
    pub(super) margin: usize,
    /// Position of the score; that of the output if it is the score.
    pub(super) to: usize,
    link: NetLink,
}

/// What a bundle shows of an ONNX model.
#[derive(Debug, Clone, Copy)]
pub struct NetFacts<'a> {
    /// The file of the bundle.
    pub file: &'a str,
    /// Number of columns of a row.
    pub columns: usize,
    /// Number of constants, which are mostly weights.
    pub constants: usize,
    /// The operators that the score needs, with the number of nodes of each.
    pub operators: &'a [(String, usize)],
}

/// What a node states about its model.
pub(super) struct NetSettings {
    pub(super) index: Option<usize>,
    pub(super) link: NetLink,
    pub(super) missing: Option<MissingInput>,
}

/// Whether a file of a bundle holds an ONNX model.
pub(super) fn is_net_name(name: &str) -> bool {
    name.ends_with(".onnx")
}

/// Compiles the model of a node for the columns of its row. `may_miss` states for each column whether its value may be
/// missing.
pub(super) fn compile(
    file: &str,
    bytes: &[u8],
    columns: &[Column],
    may_miss: &[bool],
    settings: &NetSettings,
) -> Result<Net, Refused> {
    let missing = match settings.missing {
        None => {
            if let Some(at) = may_miss.iter().position(|may_miss| *may_miss) {
                return Err(Refused::Node(format!(
                    "column {:?} may be missing, and a net computes NaN from it; state `missing`, a number or \"nan\", or refuse missing values in the schema",
                    columns[at].spec.name
                )));
            }
            None
        }
        Some(MissingInput::Nan(_)) => None,
        Some(MissingInput::Number(number)) => {
            let number = number as f32;
            if !number.is_finite() {
                return Err(Refused::Node("missing is not finite in float32; correct it".to_owned()));
            }
            Some(number)
        }
    };
    let names: Vec<&str> = columns.iter().map(|column| column.spec.name.as_str()).collect();
    Net::parse(bytes, &names, NetOptions { index: settings.index, missing })
        .map_err(|source| Refused::File(BundleError::Net { file: file.to_owned(), source: Box::new(source) }))
}

/// The node is wrong, or the file is.
pub(super) enum Refused {
    Node(String),
    File(BundleError),
}

impl NetNode {
    /// Gives the margin a place among the values; `to` is another place for the score if a link computes it.
    pub(super) fn new(
        file: &str,
        net: Net,
        row: usize,
        settings: &NetSettings,
        mut place: impl FnMut() -> usize,
    ) -> NetNode {
        let margin = place();
        let to = if settings.link == NetLink::Identity { margin } else { place() };
        NetNode { net, file: file.to_owned(), row, margin, to, link: settings.link }
    }

    /// Whether the score is a probability.
    pub(super) fn is_probability(&self) -> bool {
        self.link == NetLink::Sigmoid || self.net.is_probability()
    }

    /// Computes the score from the output of the model, which is among the values.
    pub(super) fn apply_link(&self, values: &mut [f64]) {
        if self.link == NetLink::Sigmoid {
            values[self.to] = sigmoid(values[self.margin]);
        }
    }

    pub(super) fn facts(&self) -> NetFacts<'_> {
        NetFacts {
            file: &self.file,
            columns: self.net.width(),
            constants: self.net.constants(),
            operators: self.net.operators(),
        }
    }
}

/// Returns for each column of the input's row whether its value may be missing.
pub(super) fn missing_inputs(features: &[FeatureSpec]) -> Vec<bool> {
    features
        .iter()
        .map(|feature| {
            feature.missing == MissingRule::Allow || feature.unknown_category == UnknownCategoryRule::Missing
        })
        .collect()
}

/// Returns for each column of a transformed row whether its value may be missing. `columns` are those of the new row, and
/// `may_miss` belongs to the row that the steps read.
pub(super) fn missing_after(
    steps: &[TransformStep],
    columns: &[Column],
    may_miss: &[bool],
    tables: &Tables,
) -> Vec<bool> {
    let mut flags = may_miss.to_vec();
    for step in steps {
        let of = |name: &str| {
            let at = columns.iter().position(|column| column.spec.name == name);
            at.and_then(|at| flags.get(at)).copied().unwrap_or(true)
        };
        let flag = match step {
            TransformStep::Missing { .. } => false,
            TransformStep::Custom { .. } => true,
            TransformStep::Table { table, .. } => !tables.has_default(table),
            TransformStep::Ratio { left, right, zero, .. } => {
                of(left) || of(right) || matches!(zero, ZeroDivisor::Missing(_))
            }
            TransformStep::Add { left, right, .. }
            | TransformStep::Subtract { left, right, .. }
            | TransformStep::Multiply { left, right, .. } => of(left) || of(right),
            TransformStep::Log1p { feature, .. }
            | TransformStep::Standardise { feature, .. }
            | TransformStep::Clip { feature, .. }
            | TransformStep::Bucket { feature, .. }
            | TransformStep::DatePart { feature, .. } => of(feature),
        };
        // A function that replaces its feature leaves a missing value missing.
        if step.output().is_some() {
            flags.push(flag);
        }
    }
    flags
}
