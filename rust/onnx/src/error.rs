//! The reasons why a file is refused.

/// The reason why a file is refused. Each message is one line that names the item, the rule and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// The file is not an ONNX model, or it is damaged.
    #[error("is not a readable ONNX model: {0}; restore it or export the model again")]
    Format(String),
    /// The file exceeds a limit.
    #[error("has {got} {what}, at most {limit}; export a smaller model")]
    Limit {
        /// What there are too many of.
        what: &'static str,
        /// The number that the file states.
        got: usize,
        /// The greatest allowed number.
        limit: usize,
    },
    /// The file has an operator that this build does not evaluate.
    #[error("node {node:?}: operator {operator} is not supported; {remedy}")]
    Operator {
        /// Name of the node.
        node: String,
        /// Name of the operator, with its domain if that is not the default one.
        operator: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A node breaks a rule.
    #[error("node {node:?} ({operator}): {reason}")]
    Node {
        /// Name of the node.
        node: String,
        /// Name of the operator.
        operator: String,
        /// The rule and the remedy.
        reason: String,
    },
    /// An initializer breaks a rule.
    #[error("initializer {name:?}: {reason}")]
    Initializer {
        /// Name of the initializer.
        name: String,
        /// The rule and the remedy.
        reason: String,
    },
    /// The inputs of the graph do not match the columns of the row.
    #[error("input {name:?}: {reason}")]
    Input {
        /// Name of the input.
        name: String,
        /// The rule and the remedy.
        reason: String,
    },
    /// The outputs of the graph give no score.
    #[error("output: {0}")]
    Output(String),
}
