//! The errors of definitions, events and the store.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use crate::kinds::shown;

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

/// An entity is not erased.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// No set has features of the entity.
    #[error("entity: no feature set has features of {entity:?}; the sets of this server have {known}")]
    UnknownEntity {
        /// The entity.
        entity: String,
        /// The names of the entities.
        known: String,
    },
    /// The key cannot be that of an event.
    #[error("key: {length} bytes; use 1 to {max}")]
    Key {
        /// Its length in bytes.
        length: usize,
        /// The limit.
        max: usize,
    },
    /// Too many erasures are not complete.
    #[error("{max} erasures are not complete; repeat this one later")]
    TooMany {
        /// The limit.
        max: usize,
    },
    /// The erasure is not on stable storage.
    #[error(
        "{0}; the state is removed from memory, and would return with a restart: correct the disk and repeat the call"
    )]
    Write(String),
}

// === impl ForgetError ===

impl ForgetError {
    pub(crate) fn unknown_entity(known: &BTreeSet<&str>, entity: &str) -> ForgetError {
        let known: Vec<&str> = known.iter().copied().collect();
        ForgetError::UnknownEntity { entity: shown(entity), known: known.join(", ") }
    }
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
