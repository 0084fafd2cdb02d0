//! Decision tokens for the command line: reading and verification.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use scorer_token::{KeyRing, Kind, Scope, Tenant, Token};
use serde_json::json;

use crate::hex::hex;

/// Returns the contents of a token as JSON, without verifying it.
#[pyfunction]
pub(crate) fn read_token(token: &[u8]) -> PyResult<String> {
    let token = Token::read(token).map_err(refused)?;
    let claims = token.claims;
    let kind = match claims.kind {
        Kind::Score => "score",
        Kind::Action => "action",
        Kind::Batch => "batch",
    };
    let said = json!({
        "key": format!("{:08x}", token.key_id),
        "kind": kind,
        "decision_id": token.decision_id,
        "decided_at_ms": claims.decided_at_ms,
        "bundle": hex(&claims.bundle),
        "index": claims.index,
        "propensity": claims.propensity,
        "fallback": claims.fallback,
        "checkpoint": hex(&token.checkpoint),
        "tenant": hex(&token.tenant),
    });
    Ok(said.to_string())
}

/// Verifies a token that a tenant returns for a decision, with the keys of a file.
#[pyfunction]
pub(crate) fn verify_token(
    token: &[u8],
    keys: &[u8],
    checkpoint: &str,
    decision_id: &str,
    tenant: &str,
) -> PyResult<()> {
    let ring = KeyRing::from_json(keys).map_err(refused)?;
    let scope = Scope::new(checkpoint, Tenant::named(tenant.as_bytes()));
    ring.verify(token, &scope, decision_id).map_err(refused).map(|_| ())
}

/// Returns the ids of the keys of a file, the signing key first.
#[pyfunction]
pub(crate) fn token_keys(keys: &[u8]) -> PyResult<Vec<String>> {
    let ring = KeyRing::from_json(keys).map_err(refused)?;
    Ok(ring.ids().map(|id| format!("{id:08x}")).collect())
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
