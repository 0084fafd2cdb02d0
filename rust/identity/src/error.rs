//! Errors of certificates, keys and callers.

use std::path::{Path, PathBuf};

/// The reason why certificates, keys or grants cannot be used. Each message names the file or setting, the rule and the
/// remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("{what} {}: {error}; check the path and the permissions", path.display())]
    Read {
        /// Name of the setting.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        error: String,
    },
    /// The contents of a file are not valid.
    #[error("{what} {}: {problem}", path.display())]
    File {
        /// Name of the setting.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The rule and the remedy.
        problem: String,
    },
    /// The files do not match each other, or a setting breaks a rule.
    #[error("{0}")]
    Rule(String),
}

// === impl IdentityError ===

impl IdentityError {
    pub(crate) fn file(what: &'static str, path: &Path, problem: impl Into<String>) -> IdentityError {
        IdentityError::File { what, path: path.to_owned(), problem: problem.into() }
    }
}

/// The reason why a caller cannot be authenticated. The messages contain no part of the credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    /// The caller has no certificate, no token and no Unix user.
    #[error("no credential; present a client certificate or a bearer token")]
    Nothing,
    /// The certificate does not name one principal.
    #[error("client certificate: {0}")]
    Certificate(String),
    /// The token is not accepted.
    #[error("bearer token: {0}")]
    Token(&'static str),
}
