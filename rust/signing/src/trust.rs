//! Verification of signatures against the keys that a server trusts.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use scorer_core::bundle::Digest;
use serde::{Deserialize, Serialize};

use crate::envelope::Envelope;
use crate::error::{KeyError, SignatureError};
use crate::key::PublicKey;
use crate::statement::Statement;

/// Largest number of trusted keys. Two are in use while one replaces the other.
const MAX_KEYS: usize = 64;
/// Size of the largest accepted key file in bytes.
const MAX_KEY_BYTES: u64 = 16 << 10;

/// The lowest accepted release of each bundle name.
pub type Floors = BTreeMap<String, u64>;

/// The keys that a server trusts, and whether it accepts unsigned bundles. Key files are read for each verification, so
/// adding or removing a file takes effect with the next bundle.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Trust {
    /// Paths of public keys in PEM, or of directories that contain them (`*.pem`).
    #[serde(default)]
    pub trusted_keys: Vec<PathBuf>,
    /// Treatment of unsigned bundles. `None`: they are accepted only if `trusted_keys` is empty.
    #[serde(default)]
    pub unsigned: Option<Unsigned>,
}

/// Treatment of a bundle without a signature.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Unsigned {
    /// The bundle is loaded.
    Allow,
    /// The bundle is refused.
    Refuse,
}

/// The properties that a signature must prove, and the circumstances of the verification.
#[derive(Clone, Copy, Debug)]
pub struct Verification<'a> {
    /// Digest of the bundle to be loaded.
    pub digest: &'a Digest,
    /// Required name of the bundle. `None`: any name.
    pub name: Option<&'a str>,
    /// The lowest accepted releases.
    pub floors: &'a Floors,
    /// Whether this server has accepted the bundle before. It then stays acceptable if the signing key has expired
    /// since.
    pub known: bool,
    /// Current time, which the keys' `Not-After` is compared with.
    pub now: SystemTime,
}

/// The contents of a verified statement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signed {
    /// Name of the bundle.
    pub name: String,
    /// Number of the release of that name.
    pub release: u64,
    /// Id of the key that signed the statement.
    pub key: String,
    /// Time of signing, RFC 3339.
    pub signed_at: String,
}

// === impl Trust ===

impl Trust {
    /// Returns whether bundles without a signature are refused.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.unsigned() == Unsigned::Refuse
    }

    fn unsigned(&self) -> Unsigned {
        self.unsigned.unwrap_or(if self.trusted_keys.is_empty() { Unsigned::Allow } else { Unsigned::Refuse })
    }

    /// Verifies an envelope. Returns `None` for a bundle without a signature, if those are accepted. Without trusted
    /// keys, an envelope is treated as missing.
    ///
    /// # Errors
    /// Fails if the signature is missing but required, or the envelope is malformed, or no trusted and current key has
    /// signed it, or the statement is of another bundle, of another name or of a release below the floor, or there are
    /// too many trusted keys.
    pub fn verify(
        &self,
        envelope: Option<&[u8]>,
        wanted: &Verification<'_>,
    ) -> Result<Option<Signed>, SignatureError> {
        let Some(envelope) = envelope.filter(|_| !self.trusted_keys.is_empty()) else {
            return if self.is_required() { Err(SignatureError::Missing) } else { Ok(None) };
        };
        let envelope = Envelope::parse(envelope)?;
        let (keys, unreadable) = self.keys()?;
        let mut refused = None;
        for (id, signature) in &envelope.signatures {
            for key in keys.iter().filter(|key| key.id == *id) {
                if !key.verifies(&envelope.message, signature) {
                    refused = Some(SignatureError::Mismatch { key: id.clone() });
                } else if key.is_expired(wanted.now) && !wanted.known {
                    refused =
                        Some(SignatureError::ExpiredKey { key: id.clone(), not_after: key.not_after_text() });
                } else {
                    return signed(&envelope.payload, id, wanted).map(Some);
                }
            }
        }
        // The signing key may be in the file that cannot be used, so that error takes precedence over `Untrusted`.
        Err(refused.or(unreadable.map(SignatureError::Key)).unwrap_or_else(|| SignatureError::Untrusted {
            keys: joined(envelope.signatures.iter().map(|(id, _)| id.as_str())),
            trusted: match keys.as_slice() {
                [] => "no key is".to_owned(),
                keys => format!("trusted: {}", joined(keys.iter().map(|key| key.id.as_str()))),
            },
        }))
    }

    /// Reads all key files. Returns the usable keys, and the error of the first file that cannot be used.
    ///
    /// # Errors
    /// Fails with [`KeyError::TooMany`] if there are more than 64 keys.
    pub fn keys(&self) -> Result<(Vec<PublicKey>, Option<KeyError>), KeyError> {
        let (mut keys, mut unusable) = (Vec::new(), None);
        for place in &self.trusted_keys {
            for path in files(place).unwrap_or_else(|error| {
                unusable.get_or_insert(error);
                Vec::new()
            }) {
                if keys.len() == MAX_KEYS {
                    return Err(KeyError::TooMany { path, limit: MAX_KEYS });
                }
                match read(&path) {
                    Ok(key) => keys.push(key),
                    Err(error) => {
                        unusable.get_or_insert(error);
                    }
                }
            }
        }
        Ok((keys, unusable))
    }
}

/// Returns the contents of a statement whose signature has been verified, if the statement fulfils `wanted`.
fn signed(payload: &[u8], key: &str, wanted: &Verification<'_>) -> Result<Signed, SignatureError> {
    let (name, digest, predicate) = Statement::parse(payload)?;
    if digest != *wanted.digest {
        return Err(SignatureError::OtherBundle { found: digest, wanted: *wanted.digest });
    }
    if let Some(wanted) = wanted.name.filter(|&wanted| wanted != name) {
        return Err(SignatureError::OtherName { found: name, wanted: wanted.to_owned() });
    }
    if let Some(&floor) = wanted.floors.get(&name).filter(|&&floor| predicate.release < floor) {
        return Err(SignatureError::Older { name, release: predicate.release, floor });
    }
    Ok(Signed { name, release: predicate.release, key: key.to_owned(), signed_at: predicate.signed_at })
}

/// Returns the key files at a path: the path itself, or the `*.pem` in that directory, sorted by name.
fn files(place: &Path) -> Result<Vec<PathBuf>, KeyError> {
    let explain =
        |error: std::io::Error| KeyError::Read { path: place.to_owned(), reason: error.to_string() };
    if !fs::metadata(place).map_err(explain)?.is_dir() {
        return Ok(vec![place.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(place).map_err(explain)? {
        let path = entry.map_err(explain)?.path();
        if path.extension().is_some_and(|extension| extension == "pem") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<PublicKey, KeyError> {
    let explain = |error: std::io::Error| KeyError::Read { path: path.to_owned(), reason: error.to_string() };
    let metadata = fs::metadata(path).map_err(explain)?;
    if !metadata.is_file() || metadata.len() > MAX_KEY_BYTES {
        return Err(KeyError::File { path: path.to_owned(), reason: "it is no small regular file" });
    }
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(MAX_KEY_BYTES).read_to_string(&mut text)).map_err(explain)?;
    PublicKey::from_pem(&text).map_err(|error| match error {
        KeyError::Text(reason) => KeyError::File { path: path.to_owned(), reason },
        other => other,
    })
}

fn joined<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    ids.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
