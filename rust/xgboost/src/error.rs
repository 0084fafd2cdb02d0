//! Errors of reading a model file.

use scorer_core::forest::ForestError;
use thiserror::Error;

/// The reason why a file was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The bytes are not well-formed.
    #[error("{format} at byte {offset}: {rule}; save the model again with Booster.save_model")]
    Syntax {
        /// `JSON` or `UBJ`.
        format: &'static str,
        /// Offset of the error in bytes.
        offset: usize,
        /// The rule that is broken.
        rule: String,
    },
    /// The document is well-formed, but a field is missing or has a wrong value.
    #[error("XGBoost model, {path}: {rule}")]
    Field {
        /// Path of the field, such as `learner.objective.name`.
        path: String,
        /// The rule that is broken.
        rule: String,
    },
    /// The model is malformed or uses something that is not supported.
    #[error(transparent)]
    Forest(#[from] ForestError),
}

impl ReadError {
    pub(crate) fn field(path: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::Field { path: path.into(), rule: rule.into() }
    }
}
