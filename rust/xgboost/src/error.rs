//! What can be wrong with a model file.

use scorer_core::forest::ForestError;
use thiserror::Error;

/// Why a file was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The bytes are not well-formed.
    #[error("{format} at byte {offset}: {rule}; save the model again with Booster.save_model")]
    Syntax {
        /// `JSON` or `UBJ`.
        format: &'static str,
        /// Where.
        offset: usize,
        /// The rule that is broken.
        rule: String,
    },
    /// The document is well-formed, but is not the XGBoost model that it should be.
    #[error("XGBoost model, {path}: {rule}")]
    Field {
        /// Path of the field.
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
