//! Copies between Python's buffers and vectors, so that other code can work on the vectors without the interpreter.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;

use super::failed;

pub(super) fn copy_in<T: Element + Copy>(
    py: Python<'_>,
    buffer: &PyBuffer<T>,
    what: &str,
) -> PyResult<Vec<T>> {
    if !buffer.is_c_contiguous() {
        return Err(failed(format!("{what} must be C-contiguous")));
    }
    buffer.to_vec(py)
}

pub(super) fn copy_out<T: Element + Copy>(
    py: Python<'_>,
    buffer: &PyBuffer<T>,
    what: &str,
    values: &[T],
) -> PyResult<()> {
    if !buffer.is_c_contiguous() || buffer.readonly() {
        return Err(failed(format!("{what} must be C-contiguous and writable")));
    }
    if buffer.item_count() != values.len() {
        return Err(failed(format!("{what}: room for {}, {} are needed", buffer.item_count(), values.len())));
    }
    buffer.copy_from_slice(py, values)
}
