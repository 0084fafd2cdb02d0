//! The errors of models and of packed forests.

use thiserror::Error;

/// The reason why a forest was refused. Each message names the part, the rule and, if there is one, the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ForestError {
    /// The model uses something that cannot be evaluated exactly.
    #[error("{feature}: {rule}; {remedy}")]
    Unsupported {
        /// The part of the model.
        feature: String,
        /// The rule that it breaks.
        rule: String,
        /// The remedy.
        remedy: String,
    },
    /// The model or the packed bytes are inconsistent.
    #[error("{what}: {rule}")]
    Invalid {
        /// The part, with its index.
        what: String,
        /// The rule that it breaks.
        rule: String,
    },
    /// The bytes do not start with the magic of a packed forest.
    #[error("not a packed forest: the first bytes are not `SCFOREST`; write the file with Forest.save")]
    Magic,
    /// This code does not read the format's version.
    #[error("packed forest: version {found} is not {supported}; rebuild it, or load it with a newer scorer")]
    Version {
        /// Version in the file.
        found: u32,
        /// Version that this code reads.
        supported: u32,
    },
    /// The bytes end too early.
    #[error(
        "packed forest: {what} needs {needed} bytes, {remaining} remain; the file is truncated or altered"
    )]
    Truncated {
        /// The part being read.
        what: &'static str,
        /// Number of bytes that the part needs.
        needed: u64,
        /// Number of bytes that remain.
        remaining: u64,
    },
    /// The checksum does not match.
    #[error(
        "packed forest: CRC32C is {found:#010x}, the content gives {computed:#010x}; the file is altered"
    )]
    Checksum {
        /// Stored checksum.
        found: u32,
        /// Checksum of the content.
        computed: u32,
    },
    /// A buffer has the wrong length.
    #[error("{what}: {found} values given, {expected} expected")]
    Shape {
        /// The buffer.
        what: &'static str,
        /// Number of values expected.
        expected: usize,
        /// Number of values given.
        found: usize,
    },
}

impl ForestError {
    /// Creates the error for a part of a model that is not supported.
    pub fn unsupported(
        feature: impl Into<String>,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Unsupported { feature: feature.into(), rule: rule.into(), remedy: remedy.into() }
    }

    /// Creates the error for an inconsistent part.
    pub fn invalid(what: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), rule: rule.into() }
    }
}
