//! Errors of keys and signatures. Each message is one line that names the object, the rule and the remedy.

use std::path::PathBuf;

use scorer_core::bundle::Digest;

/// The reason why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The file or directory cannot be read.
    #[error("key {}: it cannot be read: {reason}; make it readable or remove it from trusted_keys", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The error text of the operating system.
        reason: String,
    },
    /// The file contains no Ed25519 or P-256 key.
    #[error("key {}: {reason}; write an Ed25519 or P-256 key with `scorer bundle keygen` or openssl", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The rule that the file breaks.
        reason: &'static str,
    },
    /// There are more trusted keys than a server reads.
    #[error("{}: there are more than {limit} trusted keys; remove those that are no longer used", path.display())]
    TooMany {
        /// The first key file beyond the limit.
        path: PathBuf,
        /// The largest number of trusted keys.
        limit: usize,
    },
    /// The text contains no Ed25519 or P-256 key.
    #[error("the key cannot be used: {0}; use an Ed25519 or P-256 key in PEM")]
    Text(&'static str),
    /// The system provides no random numbers.
    #[error("the system gives no random numbers for a new key")]
    Random,
}

/// The reason why a bundle's signature is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The bundle has no signature, but signatures are required.
    #[error(
        "it has no signature.json, and a bundle must be signed here; sign it with `scorer bundle sign`, or set \
         bundles.unsigned = \"allow\""
    )]
    Missing,
    /// The file is not a valid envelope or statement.
    #[error("signature.json: {0}; sign the bundle again with `scorer bundle sign`")]
    Malformed(String),
    /// No signature in the envelope is by a trusted key.
    #[error("it is signed by key {keys}, which is not trusted here ({trusted}); sign it with a trusted key")]
    Untrusted {
        /// The key ids in the envelope, separated by commas.
        keys: String,
        /// The ids of the trusted keys.
        trusted: String,
    },
    /// A signature does not match the payload.
    #[error("the signature by key {key} does not match what it signs; sign the bundle again")]
    Mismatch {
        /// Id of the key that the envelope names.
        key: String,
    },
    /// The signature belongs to another bundle.
    #[error(
        "its signature is of bundle {found}, and the bundle is {wanted}; use the signature of this bundle"
    )]
    OtherBundle {
        /// Digest in the signed statement.
        found: Digest,
        /// Digest of the bundle to be loaded.
        wanted: Digest,
    },
    /// The signature belongs to a bundle with another name than that of the alias.
    #[error(
        "it is signed as a bundle of {found:?}, and {wanted:?} is wanted here; point the alias to a bundle of its name"
    )]
    OtherName {
        /// Name in the signed statement.
        found: String,
        /// Name that the alias requires.
        wanted: String,
    },
    /// The key's `Not-After` has passed.
    #[error("it is signed by key {key}, which expired on {not_after}; sign it with a current key")]
    ExpiredKey {
        /// Id of the key.
        key: String,
        /// The key's `Not-After` time, RFC 3339.
        not_after: String,
    },
    /// The release is lower than one that the server has served.
    #[error(
        "it is release {release} of {name:?}, and release {floor} has been served; sign it with a higher release, or \
         allow the rollback (--allow-rollback)"
    )]
    Older {
        /// Name of the bundle in the signed statement.
        name: String,
        /// Release in the signed statement.
        release: u64,
        /// The lowest release that is accepted.
        floor: u64,
    },
    /// The trusted keys cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Returns the position of the error in a JSON text. The message of serde is not used: it may quote the text, which is
/// not verified yet and could insert lines into a log.
pub(crate) fn place(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}
