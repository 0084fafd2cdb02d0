//! What can be wrong with certificates, keys and callers.

use std::path::{Path, PathBuf};

/// Why certificates, keys or grants cannot be used. Each message names the file or setting, the rule and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("{what} {}: {error}; check the path and the permissions", path.display())]
    Read {
        /// The setting.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: String,
    },
    /// A file does not hold what it should.
    #[error("{what} {}: {problem}", path.display())]
    File {
        /// The setting.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The rule and the remedy.
        problem: String,
    },
    /// The files do not fit each other, or a setting breaks a rule.
    #[error("{0}")]
    Rule(String),
}

// === impl IdentityError ===

impl IdentityError {
    pub(crate) fn file(what: &'static str, path: &Path, problem: impl Into<String>) -> IdentityError {
        IdentityError::File { what, path: path.to_owned(), problem: problem.into() }
    }
}

/// Why a caller is not known. The messages hold nothing of the credential itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    /// Neither certificate nor token nor Unix peer.
    #[error("no credential; present a client certificate or a bearer token")]
    Nothing,
    /// The certificate does not name one principal.
    #[error("client certificate: {0}")]
    Certificate(String),
    /// The token is not accepted.
    #[error("bearer token: {0}")]
    Token(&'static str),
}
