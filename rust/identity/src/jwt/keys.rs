//! The issuer's public keys: a JSON Web Key Set (RFC 7517).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;

use super::config::Algorithm;

/// The largest number of keys in a set.
const MAX_KEYS: usize = 64;

/// The keys of a set that can verify signatures.
#[derive(Debug, Default)]
pub(super) struct KeySet {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm for which the key may be used, if the set names one.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Ed25519(Vec<u8>),
    P256(Vec<u8>),
    P384(Vec<u8>),
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
}

#[derive(Deserialize)]
struct WireSet {
    keys: Vec<WireKey>,
}

/// The members of a key that this module reads. Which are present depends on the kind of the key.
#[derive(Deserialize)]
struct WireKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
}

// === impl KeySet ===

impl KeySet {
    /// Reads a set. Keys of unsupported kinds and keys for encryption are ignored.
    ///
    /// # Errors
    /// The text is not a key set, or has no usable key or too many keys.
    pub(super) fn from_json(json: &[u8]) -> Result<KeySet, String> {
        // The message of serde may quote the text at any length, so only the position of the error is stated.
        let place = |error: serde_json::Error| format!("line {}, column {}", error.line(), error.column());
        let set: WireSet = serde_json::from_slice(json)
            .map_err(|error| format!("it is no JSON Web Key Set ({})", place(error)))?;
        if set.keys.len() > MAX_KEYS {
            return Err(format!("it holds {} keys; at most {MAX_KEYS} are read", set.keys.len()));
        }
        let keys: Vec<Key> = set.keys.into_iter().filter_map(WireKey::key).collect();
        if keys.is_empty() {
            return Err("it holds no public key of kind OKP, EC or RSA for signatures".to_owned());
        }
        Ok(KeySet { keys })
    }

    /// Checks that a key of the set has made the signature. If the token names no key, the set must have exactly one.
    ///
    /// # Errors
    /// No key has the id and the algorithm, or the signature is not valid.
    pub(super) fn verify(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), &'static str> {
        let key = match id {
            Some(id) => self.keys.iter().find(|key| key.id.as_deref() == Some(id)),
            None if self.keys.len() == 1 => self.keys.first(),
            None => return Err("it names no key (kid) and the issuer has several"),
        };
        let key = key.ok_or("its key (kid) is not among the issuer's")?;
        if key.algorithm.as_deref().is_some_and(|only| only != algorithm.name()) {
            return Err("its key is for another algorithm");
        }
        key.material.verify(algorithm, message, signature)
    }
}

// === impl WireKey ===

impl WireKey {
    fn key(self) -> Option<Key> {
        if self.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |member: &Option<String>| URL_SAFE_NO_PAD.decode(member.as_ref()?).ok();
        // ring expects the point in uncompressed form.
        let point = |size: usize| {
            let (x, y) = (bytes(&self.x)?, bytes(&self.y)?);
            (x.len() == size && y.len() == size).then(|| [&[4_u8][..], &x, &y].concat())
        };
        let material = match (self.kty.as_str(), self.crv.as_deref()) {
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes(&self.x).filter(|x| x.len() == 32)?),
            ("EC", Some("P-256")) => Material::P256(point(32)?),
            ("EC", Some("P-384")) => Material::P384(point(48)?),
            ("RSA", _) => Material::Rsa { modulus: bytes(&self.n)?, exponent: bytes(&self.e)? },
            _ => return None,
        };
        Some(Key { id: self.kid, algorithm: self.alg, material })
    }
}

// === impl Material ===

impl Material {
    fn verify(&self, algorithm: Algorithm, message: &[u8], sent: &[u8]) -> Result<(), &'static str> {
        let by = |algorithm: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(algorithm, key).verify(message, sent)
        };
        let verified = match (self, algorithm) {
            (Material::Ed25519(key), Algorithm::EdDsa) => by(&signature::ED25519, key),
            (Material::P256(key), Algorithm::ES256) => by(&signature::ECDSA_P256_SHA256_FIXED, key),
            (Material::P384(key), Algorithm::ES384) => by(&signature::ECDSA_P384_SHA384_FIXED, key),
            (Material::Rsa { modulus, exponent }, algorithm) => {
                let parameters = algorithm.rsa().ok_or(OTHER_KIND)?;
                RsaPublicKeyComponents { n: modulus, e: exponent }.verify(parameters, message, sent)
            }
            _ => return Err(OTHER_KIND),
        };
        verified.map_err(|_| "its signature is not the issuer's")
    }
}

const OTHER_KIND: &str = "its key is of another kind than its algorithm";

// === impl Algorithm ===

impl Algorithm {
    pub(super) fn of(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    const ALL: [Algorithm; 9] = [
        Algorithm::EdDsa,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
    ];

    fn name(self) -> &'static str {
        match self {
            Algorithm::EdDsa => "EdDSA",
            Algorithm::ES256 => "ES256",
            Algorithm::ES384 => "ES384",
            Algorithm::RS256 => "RS256",
            Algorithm::RS384 => "RS384",
            Algorithm::RS512 => "RS512",
            Algorithm::PS256 => "PS256",
            Algorithm::PS384 => "PS384",
            Algorithm::PS512 => "PS512",
        }
    }

    fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
            Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
            Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
            Algorithm::EdDsa | Algorithm::ES256 | Algorithm::ES384 => return None,
        })
    }
}
