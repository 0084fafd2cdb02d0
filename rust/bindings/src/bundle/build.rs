//! Functions for the builder of bundles: drafts, golden files, sealed manifests. Only Rust implements the file formats.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_core::bundle::golden::{self, GoldenInput};
use scorer_core::bundle::{self as core, Digest, Manifest, ReadError};
use scorer_core::policy::Mask;

use super::buffers::{copy_in, copy_out};
use super::{Bundle, failed};

/// Returns the final bytes of a manifest. `head` is its JSON without `files` and `digest`, which are computed here.
#[pyfunction]
pub(crate) fn seal_manifest<'py>(
    py: Python<'py>,
    head: &str,
    files: BTreeMap<String, Vec<u8>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let sealed = py.detach(|| seal(head, &files))?;
    Ok(PyBytes::new(py, &sealed))
}

/// Returns a bundle without golden cases and reference statistics. The builder computes both with it.
#[pyfunction]
pub(crate) fn draft_bundle(py: Python<'_>, head: &str, files: BTreeMap<String, Vec<u8>>) -> PyResult<Bundle> {
    py.detach(|| {
        let manifest = seal(head, &files)?;
        let read = |name: &str| files.get(name).cloned().ok_or(ReadError::Missing);
        let bundle = core::Bundle::draft(&manifest, &read).map_err(failed)?;
        Ok(Bundle { inner: Arc::new(bundle), explaining: Default::default() })
    })
}

/// Returns the contents of `golden.bin`. For action bundles, `masks` contains one eligible set per row, one after the
/// other. `margins` contains the results of the source library in the order of the file.
#[pyfunction]
#[pyo3(signature = (draft, rows, masks, margins))]
pub(crate) fn build_golden<'py>(
    py: Python<'py>,
    draft: &Bundle,
    rows: PyBuffer<f32>,
    masks: Option<&[u8]>,
    margins: PyBuffer<f64>,
) -> PyResult<Bound<'py, PyBytes>> {
    let rows = copy_in(py, &rows, "rows")?;
    let margins = copy_in(py, &margins, "margins")?;
    let width = draft.width(&rows)?;
    let file = py.detach(|| {
        let cases = cases(&draft.inner, rows.chunks_exact(width), masks, &margins)?;
        golden::build(&draft.inner, &cases).map_err(failed)
    })?;
    Ok(PyBytes::new(py, &file))
}

/// The content of functions.json, and the modules by file name.
type FunctionFiles = (Vec<u8>, BTreeMap<String, Vec<u8>>);

/// Applies the steps of a transform to rows. `features`, `steps` and `tables` are JSON, `functions` is the content of
/// functions.json with the modules by file name. The rows of `out` have the columns that the steps add as well.
#[pyfunction]
#[pyo3(signature = (features, steps, tables, functions, rows, out))]
pub(crate) fn transform_rows(
    py: Python<'_>,
    features: &str,
    steps: &str,
    tables: Option<&str>,
    functions: Option<FunctionFiles>,
    rows: PyBuffer<f32>,
    out: PyBuffer<f32>,
) -> PyResult<()> {
    let values = copy_in(py, &rows, "rows")?;
    let values = py.detach(|| {
        let features: Vec<scorer_core::schema::FeatureSpec> =
            serde_json::from_str(features).map_err(failed)?;
        let steps: Vec<core::node::TransformStep> = serde_json::from_str(steps).map_err(failed)?;
        let functions = functions.as_ref().map(|(file, modules)| (file.as_slice(), modules));
        core::transform_rows(&features, &steps, tables.map(str::as_bytes), functions, &values).map_err(failed)
    })?;
    copy_out(py, &out, "out", &values)
}

/// Verifies the bundle in a directory and returns the manifest and the golden cases of a revision of it. `head` is the
/// manifest of the revision without `files` and `digest`, `changing` the contents of its overlay, rules and lists.
#[pyfunction]
pub(crate) fn revise_bundle<'py>(
    py: Python<'py>,
    path: PathBuf,
    digest: &str,
    head: &str,
    changing: BTreeMap<String, Vec<u8>>,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let expected: Digest = digest.parse().map_err(failed)?;
    let revised = py.detach(|| {
        let manifest = manifest(head, &BTreeMap::new())?;
        scorer_server::bundle_dir::revise(&path, &expected, manifest, &changing).map_err(failed)
    })?;
    Ok((PyBytes::new(py, &revised.manifest), PyBytes::new(py, &revised.golden)))
}

fn seal(head: &str, files: &BTreeMap<String, Vec<u8>>) -> PyResult<Vec<u8>> {
    manifest(head, files)?.seal().map_err(failed)
}

/// Returns a manifest that is not sealed yet.
fn manifest(head: &str, files: &BTreeMap<String, Vec<u8>>) -> PyResult<Manifest> {
    let mut head: serde_json::Value = serde_json::from_str(head).map_err(failed)?;
    let fields = head.as_object_mut().ok_or_else(|| failed("manifest: must be a JSON object"))?;
    fields.insert("files".to_owned(), serde_json::to_value(core::file_entries(files)).map_err(failed)?);
    fields.insert("digest".to_owned(), Digest([0; 32]).to_string().into());
    serde_json::from_value(head).map_err(|error| failed(format!("manifest: {error}")))
}

fn cases<'a>(
    draft: &core::Bundle,
    rows: impl ExactSizeIterator<Item = &'a [f32]>,
    masks: Option<&[u8]>,
    mut margins: &[f64],
) -> PyResult<Vec<GoldenInput>> {
    let actions = draft.catalogue().len();
    let bytes = actions.div_ceil(8);
    let outputs = draft.num_margins();
    if masks.is_some_and(|masks| masks.len() != rows.len() * bytes) {
        return Err(failed(format!("masks: {} rows need {bytes} bytes each", rows.len())));
    }
    let mut cases = Vec::with_capacity(rows.len());
    for (at, row) in rows.enumerate() {
        let mask = masks.map(|masks| Mask::from_bytes(actions, &masks[at * bytes..(at + 1) * bytes]));
        let eligible = mask.transpose().map_err(failed)?;
        let count = eligible.as_ref().map_or(1, Mask::count) * outputs;
        let (own, rest) = margins
            .split_at_checked(count)
            .ok_or_else(|| failed(format!("margins: case {at} needs {count}, {} are left", margins.len())))?;
        margins = rest;
        cases.push(GoldenInput { row: row.to_vec(), eligible, margins: own.to_vec() });
    }
    if !margins.is_empty() {
        return Err(failed(format!("margins: {} are left after the last case", margins.len())));
    }
    Ok(cases)
}
