//! External lists of rules: verification of a version's directory.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::error::Failure;

/// Verifies everything of the version in a directory but its signature, and returns its digest.
#[pyfunction]
pub(crate) fn verify_list(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let digest = py.detach(|| scorer_server::verify_list(&path)).map_err(Failure::from)?;
    Ok(digest.to_string())
}
