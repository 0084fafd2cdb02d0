//! `_scorer.Forest`: a handle to a compiled forest.

mod raw;

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_core::forest as core;
use scorer_xgboost::ReadError;

pyo3::import_exception!(scorer.errors, ForestError);
pyo3::import_exception!(scorer.errors, UnsupportedModelError);

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct Forest {
    inner: Arc<core::Forest>,
}

#[pymethods]
impl Forest {
    /// Reads packed bytes, as `to_bytes` gives them.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        py.detach(|| core::Forest::from_bytes(data)).map(Self::new).map_err(forest_error)
    }

    /// Reads an XGBoost model, UBJ or JSON.
    #[staticmethod]
    fn from_xgboost(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let compiled = py.detach(|| Ok(core::Forest::compile(&scorer_xgboost::read_model(data)?)?));
        compiled.map(Self::new).map_err(|error: ReadError| match error {
            ReadError::Forest(error) => forest_error(error),
            error => ForestError::new_err(error.to_string()),
        })
    }

    /// Compiles raw trees, packed as `scorer.importers.raw` packs them.
    #[staticmethod]
    fn from_trees(py: Python<'_>, head: raw::Head, trees: raw::Trees) -> PyResult<Self> {
        py.detach(|| core::Forest::compile(&raw::model(head, &trees)?)).map(Self::new).map_err(forest_error)
    }

    /// The packed forest.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.inner.to_bytes()))
    }

    /// Scores `rows` (C-contiguous float32, `n * num_features` values) into `out` (C-contiguous float32
    /// where `is_f32`, else float64). Both are copied while attached, so that no other thread can change
    /// them under the evaluation: callers pass a bounded number of rows at a time.
    fn predict(
        &self,
        py: Python<'_>,
        rows: PyBuffer<f32>,
        n: usize,
        margin: bool,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let rows = rows.to_vec(py)?;
        let width = if margin { self.num_outputs() } else { self.num_predictions() };
        if n.checked_mul(self.num_features()) != Some(rows.len()) {
            return Err(ForestError::new_err("rows do not have n rows"));
        }
        let mut results = vec![0.0; n * width];
        py.detach(|| self.inner.predict(&rows, n, margin, &mut results)).map_err(forest_error)?;
        if self.is_f32() {
            let narrow: Vec<f32> = results.iter().map(|&result| result as f32).collect();
            PyBuffer::get(out)?.copy_from_slice(py, &narrow)
        } else {
            PyBuffer::get(out)?.copy_from_slice(py, &results)
        }
    }

    /// Whether results are exact float32 values.
    #[getter]
    fn is_f32(&self) -> bool {
        self.inner.precision() == core::Precision::F32
    }

    #[getter]
    fn num_features(&self) -> usize {
        self.inner.num_features()
    }

    #[getter]
    fn num_outputs(&self) -> usize {
        self.inner.num_outputs()
    }

    #[getter]
    fn num_predictions(&self) -> usize {
        self.inner.num_predictions()
    }

    #[getter]
    fn num_trees(&self) -> usize {
        self.inner.num_trees()
    }

    #[getter]
    fn num_nodes(&self) -> usize {
        self.inner.num_nodes()
    }

    #[getter]
    fn max_depth(&self) -> usize {
        self.inner.max_depth()
    }

    #[getter]
    fn heap_bytes(&self) -> usize {
        self.inner.heap_bytes()
    }

    /// Name of the link: identity, sigmoid, softmax ..
    #[getter]
    fn link(&self) -> &'static str {
        raw::link_name(self.inner.link())
    }
}

impl Forest {
    fn new(forest: core::Forest) -> Self {
        Self { inner: Arc::new(forest) }
    }
}

fn forest_error(error: core::ForestError) -> PyErr {
    match error {
        core::ForestError::Unsupported { .. } => UnsupportedModelError::new_err(error.to_string()),
        error => ForestError::new_err(error.to_string()),
    }
}
