//! Keys for Ed25519 and for ECDSA on P-256, in the PEM format of openssl.

use std::time::SystemTime;

use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _, UnparsedPublicKey, VerificationAlgorithm,
};
use scorer_core::bundle::Digest;

use crate::error::KeyError;
use crate::{pem, time};

/// Header line before a public key with the time after which its signatures are not accepted.
const NOT_AFTER: &str = "Not-After";
/// Number of hexadecimal digits of a key's id.
const ID_DIGITS: usize = 16;
/// SubjectPublicKeyInfo (RFC 8410) up to the 32 bytes of an Ed25519 key.
const ED25519_SPKI: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// SubjectPublicKeyInfo (RFC 5480) up to the 65 bytes of an uncompressed point on P-256.
const P256_SPKI: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// PKCS #8 (RFC 8410) up to the 32 bytes of an Ed25519 seed.
const ED25519_PKCS8: &[u8] =
    &[0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// A public key, which verifies signatures.
#[derive(Clone, Debug)]
pub struct PublicKey {
    /// Id of the key: the first 16 hexadecimal digits of the SHA-256 of its SubjectPublicKeyInfo.
    pub id: String,
    /// Time after which signatures of the key are not accepted for new bundles. `None`: no limit.
    pub not_after: Option<SystemTime>,
    spki: Vec<u8>,
    algorithm: &'static dyn VerificationAlgorithm,
    point: Vec<u8>,
}

/// A private key, which signs.
pub struct PrivateKey {
    pair: Pair,
    spki: Vec<u8>,
}

enum Pair {
    Ed25519(Ed25519KeyPair),
    P256(EcdsaKeyPair),
}

// === impl PublicKey ===

impl PublicKey {
    /// Reads a PEM `PUBLIC KEY`. A line such as `Not-After: 2027-01-01T00:00:00Z` before it sets
    /// [`PublicKey::not_after`].
    ///
    /// # Errors
    /// Fails with [`KeyError::Text`] if there is no complete Ed25519 or P-256 key, or `Not-After` is not a time.
    pub fn from_pem(text: &str) -> Result<PublicKey, KeyError> {
        let spki =
            pem::decode(text, "PUBLIC KEY").ok_or(KeyError::Text("it holds no whole PUBLIC KEY in PEM"))?;
        let not_after = pem::header(text, NOT_AFTER)
            .map(|value| {
                time::parse(value)
                    .ok_or(KeyError::Text("its Not-After is no time such as 2027-01-01T00:00:00Z"))
            })
            .transpose()?;
        let of = |prefix: &[u8], length: usize| spki.strip_prefix(prefix).filter(|key| key.len() == length);
        let (algorithm, point): (&'static dyn VerificationAlgorithm, _) =
            if let Some(key) = of(ED25519_SPKI, 32) {
                (&ED25519, key.to_vec())
            } else if let Some(key) = of(P256_SPKI, 65) {
                (&ECDSA_P256_SHA256_ASN1, key.to_vec())
            } else {
                return Err(KeyError::Text("it is neither an Ed25519 nor a P-256 key"));
            };
        Ok(PublicKey { id: id(&spki), not_after, spki, algorithm, point })
    }

    /// Returns whether `signature` is this key's signature of `message`.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(self.algorithm, &self.point).verify(message, signature).is_ok()
    }

    /// Returns whether the time `not_after` has passed.
    #[must_use]
    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.not_after.is_some_and(|end| now > end)
    }

    /// Returns `not_after` in RFC 3339; empty if there is no limit.
    #[must_use]
    pub fn not_after_text(&self) -> String {
        self.not_after.map(time::text).unwrap_or_default()
    }

    /// Returns the text of a key file: the id, `Not-After` if there is one, and the key in PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        let end = self.not_after.map(|end| format!("{NOT_AFTER}: {}\n", time::text(end))).unwrap_or_default();
        format!("Key: {}\n{end}{}", self.id, pem::encode("PUBLIC KEY", &self.spki))
    }
}

// === impl PrivateKey ===

impl PrivateKey {
    /// Reads a PEM `PRIVATE KEY` (PKCS #8).
    ///
    /// # Errors
    /// Fails with [`KeyError::Text`] if there is no complete Ed25519 or P-256 key.
    pub fn from_pem(text: &str) -> Result<PrivateKey, KeyError> {
        let der =
            pem::decode(text, "PRIVATE KEY").ok_or(KeyError::Text("it holds no whole PRIVATE KEY in PEM"))?;
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der) {
            let spki = [ED25519_SPKI, pair.public_key().as_ref()].concat();
            return Ok(PrivateKey { pair: Pair::Ed25519(pair), spki });
        }
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &der, &SystemRandom::new())
            .map_err(|_| KeyError::Text("it is neither an Ed25519 nor a P-256 key"))?;
        let spki = [P256_SPKI, pair.public_key().as_ref()].concat();
        Ok(PrivateKey { pair: Pair::P256(pair), spki })
    }

    /// Generates an Ed25519 key and returns it as a PEM `PRIVATE KEY`.
    ///
    /// # Errors
    /// Fails with [`KeyError::Random`] if the system provides no random numbers.
    pub fn generate_pem() -> Result<String, KeyError> {
        let mut der = ED25519_PKCS8.to_vec();
        der.resize(ED25519_PKCS8.len() + 32, 0);
        SystemRandom::new().fill(&mut der[ED25519_PKCS8.len()..]).map_err(|_| KeyError::Random)?;
        Ok(pem::encode("PRIVATE KEY", &der))
    }

    /// Returns the public key of this key, with `not_after` (RFC 3339) as its limit.
    ///
    /// # Errors
    /// Fails with [`KeyError::Text`] if `not_after` is not a time.
    pub fn public(&self, not_after: Option<&str>) -> Result<PublicKey, KeyError> {
        let end = not_after.map(|end| format!("{NOT_AFTER}: {end}\n")).unwrap_or_default();
        PublicKey::from_pem(&format!("{end}{}", pem::encode("PUBLIC KEY", &self.spki)))
    }

    /// Returns the id of the public key.
    #[must_use]
    pub fn id(&self) -> String {
        id(&self.spki)
    }

    /// Returns the signature of `message`: 64 bytes for Ed25519, ASN.1 DER for P-256.
    ///
    /// # Errors
    /// Fails with [`KeyError::Random`] if the system provides no random numbers, which ECDSA needs.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        match &self.pair {
            Pair::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Pair::P256(pair) => pair
                .sign(&SystemRandom::new(), message)
                .map(|signature| signature.as_ref().to_vec())
                .map_err(|_| KeyError::Random),
        }
    }
}

fn id(spki: &[u8]) -> String {
    let mut digits = Digest::of(spki).hex();
    digits.truncate(ID_DIGITS);
    digits
}
