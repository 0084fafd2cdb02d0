//! Settings of the whole process.

use pyo3::prelude::*;

/// Keeps the memory of this process out of core dumps, and prevents debuggers of the same user from attaching.
#[pyfunction]
pub(crate) fn forbid_core_dumps() -> PyResult<()> {
    Ok(scorer_os::process::forbid_core_dumps()?)
}
