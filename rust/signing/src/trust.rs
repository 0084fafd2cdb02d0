//! Which signatures a server accepts.

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

/// Most trusted keys; two are in use while one replaces the other.
const MAX_KEYS: usize = 64;
/// Largest key file, bytes.
const MAX_KEY_BYTES: u64 = 16 << 10;

/// By bundle name: the lowest release that is accepted.
pub type Floors = BTreeMap<String, u64>;

/// The keys that a server trusts, and whether it takes bundles that are not signed. Key files are read for each
/// verification, so a key that is added or removed counts from the next bundle on.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Trust {
    /// Public keys in PEM, or directories of them (`*.pem`).
    #[serde(default)]
    pub trusted_keys: Vec<PathBuf>,
    /// Absent: bundles without a signature are accepted only where no key is trusted.
    #[serde(default)]
    pub unsigned: Option<Unsigned>,
}

/// What becomes of a bundle without a signature.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Unsigned {
    /// It is loaded.
    Allow,
    /// It is refused.
    Refuse,
}

/// What a signature is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Verification<'a> {
    /// The bundle that must be signed.
    pub digest: &'a Digest,
    /// The name that it must have; absent: any.
    pub name: Option<&'a str>,
    /// The lowest releases that are accepted.
    pub floors: &'a Floors,
    /// This server has accepted the bundle before: a key that has expired since is no reason to refuse it.
    pub known: bool,
    /// The time that keys may have expired by.
    pub now: SystemTime,
}

/// What a verified signature says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signed {
    /// The bundle's name.
    pub name: String,
    /// Which release of that name it is.
    pub release: u64,
    /// The id of the key that signed it.
    pub key: String,
    /// When, RFC 3339.
    pub signed_at: String,
}

// === impl Trust ===

impl Trust {
    /// Whether signatures are looked at.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.unsigned() == Unsigned::Refuse
    }

    fn unsigned(&self) -> Unsigned {
        self.unsigned.unwrap_or(if self.trusted_keys.is_empty() { Unsigned::Allow } else { Unsigned::Refuse })
    }

    /// Checks an envelope; `None` where nothing is signed and that is accepted. Without trusted keys an envelope is
    /// not looked at.
    ///
    /// # Errors
    /// [`SignatureError`].
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
        // A key file that cannot be used may be the one that is missed.
        Err(refused.or(unreadable.map(SignatureError::Key)).unwrap_or_else(|| SignatureError::Untrusted {
            keys: joined(envelope.signatures.iter().map(|(id, _)| id.as_str())),
            trusted: match keys.as_slice() {
                [] => "no key is".to_owned(),
                keys => format!("trusted: {}", joined(keys.iter().map(|key| key.id.as_str()))),
            },
        }))
    }

    /// Every key that can be used, and what is wrong with the first that cannot.
    ///
    /// # Errors
    /// There are too many.
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

/// A statement whose signature holds, if it is about the bundle that is wanted.
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

/// The key files of a place: itself, or the `*.pem` in it, by name.
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
