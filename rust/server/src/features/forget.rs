//! The erasure of an entity from the store of computed features.

use scorer_engine::{Engine, Rejection};
use scorer_features::ForgetError;
use serde::Serialize;

use super::store::FeatureStore;

/// An erasure that is on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    /// Whether the entity had state.
    pub known: bool,
    /// Number of erasures whose keys are still in files, this one included.
    pub pending: u64,
}

/// Why an entity is not erased.
#[derive(Debug, thiserror::Error)]
pub enum ForgetEntityError {
    /// The server has no feature sets.
    #[error("this server computes no features; call one whose settings name feature sets ([features] sets)")]
    NoStore,
    /// The key breaks a privacy rule.
    #[error("{0}")]
    Privacy(Rejection),
    /// The store does not erase the entity.
    #[error(transparent)]
    Store(#[from] ForgetError),
}

/// Removes an entity. The key is that of requests and events: the privacy rules apply to it as to theirs.
pub(crate) fn forget(
    engine: &Engine,
    store: Option<&FeatureStore>,
    entity: &str,
    key: &str,
) -> Result<Forgotten, ForgetEntityError> {
    let store = store.ok_or(ForgetEntityError::NoStore)?;
    let key = engine.privacy.key(key).map_err(ForgetEntityError::Privacy)?;
    let known = store.store.forget(entity, &key)?;
    Ok(Forgotten { known, pending: store.store.stats().snapshot.erasures })
}
