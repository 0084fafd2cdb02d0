//! The time of bundles' evaluations and of their nodes, measured on the calling thread.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use scorer_core::bundle::{self as core, GoldenRow, measure};

use super::buffers::copy_in;
use super::failed;

/// Slot, kind, total time in nanoseconds and number of evaluations of each node of a bundle.
type NodeTimes = Vec<(String, String, u64, u64)>;

/// The nodes of each bundle, the number of requests of a pass, and the nanoseconds of each request without and with the
/// times of nodes.
type Measurement = (Vec<NodeTimes>, usize, Vec<u64>, Vec<u64>);

/// Loads bundles' directories and measures requests, each one row of every bundle with its rules, for about `seconds` and
/// at least one pass over the rows. Without `rows` those of the golden cases are evaluated; given rows, one buffer per
/// bundle, have all actions.
#[pyfunction]
#[pyo3(signature = (paths, seconds, rows = None))]
pub(crate) fn measure_bundles(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    seconds: f64,
    rows: Option<Vec<PyBuffer<f32>>>,
) -> PyResult<Measurement> {
    let limit = Duration::try_from_secs_f64(seconds).map_err(failed)?;
    let copied = |rows: Vec<PyBuffer<f32>>| -> PyResult<Vec<Vec<f32>>> {
        rows.iter().map(|rows| copy_in(py, rows, "rows")).collect()
    };
    let given = rows.map(copied).transpose()?;
    if given.as_ref().is_some_and(|given| given.len() != paths.len()) {
        return Err(failed(format!("rows: {} bundles need as many buffers of rows", paths.len())));
    }
    py.detach(|| {
        let mut subjects = Vec::with_capacity(paths.len());
        for (at, path) in paths.iter().enumerate() {
            let (bundle, golden) = scorer_server::bundle_dir::load_with_rows(path, None).map_err(failed)?;
            let rows = match &given {
                Some(given) => checked(&bundle, &given[at])?,
                None => golden,
            };
            subjects.push((bundle, rows));
        }
        let subjects: Vec<_> = subjects.iter().map(|(bundle, rows)| (bundle, rows.as_slice())).collect();
        let found = measure(&subjects, seconds_since_1970(), limit).map_err(failed)?;
        let requests = subjects.iter().map(|(_, rows)| rows.len()).max().unwrap_or(0);
        let nodes = subjects.iter().zip(&found.nodes).map(|((bundle, _), sums)| {
            let nodes = bundle.nodes().iter().zip(sums);
            nodes
                .map(|(node, sum)| (node.name.clone(), node.kind.to_owned(), sum.nanos, sum.evaluations))
                .collect::<NodeTimes>()
        });
        Ok((nodes.collect(), requests, found.plain, found.timed))
    })
}

/// Loads a bundle's directory and returns the rows of its golden cases, float32 values of one row after the other.
#[pyfunction]
pub(crate) fn golden_rows<'py>(py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyBytes>> {
    let rows = py.detach(|| {
        let (_, golden) = scorer_server::bundle_dir::load_with_rows(&path, None).map_err(failed)?;
        let values = golden.iter().flat_map(|case| case.row.iter());
        Ok::<_, PyErr>(values.flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>())
    })?;
    Ok(PyBytes::new(py, &rows))
}

/// Splits values into rows, and checks them against the schema.
fn checked(bundle: &core::Bundle, values: &[f32]) -> PyResult<Vec<GoldenRow>> {
    let width = bundle.schema().len();
    if width == 0 || values.is_empty() || !values.len().is_multiple_of(width) {
        let found = values.len();
        return Err(failed(format!("rows: {found} values are no whole number of rows of {width}")));
    }
    let row = |(at, row): (usize, &[f32])| {
        bundle.schema().check_dense(row).map_err(|error| failed(format!("row {at}: {error}")))?;
        Ok(GoldenRow { row: row.into(), eligible: None })
    };
    values.chunks_exact(width).enumerate().map(row).collect()
}

fn seconds_since_1970() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
