//! The errors of definitions, events and the store.

use std::io;
use std::path::PathBuf;

/// A feature set is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("feature set: {0}")]
pub struct DefinitionError(pub String);

/// The store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Two sets contradict each other.
    #[error("feature sets: {0}")]
    Sets(String),
    /// The directory cannot be used.
    #[error("feature store {}: {source}; check the directory and its permissions", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Another process uses the directory.
    #[error("feature store {}: another process uses it; give each server a directory of its own", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
}

/// The store does not have a feature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No set has a feature of this name.
    #[error("feature {name:?}: no set of this server has it; add its set to [features] sets")]
    Unknown {
        /// The feature.
        name: String,
    },
    /// The feature is defined otherwise.
    #[error(
        "feature {name:?}: set {set} of this server defines it otherwise; give the server the set of the bundle, or build the bundle with the server's set"
    )]
    Defined {
        /// The feature.
        name: String,
        /// The set, as `name@version`.
        set: String,
    },
    /// The features need too many entities or there are too many.
    #[error("features: {0}")]
    Limit(&'static str),
}

/// Why an event is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// No set declares the kind.
    UnknownKind,
    /// The id is empty or too long.
    Id,
    /// There is no key of an entity.
    NoKey,
    /// A key is empty or too long.
    Key,
    /// The kind does not have the entity.
    UnknownEntity,
    /// The kind does not have the field.
    UnknownField,
    /// A number is not finite.
    Number,
    /// A text is too long.
    Text,
    /// The event is from the future.
    Future,
    /// The event is too old.
    Late,
}

/// An event is not applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The event is not valid.
    #[error("{message}")]
    Refused {
        /// The reason.
        refusal: Refusal,
        /// The field, the rule and the remedy.
        message: String,
    },
    /// The queue of the journal is full.
    #[error("the journal cannot keep up; record the event again later")]
    Busy,
    /// The journal cannot be written, or the store is closed.
    #[error("{0}")]
    Journal(String),
}

// === impl Refusal ===

impl Refusal {
    /// All reasons, in the order of their counters.
    pub const ALL: [Refusal; 10] = [
        Refusal::UnknownKind,
        Refusal::Id,
        Refusal::NoKey,
        Refusal::Key,
        Refusal::UnknownEntity,
        Refusal::UnknownField,
        Refusal::Number,
        Refusal::Text,
        Refusal::Future,
        Refusal::Late,
    ];

    /// The name in replies and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Refusal::UnknownKind => "unknown_kind",
            Refusal::Id => "id",
            Refusal::NoKey => "no_key",
            Refusal::Key => "key",
            Refusal::UnknownEntity => "unknown_entity",
            Refusal::UnknownField => "unknown_field",
            Refusal::Number => "number",
            Refusal::Text => "text",
            Refusal::Future => "future",
            Refusal::Late => "late",
        }
    }

    pub(crate) fn error(self, message: impl Into<String>) -> EventError {
        EventError::Refused { refusal: self, message: message.into() }
    }
}
