//! Digests of canonical forms.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// SHA-256 of the text of a canonical form.
pub(crate) fn of(value: &Value) -> [u8; 32] {
    Sha256::digest(value.to_string().as_bytes()).into()
}
