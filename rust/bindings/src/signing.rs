//! Signatures of bundles: keys, envelopes, and their verification with the rules of a server.

use std::time::SystemTime;

use pyo3::prelude::*;
use scorer_core::bundle::Digest;
use scorer_signing::{Floors, PrivateKey, Trust, Verification};

use crate::error::Failure;

pyo3::import_exception!(scorer.errors, SignatureError);

fn failed(error: impl std::fmt::Display) -> PyErr {
    SignatureError::new_err(error.to_string())
}

/// Generates a private key and returns it in PEM.
#[pyfunction]
pub(crate) fn generate_key() -> PyResult<String> {
    PrivateKey::generate_pem().map_err(failed)
}

/// Returns the id and the file contents of the public key that belongs to a private key.
#[pyfunction]
#[pyo3(signature = (private_pem, not_after = None))]
pub(crate) fn public_key(private_pem: &str, not_after: Option<&str>) -> PyResult<(String, String)> {
    let key = PrivateKey::from_pem(private_pem).and_then(|key| key.public(not_after)).map_err(failed)?;
    Ok((key.id.clone(), key.to_pem()))
}

/// Returns an envelope with a bundle's digest and release number, signed by each key.
#[pyfunction]
pub(crate) fn sign_bundle(
    name: &str,
    digest: &str,
    release: u64,
    private_pems: Vec<String>,
) -> PyResult<String> {
    let digest: Digest = digest.parse().map_err(failed)?;
    let keys: Vec<_> =
        private_pems.iter().map(|pem| PrivateKey::from_pem(pem)).collect::<Result<_, _>>().map_err(failed)?;
    scorer_signing::sign(name, &digest, release, &keys, SystemTime::now()).map_err(failed)
}

/// Verifies the envelope of a bundle with the rules of a server that has these trusted keys. Returns the signed
/// statement as JSON, or `None` for an unsigned bundle that the server would accept.
#[pyfunction]
#[pyo3(signature = (envelope, digest, trust_json))]
pub(crate) fn verify_signature(
    py: Python<'_>,
    envelope: Option<&[u8]>,
    digest: &str,
    trust_json: &str,
) -> PyResult<Option<String>> {
    let digest: Digest = digest.parse().map_err(failed)?;
    let trust: Trust = serde_json::from_str(trust_json)
        .map_err(|error| Failure::argument(format!("verify_signature: trust_json: {error}")))?;
    let wanted = Verification {
        digest: &digest,
        name: None,
        floors: &Floors::new(),
        known: false,
        now: SystemTime::now(),
    };
    let signed = py.detach(|| trust.verify(envelope, &wanted)).map_err(failed)?;
    Ok(signed.map(|signed| serde_json::to_string(&signed).map_err(Failure::from)).transpose()?)
}
