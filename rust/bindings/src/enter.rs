//! The one way from Python into Rust that takes longer than a moment.

use pyo3::prelude::*;

/// Runs `work` with the interpreter released and turns its error into an exception.
pub(crate) fn enter<T, E>(py: Python<'_>, work: impl FnOnce() -> Result<T, E> + Send) -> PyResult<T>
where
    T: Send,
    E: Into<crate::error::Failure> + Send,
{
    py.detach(work).map_err(|error| error.into().into())
}
