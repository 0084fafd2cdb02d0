//! Settings of the process as a whole.

use pyo3::prelude::*;

/// Keeps the memory of this process out of core dumps and out of reach of debuggers of the same user.
#[pyfunction]
pub(crate) fn forbid_core_dumps() -> PyResult<()> {
    Ok(scorer_os::process::forbid_core_dumps()?)
}
