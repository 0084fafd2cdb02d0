//! `_scorer.Forest`: a handle to a compiled forest.

mod pool;
mod raw;

use std::sync::{Arc, OnceLock};

use pool::Pool;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_core::budget::Unlimited;
use scorer_core::explain::{Covers, PathAttributions, PathScratch, ShapScratch, TreeShap};
use scorer_core::forest as core;
use scorer_xgboost::ReadError;

pyo3::import_exception!(scorer.errors, ForestError);
pyo3::import_exception!(scorer.errors, UnsupportedModelError);

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct Forest {
    inner: Arc<core::Forest>,
    /// The covers of the model that the forest was converted from, if it states usable ones.
    covers: Option<Covers>,
    /// Both kinds of contributions, prepared when they are first needed: exact ones, and path attributions by output.
    shap: OnceLock<TreeShap>,
    paths: OnceLock<Vec<PathAttributions>>,
    works: Pool<Work>,
}

/// Largest product of rows and trees for which the thread stays attached to the interpreter: about ten microseconds.
const ATTACHED: usize = 1 << 13;

#[pymethods]
impl Forest {
    /// Reads a packed forest, the result of `to_bytes`.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let forest = py.detach(|| core::Forest::from_bytes(data)).map_err(forest_error)?;
        Ok(Self::new((forest, None)))
    }

    /// Reads an XGBoost model in UBJ or JSON.
    #[staticmethod]
    fn from_xgboost(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let compiled = py.detach(|| Ok(converted(&scorer_xgboost::read_model(data)?)?));
        compiled.map(Self::new).map_err(|error: ReadError| match error {
            ReadError::Forest(error) => forest_error(error),
            error => ForestError::new_err(error.to_string()),
        })
    }

    /// Compiles raw trees in the format of `scorer.importers.raw`.
    #[staticmethod]
    fn from_trees(py: Python<'_>, head: raw::Head, trees: raw::Trees) -> PyResult<Self> {
        py.detach(|| converted(&raw::model(head, &trees)?)).map(Self::new).map_err(forest_error)
    }

    /// Returns the packed forest.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.inner.to_bytes()))
    }

    /// The covers as a file of a bundle; `None` if the model does not state usable ones.
    fn covers<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.covers.as_ref().map(|covers| PyBytes::new(py, &covers.to_bytes()))
    }

    /// Writes the contributions of the features to each margin, and after them the expectation of the margin, to `out`
    /// `[n, num_outputs, num_features + 1]`. `exact` chooses Shapley values over path attributions.
    fn contributions(
        &self,
        py: Python<'_>,
        rows: PyBuffer<f32>,
        exact: bool,
        out: PyBuffer<f64>,
    ) -> PyResult<()> {
        let covers = self.covers.as_ref().ok_or_else(|| {
            ForestError::new_err("contributions: the forest has no covers; convert it from the model")
        })?;
        let features = self.inner.num_features();
        let fits = rows.is_c_contiguous() && out.is_c_contiguous() && !out.readonly();
        if !fits || rows.shape() != [rows.item_count() / features, features] {
            return Err(ForestError::new_err(
                "contributions: arrays in C order of fitting shapes are needed",
            ));
        }
        let rows = rows.to_vec(py)?;
        let found =
            py.detach(|| if exact { self.exact(covers, &rows) } else { self.approximate(covers, &rows) });
        if out.item_count() != found.len() {
            return Err(ForestError::new_err(format!("out: room for {} values is needed", found.len())));
        }
        out.copy_from_slice(py, &found)
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
    fn new((forest, covers): (core::Forest, Option<Covers>)) -> Self {
        let (shap, paths, works) = (OnceLock::new(), OnceLock::new(), Pool::default());
        Self { inner: Arc::new(forest), covers, shap, paths, works }
    }
}

impl Forest {
    fn exact(&self, covers: &Covers, rows: &[f32]) -> Vec<f64> {
        let shap = self.shap.get_or_init(|| TreeShap::new(&self.inner, covers));
        let (features, outputs) = (self.inner.num_features(), self.inner.num_outputs());
        let width = features + 1;
        let mut scratch = ShapScratch::new(shap);
        let mut out = vec![0.0; rows.len() / features * outputs * width];
        for (row, out) in rows.chunks_exact(features).zip(out.chunks_exact_mut(outputs * width)) {
            for (output, out) in out.chunks_exact_mut(width).enumerate() {
                shap.contributions(row, output, &mut scratch, &mut out[..features]);
                out[features] = shap.expectation(output);
            }
        }
        out
    }

    fn approximate(&self, covers: &Covers, rows: &[f32]) -> Vec<f64> {
        let (features, outputs) = (self.inner.num_features(), self.inner.num_outputs());
        let all = |output| PathAttributions::new(&self.inner, covers, output);
        let paths = self.paths.get_or_init(|| (0..outputs).map(all).collect());
        let width = features + 1;
        let (mut scratch, mut margins) = (core::Scratch::new(&self.inner), vec![0.0; outputs]);
        let Some(mut found) = paths.first().map(PathScratch::new) else { return Vec::new() };
        let mut out = vec![0.0; rows.len() / features * outputs * width];
        for (row, out) in rows.chunks_exact(features).zip(out.chunks_exact_mut(outputs * width)) {
            for (paths, out) in paths.iter().zip(out.chunks_exact_mut(width)) {
                // `Unlimited` is never spent.
                let _ = paths.margins(row, &Unlimited, &mut scratch, &mut margins, &mut found);
                out[..features].copy_from_slice(found.contributions());
                out[features] = paths.expectation();
            }
        }
        out
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

/// Compiles a model. Covers that break a rule are dropped, because only explanations need them.
fn converted(model: &core::Model) -> Result<(core::Forest, Option<Covers>), core::ForestError> {
    let (forest, covers) = core::Forest::compile_with_covers(model)?;
    let covers = covers.and_then(|covers| Covers::new(&forest, &covers).ok());
    Ok((forest, covers))
}

fn forest_error(error: core::ForestError) -> PyErr {
    match error {
        core::ForestError::Unsupported { .. } => UnsupportedModelError::new_err(error.to_string()),
        error => ForestError::new_err(error.to_string()),
    }
}
