//! Calls from Python into Rust that run without the interpreter.

use pyo3::prelude::*;

/// Runs `work` while the thread is detached from the interpreter, and converts its error to an exception.
pub(crate) fn enter<T, E>(py: Python<'_>, work: impl FnOnce() -> Result<T, E> + Send) -> PyResult<T>
where
    T: Send,
    E: Into<crate::error::Failure> + Send,
{
    py.detach(work).map_err(|error| error.into().into())
}
