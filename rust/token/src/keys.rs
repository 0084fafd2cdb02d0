//! The keys that sign and verify tokens.

use std::collections::HashSet;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Deserialize;
use sha2::Sha256;

use crate::claims::Claims;
use crate::layout::{LongestToken, TAG, Token, Unreadable};
use crate::scope::Scope;

/// The first bytes of every signed message, so that a tag of these keys is valid for decision tokens only.
const CONTEXT: &[u8] = b"scorer decision token 1\0";
/// Length of a secret, in bytes.
const SECRET: usize = 32;
/// The largest number of keys in one file.
const MAX_KEYS: usize = 16;

/// The keys of one file: the first one signs, all of them verify.
pub struct KeyRing {
    keys: Box<[Key]>,
}

struct Key {
    id: u32,
    /// The state after the padded secret and the context: cloned for each token.
    mac: Hmac<Sha256>,
}

/// The reason why a key file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// The file is not the JSON of a key file. It may be incompletely written.
    #[error("not a key file ({0}); create keys with `scorer token key`")]
    Malformed(String),
    /// The file contains no keys, or too many.
    #[error("{0} keys; a key file holds 1 to {MAX_KEYS}")]
    Count(usize),
    /// The key at this position, counted from 1, is not valid.
    #[error(
        "key {0}: an id is 8 and a secret 64 lower-case hexadecimal digits; create keys with `scorer token key`"
    )]
    Key(usize),
    /// Two keys have the same id.
    #[error("two keys have the id {0:08x}; give each its own")]
    Repeated(u32),
}

/// The reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The bytes do not have the form of a token.
    #[error("decision_token: {0}; send it as it was received")]
    Unreadable(#[from] Unreadable),
    /// The key of the token is not in the key file.
    #[error(
        "decision_token: key {0:08x} is not in the server's key file: it was removed, or belongs to another fleet"
    )]
    Key(u32),
    /// The signature is not valid.
    #[error("decision_token: the signature does not hold; send the token as it was received")]
    Signature,
    /// The token was issued to another tenant.
    #[error(
        "decision_token: it was given to another caller; the caller that received the decision reports its outcome"
    )]
    Tenant,
    /// The token belongs to a decision at another checkpoint.
    #[error("decision_token: it belongs to another checkpoint; report the outcome there")]
    Checkpoint,
    /// The token belongs to another decision.
    #[error(
        "decision_token: it belongs to another decision; send each outcome with its own decision's token"
    )]
    Decision,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    keys: Vec<KeyEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    id: String,
    secret: String,
}

// === impl KeyRing ===

impl KeyRing {
    /// Reads a key file: `{"keys": [{"id": "8 hex digits", "secret": "64 hex digits"}, ...]}`.
    ///
    /// # Errors
    /// [`KeyFileError`]; no message repeats a secret.
    pub fn from_json(json: &[u8]) -> Result<KeyRing, KeyFileError> {
        // Only the position from the parser's message is stated, because the rest may quote the file.
        let place = |error: serde_json::Error| format!("line {}, column {}", error.line(), error.column());
        let file: KeyFile =
            serde_json::from_slice(json).map_err(|error| KeyFileError::Malformed(place(error)))?;
        if !(1..=MAX_KEYS).contains(&file.keys.len()) {
            return Err(KeyFileError::Count(file.keys.len()));
        }
        let mut ids = HashSet::new();
        let mut keys = Vec::with_capacity(file.keys.len());
        for (at, entry) in file.keys.iter().enumerate() {
            let key = Key::from_entry(entry).ok_or(KeyFileError::Key(at + 1))?;
            if !ids.insert(key.id) {
                return Err(KeyFileError::Repeated(key.id));
            }
            keys.push(key);
        }
        Ok(KeyRing { keys: keys.into() })
    }

    /// The ids of the keys; the first one signs.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.keys.iter().map(|key| key.id)
    }

    /// Signs the claims of an answer; `None` if the id is empty or too long for a token.
    #[must_use]
    pub fn sign(&self, claims: &Claims, scope: &Scope<'_>, id: &str) -> Option<LongestToken> {
        let key = self.keys.first()?;
        let tenant = scope.tenant.fingerprint();
        let mut token = LongestToken::unsigned(key.id, claims, tenant, scope.checkpoint_fingerprint, id)?;
        let tag = key.mac(token.as_bytes(), scope).finalize().into_bytes();
        token.push(&tag[..TAG]);
        Some(token)
    }

    /// Verifies a token that is returned for the decision `reported`.
    ///
    /// # Errors
    /// [`TokenError`]: the first rule that it breaks.
    pub fn verify<'a>(
        &self,
        token: &'a [u8],
        scope: &Scope<'_>,
        reported: &str,
    ) -> Result<Token<'a>, TokenError> {
        let token = Token::read(token)?;
        let key = self.keys.iter().find(|key| key.id == token.key_id).ok_or(TokenError::Key(token.key_id))?;
        // The comparison takes constant time. The whole scope is signed, so a token that is valid in another scope
        // fails here too. The four bytes of tenant and checkpoint in the token only select the error.
        if key.mac(token.signed, scope).verify_truncated_left(&token.tag).is_err() {
            return Err(if token.tenant != scope.tenant.fingerprint() {
                TokenError::Tenant
            } else if token.checkpoint != scope.checkpoint_fingerprint {
                TokenError::Checkpoint
            } else {
                TokenError::Signature
            });
        }
        if token.claims.covers(token.decision_id, reported) { Ok(token) } else { Err(TokenError::Decision) }
    }
}

impl std::fmt::Debug for KeyRing {
    /// Writes only the ids, because a secret must not appear in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ids().map(|id| format!("{id:08x}"))).finish()
    }
}

// === impl Key ===

impl Key {
    fn from_entry(entry: &KeyEntry) -> Option<Key> {
        let id = u32::from_be_bytes(hex(&entry.id)?);
        let mut mac = Hmac::<Sha256>::new_from_slice(&hex::<SECRET>(&entry.secret)?).ok()?;
        mac.update(CONTEXT);
        Some(Key { id, mac })
    }

    /// The MAC over a token and its scope; every part but the last has a known length.
    fn mac(&self, signed: &[u8], scope: &Scope<'_>) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        // Both are much shorter than 64 KiB.
        mac.update(&(signed.len() as u16).to_be_bytes());
        mac.update(signed);
        mac.update(&scope.tenant.0);
        mac.update(scope.checkpoint.as_bytes());
        mac
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (to, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *to = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}
