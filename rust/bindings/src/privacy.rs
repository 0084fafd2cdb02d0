//! Pseudonyms of entities.

use std::path::PathBuf;

use pyo3::prelude::*;
use scorer_privacy::{ENTITY, Pseudonyms};

use crate::error::Failure;

/// Returns the entity in the form in which a server with this key records it.
#[pyfunction]
pub(crate) fn entity_pseudonym(key_file: PathBuf, entity: &str) -> PyResult<String> {
    let pseudonyms = Pseudonyms::from_file(&key_file).map_err(|error| Failure::key(&error))?;
    Ok(pseudonyms.of(ENTITY, entity))
}
