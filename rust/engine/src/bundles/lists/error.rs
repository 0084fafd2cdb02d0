//! Why a version of a list is not used.

use std::path::PathBuf;

use scorer_core::bundle::{Digest, ReadError};
use scorer_signing::SignatureError;

use crate::error::LoadError;

/// A version of a list was not loaded. The version before it stays in use.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The manifest cannot be read or breaks a rule.
    #[error("list {}: manifest.json: {reason}", path.display())]
    Manifest {
        /// The directory of the version.
        path: PathBuf,
        /// The rule and the remedy.
        reason: String,
    },
    /// The file of the elements is not the one that the manifest states.
    #[error("list {}: elements.txt: {reason}", path.display())]
    Elements {
        /// The directory of the version.
        path: PathBuf,
        /// The rule and the remedy.
        reason: String,
    },
    /// The file of a version cannot be read.
    #[error("list {}: {file}: {source}; publish the list again", path.display())]
    Read {
        /// The directory of the version.
        path: PathBuf,
        /// The file.
        file: &'static str,
        /// The fault.
        source: ReadError,
    },
    /// The directory holds another version than the expected one.
    #[error("list {}: it is {found}, {expected} was expected; check the alias or the directory", path.display())]
    Unexpected {
        /// The directory of the version.
        path: PathBuf,
        /// What was found: the name or the digest.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A newer version is in use, or was in use before a restart.
    #[error(
        "list {name:?}: version {version} is older than version {current}, which is in use; publish the old content as a new version"
    )]
    Older {
        /// Name of the list.
        name: String,
        /// The refused version.
        version: u64,
        /// The version in use.
        current: u64,
    },
    /// The same version has another content.
    #[error(
        "list {name:?}: version {version} is in use as {current}, and this is {digest}; publish the content as a new version"
    )]
    Twice {
        /// Name of the list.
        name: String,
        /// The version.
        version: u64,
        /// Digest of the refused version.
        digest: Digest,
        /// Digest of the version in use.
        current: Digest,
    },
    /// The elements have another type than those of the version in use.
    #[error(
        "list {name:?}: version {version} has elements of type {kind}, the version in use {current}; publish it under another name"
    )]
    Type {
        /// Name of the list.
        name: String,
        /// The refused version.
        version: u64,
        /// Type of its elements.
        kind: &'static str,
        /// Type of the elements in use.
        current: &'static str,
    },
    /// The version has far fewer elements than the one in use.
    #[error(
        "list {name:?}: version {version} has {elements} elements, fewer than half of the {current} in use; check the file, or publish it with --allow-shrink"
    )]
    Shrunk {
        /// Name of the list.
        name: String,
        /// The refused version.
        version: u64,
        /// Its number of elements.
        elements: u64,
        /// The number of elements in use.
        current: u64,
    },
    /// There is not enough memory for the version beside the one in use.
    #[error(
        "list {name:?}: version {version} takes {needed_mib} MiB, the process holds {resident_mib} MiB, and its budget is {budget_mib} MiB ({source_of_budget}); give it more memory, or let the bundles state the same salt"
    )]
    Memory {
        /// Name of the list.
        name: String,
        /// The refused version.
        version: u64,
        /// Memory of the sets to build, in MiB.
        needed_mib: u64,
        /// Memory of the process, in MiB.
        resident_mib: u64,
        /// The memory budget, in MiB.
        budget_mib: u64,
        /// The source of the budget.
        source_of_budget: String,
    },
    /// The signature is missing, or this server does not accept it.
    #[error("list {}: {source}", path.display())]
    Signature {
        /// The directory of the version.
        path: PathBuf,
        /// The fault of the signature.
        source: SignatureError,
    },
    /// The loading thread cannot run, or panicked.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The kinds of refusals, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListRefusal {
    /// A file is missing, damaged or not what the manifest states.
    Content,
    /// The version is older than the one in use, or was published twice.
    Version,
    /// The version has too few elements, or elements of another type.
    Plausibility,
    /// The signature is not accepted.
    Signature,
    /// There is not enough memory.
    Memory,
    /// The registry's files cannot be copied.
    Copy,
    /// Any other cause.
    Other,
}

impl ListRefusal {
    /// The value of the label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ListRefusal::Content => "content",
            ListRefusal::Version => "version",
            ListRefusal::Plausibility => "plausibility",
            ListRefusal::Signature => "signature",
            ListRefusal::Memory => "memory",
            ListRefusal::Copy => "copy",
            ListRefusal::Other => "other",
        }
    }
}

impl ListError {
    /// The kind of the refusal.
    #[must_use]
    pub fn refusal(&self) -> ListRefusal {
        match self {
            ListError::Manifest { .. }
            | ListError::Elements { .. }
            | ListError::Read { .. }
            | ListError::Unexpected { .. } => ListRefusal::Content,
            ListError::Older { .. } | ListError::Twice { .. } => ListRefusal::Version,
            ListError::Type { .. } | ListError::Shrunk { .. } => ListRefusal::Plausibility,
            ListError::Memory { .. } => ListRefusal::Memory,
            ListError::Signature { .. } => ListRefusal::Signature,
            ListError::Load(_) => ListRefusal::Other,
        }
    }
}
