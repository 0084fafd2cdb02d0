//! Why a key or a signature is not accepted. Each message is one line: the thing, the rule, the remedy.

use std::path::PathBuf;

use scorer_core::bundle::Digest;

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("key {}: it cannot be read: {reason}; make it readable or remove it from trusted_keys", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// The file holds no key of a known kind.
    #[error("key {}: {reason}; write an Ed25519 or P-256 key with `scorer bundle keygen` or openssl", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: &'static str,
    },
    /// More keys than a server reads.
    #[error("{}: there are more than {limit} trusted keys; remove those that are no longer used", path.display())]
    TooMany {
        /// Where the limit was passed.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
    /// The text holds no key of a known kind.
    #[error("the key cannot be used: {0}; use an Ed25519 or P-256 key in PEM")]
    Text(&'static str),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers for a new key")]
    Random,
}

/// Why a bundle's signature is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// There is none, and there must be one.
    #[error(
        "it has no signature.json, and a bundle must be signed here; sign it with `scorer bundle sign`, or set \
         bundles.unsigned = \"allow\""
    )]
    Missing,
    /// The file is no envelope.
    #[error("signature.json: {0}; sign the bundle again with `scorer bundle sign`")]
    Malformed(String),
    /// No signature is by a trusted key.
    #[error("it is signed by key {keys}, which is not trusted here ({trusted}); sign it with a trusted key")]
    Untrusted {
        /// The ids in the envelope.
        keys: String,
        /// The ids of the trusted keys.
        trusted: String,
    },
    /// A signature does not belong to its statement.
    #[error("the signature by key {key} does not match what it signs; sign the bundle again")]
    Mismatch {
        /// The id of the key.
        key: String,
    },
    /// The signature is of another bundle.
    #[error(
        "its signature is of bundle {found}, and the bundle is {wanted}; use the signature of this bundle"
    )]
    OtherBundle {
        /// What is signed.
        found: Digest,
        /// What was to be loaded.
        wanted: Digest,
    },
    /// The signature is of a bundle of another name than the alias's.
    #[error(
        "it is signed as a bundle of {found:?}, and {wanted:?} is wanted here; point the alias to a bundle of its name"
    )]
    OtherName {
        /// The name that is signed.
        found: String,
        /// The name that the alias has.
        wanted: String,
    },
    /// The key may no longer sign.
    #[error("it is signed by key {key}, which expired on {not_after}; sign it with a current key")]
    ExpiredKey {
        /// The id of the key.
        key: String,
        /// As its file says.
        not_after: String,
    },
    /// An older release than one that was served.
    #[error(
        "it is release {release} of {name:?}, and release {floor} has been served; sign it with a higher release, or \
         allow the rollback (--allow-rollback)"
    )]
    Older {
        /// The bundle's name, as signed.
        name: String,
        /// Its release.
        release: u64,
        /// The lowest release that is accepted.
        floor: u64,
    },
    /// The trusted keys cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Where a JSON text is malformed. serde's own message may quote it, and this text is read before anything vouches for
/// it: it could put lines of its own into a log.
pub(crate) fn place(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}
