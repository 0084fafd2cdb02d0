//! What can be wrong with a model or with packed bytes.

use thiserror::Error;

/// Why a forest was refused. Each message names the thing, the rule and, where there is one, the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ForestError {
    /// The model uses something that cannot be evaluated exactly.
    #[error("{feature}: {rule}; {remedy}")]
    Unsupported {
        /// The part of the model.
        feature: String,
        /// The rule that it breaks.
        rule: String,
        /// What to do instead.
        remedy: String,
    },
    /// The model or the bytes contradict themselves.
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
    /// The format's version is not known here.
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
        /// Bytes it needs.
        needed: u64,
        /// Bytes that are left.
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
        /// Values expected.
        expected: usize,
        /// Values given.
        found: usize,
    },
}

impl ForestError {
    /// A part of a model that is refused by name.
    pub fn unsupported(
        feature: impl Into<String>,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Unsupported { feature: feature.into(), rule: rule.into(), remedy: remedy.into() }
    }

    /// A part that contradicts itself.
    pub fn invalid(what: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), rule: rule.into() }
    }
}
