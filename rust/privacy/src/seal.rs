//! Encrypts to a public key: HPKE (RFC 9180), mode Base, with DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES-256-GCM.
//!
//! The sender alone is here. Who holds the private key opens what was sealed; the process that seals keeps the key of one
//! [`Sealer`] in memory, never in a file, and can open nothing that another sealer made.

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use hmac::{Hmac, KeyInit as _, Mac as _};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject as _;
use sha2::{Digest as _, Sha256};

use crate::key_file::{self, KeyError};

/// Bytes of an X25519 key, and of a SHA-256.
const LENGTH: usize = 32;
/// Most bytes that are read of a key file.
const LONGEST: u64 = 4096;
/// SubjectPublicKeyInfo (RFC 8410) up to the 32 bytes of an X25519 key.
const X25519_SPKI: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x6e, 0x03, 0x21, 0x00];
/// `KEM` and the id of DHKEM(X25519, HKDF-SHA256).
const KEM: &[u8] = b"KEM\x00\x20";
/// `HPKE` and the ids of the KEM, of HKDF-SHA256 and of AES-256-GCM.
const SUITE: &[u8] = b"HPKE\x00\x20\x00\x01\x00\x02";

/// The key that values are encrypted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    bytes: [u8; LENGTH],
}

/// Encrypts any number of messages to one public key. Threads share it without a lock.
pub struct Sealer {
    key: LessSafeKey,
    base_nonce: [u8; NONCE_LEN],
    encapsulated: [u8; LENGTH],
    key_id: u64,
    next: AtomicU64,
}

/// Nothing was sealed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("encryption failed; check the public key: it may be a point of small order")]
pub struct SealError;

// === impl PublicKey ===

impl PublicKey {
    /// Reads a PEM `PUBLIC KEY`, as `openssl pkey -pubout` writes it.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn from_file(path: &Path) -> Result<PublicKey, KeyError> {
        let file = key_file::read(path, LONGEST)?;
        let unusable = |rule| KeyError::Unusable { path: path.to_owned(), rule };
        if file.is_writable_by_others() {
            return Err(unusable("other users can write it; run chmod o-w on it"));
        }
        if file.bytes.windows(11).any(|window| window == b"PRIVATE KEY") {
            return Err(unusable(
                "it holds a private key, which must not be on this machine; name the file of the public key",
            ));
        }
        let rule = "it holds no X25519 key as PUBLIC KEY in PEM; `scorer log keygen` makes one";
        let spki = SubjectPublicKeyInfoDer::from_pem_slice(&file.bytes).map_err(|_| unusable(rule))?;
        let bytes = spki.as_ref().strip_prefix(X25519_SPKI).and_then(|key| key.try_into().ok());
        Ok(PublicKey { bytes: bytes.ok_or_else(|| unusable(rule))? })
    }

    /// What records name the key by: the first 8 bytes of its SHA-256.
    #[must_use]
    pub fn id(&self) -> u64 {
        let digest: [u8; LENGTH] = Sha256::digest(self.bytes).into();
        digest.iter().take(8).fold(0, |id, &byte| id << 8 | u64::from(byte))
    }
}

// === impl Sealer ===

impl Sealer {
    /// Draws an ephemeral key. `info` says what the messages are for.
    ///
    /// # Errors
    /// The system gives no randomness, or the key is a point of small order.
    pub fn new(reader: &PublicKey, info: &[u8]) -> Result<Sealer, SealError> {
        let ephemeral =
            EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(|_| SealError)?;
        let public = ephemeral.compute_public_key().map_err(|_| SealError)?;
        let encapsulated: [u8; LENGTH] = public.as_ref().try_into().map_err(|_| SealError)?;
        let peer = UnparsedPublicKey::new(&X25519, reader.bytes);
        agree_ephemeral(ephemeral, &peer, |shared| Sealer::of(shared, encapsulated, reader, info))
            .map_err(|_| SealError)?
    }

    /// The key schedule of RFC 9180, sections 4.1 and 5.1.
    fn of(
        shared: &[u8],
        encapsulated: [u8; LENGTH],
        reader: &PublicKey,
        info: &[u8],
    ) -> Result<Sealer, SealError> {
        let extracted = extract(&[], KEM, b"eae_prk", shared)?;
        let shared_secret =
            expand(&extracted, KEM, b"shared_secret", &[&encapsulated, &reader.bytes], LENGTH)?;
        let psk_id = extract(&[], SUITE, b"psk_id_hash", &[])?;
        let info = extract(&[], SUITE, b"info_hash", info)?;
        let secret = extract(&shared_secret, SUITE, b"secret", &[])?;
        let context: [&[u8]; 3] = [&[0], &psk_id, &info];
        let key = expand(&secret, SUITE, b"key", &context, LENGTH)?;
        let nonce = expand(&secret, SUITE, b"base_nonce", &context, NONCE_LEN)?;
        let mut base_nonce = [0; NONCE_LEN];
        base_nonce.copy_from_slice(&nonce[..NONCE_LEN]);
        Ok(Sealer {
            key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).map_err(|_| SealError)?),
            base_nonce,
            encapsulated,
            key_id: reader.id(),
            next: AtomicU64::new(0),
        })
    }

    /// Encrypts a message in its place and appends the tag; `bound` has to be known to open it. Returns the number of
    /// the message, which its reader needs.
    ///
    /// # Errors
    /// The message is longer than AES-GCM allows.
    pub fn seal(&self, bound: &[u8], message: &mut Vec<u8>) -> Result<u64, SealError> {
        let number = self.next.fetch_add(1, Relaxed);
        let nonce = Nonce::assume_unique_for_key(self.nonce(number));
        self.key.seal_in_place_append_tag(nonce, Aad::from(bound), message).map_err(|_| SealError)?;
        Ok(number)
    }

    /// The public part of the ephemeral key, which its reader needs.
    #[must_use]
    pub fn encapsulated_key(&self) -> &[u8; LENGTH] {
        &self.encapsulated
    }

    /// Names the public key.
    #[must_use]
    pub fn key_id(&self) -> u64 {
        self.key_id
    }

    fn nonce(&self, number: u64) -> [u8; NONCE_LEN] {
        let mut nonce = self.base_nonce;
        for (byte, number) in nonce.iter_mut().rev().zip(number.to_le_bytes()) {
            *byte ^= number;
        }
        nonce
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sealer")
    }
}

/// `LabeledExtract`.
fn extract(salt: &[u8], suite: &[u8], label: &[u8], input: &[u8]) -> Result<[u8; LENGTH], SealError> {
    hmac(salt, &[b"HPKE-v1", suite, label, input])
}

/// `LabeledExpand`, of which the first `length` bytes count: at most one block is ever needed.
fn expand(
    secret: &[u8; LENGTH],
    suite: &[u8],
    label: &[u8],
    info: &[&[u8]],
    length: usize,
) -> Result<[u8; LENGTH], SealError> {
    let length = u16::try_from(length).map_err(|_| SealError)?.to_be_bytes();
    let head: [&[u8]; 4] = [&length, b"HPKE-v1", suite, label];
    hmac(secret, &[&head, info, &[&[1]]].concat())
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Result<[u8; LENGTH], SealError> {
    let mut keyed = Hmac::<Sha256>::new_from_slice(key).map_err(|_| SealError)?;
    parts.iter().for_each(|part| keyed.update(part));
    Ok(keyed.finalize().into_bytes().into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const PEM: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VuAyEAj0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8=\n-----END PUBLIC KEY-----\n";

    fn key_file(text: &str, mode: u32) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reader.pub");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    fn bytes<const N: usize>(hex: &str) -> [u8; N] {
        std::array::from_fn(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
    }

    fn open(sealer: &Sealer, number: u64, bound: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(sealer.nonce(number));
        sealer.key.open_in_place(nonce, Aad::from(bound), &mut sealed).ok().map(|plain| plain.to_vec())
    }

    /// What another implementation of HPKE sealed (`cryptography.hazmat.primitives.hpke` 50.0, private key 00 to 1f).
    #[test]
    fn the_key_schedule_is_that_of_hpke() {
        let (_dir, path) = key_file(PEM, 0o644);
        let reader = PublicKey::from_file(&path).unwrap();
        assert_eq!(reader.id(), 0xeedd_883d_a0a9_4515);
        let shared: [u8; 32] = bytes("1f216b8b7df3c288c5f6f0e9b68b21f53cda78db2a7a7a67ec0ab8c50dfe9a1a");
        let encapsulated = bytes("2218b7eec5a49dbff9041ecb9a22b18124a39912363a35b390733efc184d0010");
        let info = b"scorer decision log: sensitive features";
        let sealer = Sealer::of(&shared, encapsulated, &reader, info).unwrap();
        let sealed: [u8; 20] = bytes("83472186315dd05c65c7da1e948cdbadedd2026a");
        assert_eq!(open(&sealer, 0, b"", &sealed).unwrap(), b"four");
    }

    #[test]
    fn each_message_has_a_nonce_of_its_own_and_is_bound() {
        let (_dir, path) = key_file(PEM, 0o644);
        let sealer = Sealer::new(&PublicKey::from_file(&path).unwrap(), b"test").unwrap();
        let sealed: Vec<(u64, Vec<u8>)> = (0..300)
            .map(|_| {
                let mut message = b"value".to_vec();
                (sealer.seal(b"row", &mut message).unwrap(), message)
            })
            .collect();
        for (at, (number, message)) in (0..).zip(&sealed) {
            assert_eq!((*number, message.len()), (at, 5 + 16));
            assert_eq!(open(&sealer, *number, b"row", message).unwrap(), b"value");
            assert_eq!(open(&sealer, *number, b"another", message), None);
            assert_eq!(open(&sealer, number + 1, b"row", message), None);
        }
        let distinct: std::collections::BTreeSet<_> = sealed.iter().map(|(_, message)| message).collect();
        assert_eq!(distinct.len(), sealed.len());
    }

    #[test]
    fn a_file_without_a_public_key_is_refused_in_one_line() {
        let ed25519 = PEM.replace("K2Vu", "K2Vw");
        let private = PEM.replace("PUBLIC", "PRIVATE");
        for (text, mode, says) in [
            (PEM, 0o646, "chmod o-w"),
            (&*private, 0o600, "must not be on this machine"),
            (&*ed25519, 0o600, "no X25519 key"),
            ("", 0o600, "no X25519 key"),
        ] {
            let (_dir, path) = key_file(text, mode);
            let error = PublicKey::from_file(&path).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains('\n') && !error.contains("MCow"), "{error}");
        }
        let (_dir, path) = key_file(PEM, 0o600);
        assert!(PublicKey::from_file(&path.join("none")).is_err());
    }

    #[test]
    fn a_key_of_small_order_seals_nothing() {
        let reader = PublicKey { bytes: [0; LENGTH] };
        assert_eq!(Sealer::new(&reader, b"test").err(), Some(SealError));
    }
}
