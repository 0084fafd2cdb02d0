//! Keyed pseudonyms. An identifier always has the same pseudonym, and computing it requires the key.

use std::fmt::Write as _;
use std::path::Path;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::key_file::{self, KeyError};

/// The purpose of pseudonyms of entities.
pub const ENTITY: &str = "entity";
/// Smallest length of a key in bytes.
const SHORTEST_KEY: usize = 32;
/// Largest length of a key in bytes.
const LONGEST_KEY: u64 = 4096;
/// Number of bytes of the hash that a pseudonym contains.
const KEPT: usize = 16;

/// Replaces identifiers by their HMAC-SHA-256 under one key, truncated to 128 bits.
#[derive(Clone)]
pub struct Pseudonyms {
    /// The state of the HMAC after the key.
    keyed: Hmac<Sha256>,
}

// === impl Pseudonyms ===

impl Pseudonyms {
    /// Reads the key from a file. White space at the end of the file is not part of the key.
    ///
    /// # Errors
    /// Fails if the file cannot be read, if other users may access it, or if the key is shorter than 32 or longer than
    /// 4096 bytes.
    pub fn from_file(path: &Path) -> Result<Pseudonyms, KeyError> {
        let file = key_file::read_secret(path, LONGEST_KEY)?;
        let key = file.bytes.trim_ascii_end();
        let wrong = || KeyError::Length {
            path: path.to_owned(),
            bytes: key.len(),
            shortest: SHORTEST_KEY,
            longest: LONGEST_KEY,
        };
        if !(SHORTEST_KEY..=LONGEST_KEY as usize).contains(&key.len()) {
            return Err(wrong());
        }
        Ok(Pseudonyms { keyed: Hmac::new_from_slice(key).map_err(|_| wrong())? })
    }

    /// Returns the pseudonym of an identifier: 32 hexadecimal digits. An identifier has a different pseudonym for each
    /// `purpose`.
    #[must_use]
    pub fn of(&self, purpose: &str, identifier: &str) -> String {
        let mut keyed = self.keyed.clone();
        keyed.update(purpose.as_bytes());
        keyed.update(&[0]);
        keyed.update(identifier.as_bytes());
        let mut out = String::with_capacity(2 * KEPT);
        for byte in keyed.finalize().into_bytes().iter().take(KEPT) {
            // Writing to a string cannot fail.
            let _ = write!(out, "{byte:02x}");
        }
        out
    }
}

impl std::fmt::Debug for Pseudonyms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pseudonyms")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    fn key(bytes: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("entity.key");
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn a_pseudonym_depends_on_key_purpose_and_identifier() {
        let (_dir, path) = key(b"0123456789abcdef0123456789abcdef\n", 0o600);
        let pseudonyms = Pseudonyms::from_file(&path).unwrap();
        let one = pseudonyms.of("entity", "customer-1");
        // `printf 'entity\0customer-1' | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef`, first half.
        assert_eq!(one, "b21b96651b4e01a7d93c311e78e5e7ac");
        assert_eq!(one.len(), 32);
        assert_eq!(one, pseudonyms.of("entity", "customer-1"));
        assert_ne!(one, pseudonyms.of("card", "customer-1"));
        assert_ne!(one, pseudonyms.of("entity", "customer-2"));
        let (_dir, path) = key(b"another-key-of-32-bytes-and-more", 0o640);
        assert_ne!(one, Pseudonyms::from_file(&path).unwrap().of("entity", "customer-1"));
    }

    #[test]
    fn a_key_that_is_short_absent_or_exposed_is_refused_in_one_line() {
        let (_dir, path) = key(b"short\n", 0o600);
        let (_other, exposed) = key(b"0123456789abcdef0123456789abcdef", 0o644);
        for (path, says) in
            [(path.clone(), "5 bytes"), (exposed, "chmod o="), (path.join("none"), "can read")]
        {
            let error = Pseudonyms::from_file(&path).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n') && !error.contains("short"), "{error}");
        }
    }
}
