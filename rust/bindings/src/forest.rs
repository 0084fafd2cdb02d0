//! `_scorer.Forest`: a handle to a compiled forest.

mod pool;
mod raw;

use std::sync::Arc;

use pool::Pool;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_core::forest as core;
use scorer_xgboost::ReadError;

pyo3::import_exception!(scorer.errors, ForestError);
pyo3::import_exception!(scorer.errors, UnsupportedModelError);

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct Forest {
    inner: Arc<core::Forest>,
    works: Pool<Work>,
}

/// Largest product of rows and trees for which the thread stays attached to the interpreter: about ten microseconds.
const ATTACHED: usize = 1 << 13;

#[pymethods]
impl Forest {
    /// Reads a packed forest, the result of `to_bytes`.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        py.detach(|| core::Forest::from_bytes(data)).map(Self::new).map_err(forest_error)
    }

    /// Reads an XGBoost model in UBJ or JSON.
    #[staticmethod]
    fn from_xgboost(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let compiled = py.detach(|| Ok(core::Forest::compile(&scorer_xgboost::read_model(data)?)?));
        compiled.map(Self::new).map_err(|error: ReadError| match error {
            ReadError::Forest(error) => forest_error(error),
            error => ForestError::new_err(error.to_string()),
        })
    }

    /// Compiles raw trees in the format of `scorer.importers.raw`.
    #[staticmethod]
    fn from_trees(py: Python<'_>, head: raw::Head, trees: raw::Trees) -> PyResult<Self> {
        py.detach(|| core::Forest::compile(&raw::model(head, &trees)?)).map(Self::new).map_err(forest_error)
    }

    /// Returns the packed forest.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.inner.to_bytes()))
    }

    /// Evaluates `rows` and writes the results to `out`. Returns false, and writes nothing, if `rows` is not a float32
    /// buffer `[n, num_features]`. `out` must be C-contiguous, with one value per row and output, of type float32 if
    /// `is_f32` and float64 otherwise. Rows and results are copied while the thread is attached, so that no other
    /// thread can change them during the evaluation. Callers therefore pass a bounded number of rows at a time.
    fn predict(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        margin: bool,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let Ok(rows) = PyBuffer::<f32>::get(rows) else { return Ok(false) };
        let &[n, features] = rows.shape() else { return Ok(false) };
        // `PyBuffer::<f32>` accepts float32 in the other byte order too, so the format is compared.
        if features != self.num_features() || rows.format() != c"f" {
            return Ok(false);
        }
        let width = if margin { self.num_outputs() } else { self.num_predictions() };
        let out = Out::of(out, self.is_f32(), n * width)?;
        let mut work = self.works.take(|| Work::new(&self.inner));
        work.rows.resize(n * features, 0.0);
        work.results.resize(n * width, 0.0);
        rows.copy_to_slice(py, &mut work.rows)?;
        let Work { scratch, rows, results, .. } = &mut work;
        // Detaching and attaching takes longer than evaluating a few rows.
        if n * self.num_trees() <= ATTACHED {
            self.inner.predict_with(rows, n, margin, scratch, results)
        } else {
            py.detach(|| self.inner.predict_with(rows, n, margin, scratch, results))
        }
        .map_err(forest_error)?;
        out.write(py, &mut work)?;
        self.works.give(work);
        Ok(true)
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

    /// Name of the link, such as `identity`, `sigmoid` or `softmax`.
    #[getter]
    fn link(&self) -> &'static str {
        raw::link_name(self.inner.link())
    }
}

impl Forest {
    fn new(forest: core::Forest) -> Self {
        Self { inner: Arc::new(forest), works: Pool::default() }
    }
}

/// The working memory of one call.
struct Work {
    scratch: core::Scratch,
    rows: Vec<f32>,
    results: Vec<f64>,
    narrow: Vec<f32>,
}

impl Work {
    fn new(forest: &core::Forest) -> Self {
        let scratch = core::Scratch::new(forest);
        Self { scratch, rows: Vec::new(), results: Vec::new(), narrow: Vec::new() }
    }
}

/// The caller's buffer for the results.
enum Out {
    F32(PyBuffer<f32>),
    F64(PyBuffer<f64>),
}

impl Out {
    fn of(out: &Bound<'_, PyAny>, is_f32: bool, len: usize) -> PyResult<Self> {
        fn fitting<T: Element>(
            out: &Bound<'_, PyAny>,
            len: usize,
            kind: &'static str,
        ) -> PyResult<PyBuffer<T>> {
            let fits = |out: &PyBuffer<T>| {
                let native = out.format() == c"f" || out.format() == c"d";
                native && !out.readonly() && out.is_c_contiguous() && out.item_count() == len
            };
            PyBuffer::get(out).ok().filter(fits).ok_or_else(|| {
                ForestError::new_err(format!(
                    "out: a writable {kind} array of {len} values in C order is needed"
                ))
            })
        }
        if is_f32 {
            fitting(out, len, "float32").map(Self::F32)
        } else {
            fitting(out, len, "float64").map(Self::F64)
        }
    }

    fn write(&self, py: Python<'_>, work: &mut Work) -> PyResult<()> {
        match self {
            Self::F32(out) => {
                work.narrow.clear();
                work.narrow.extend(work.results.iter().map(|&result| result as f32));
                out.copy_from_slice(py, &work.narrow)
            }
            Self::F64(out) => out.copy_from_slice(py, &work.results),
        }
    }
}

fn forest_error(error: core::ForestError) -> PyErr {
    match error {
        core::ForestError::Unsupported { .. } => UnsupportedModelError::new_err(error.to_string()),
        error => ForestError::new_err(error.to_string()),
    }
}
