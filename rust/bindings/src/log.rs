//! `_scorer.LogReader`, which returns the decision log in batches of encoded records, and what works on whole logs.

mod columns;
mod replay;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use scorer_log::{Env, LogError, Reader, RealFs, Retention};

use self::columns::{Columns, Foreign};
pub(crate) use self::replay::RuleReplay;
use crate::enter::enter;
use crate::error::Failure;

/// Sequences, and payloads one after the other.
#[derive(Default)]
struct Batch {
    sequences: Vec<u64>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Batch {
    fn push(&mut self, sequence: u64, payload: &[u8]) {
        self.sequences.push(sequence);
        self.bytes.extend_from_slice(payload);
        self.ends.push(self.bytes.len());
    }

    fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| self.bytes.get(start..end).unwrap_or_default())
    }
}

/// Sequences, and the encoded record of each.
type Records<'py> = (Vec<u64>, Vec<Bound<'py, PyBytes>>);

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct LogReader {
    reader: Mutex<Reader>,
    /// Size of all segments when the directory was opened, in bytes.
    #[pyo3(get)]
    total_bytes: u64,
}

#[pymethods]
impl LogReader {
    /// Opens a log directory for reading from a sequence onward. A server may be writing to it.
    #[new]
    #[pyo3(signature = (dir, start_sequence = 0))]
    fn new(py: Python<'_>, dir: PathBuf, start_sequence: u64) -> PyResult<LogReader> {
        enter(py, || {
            let reader = Reader::open(Arc::new(RealFs), &dir)?.starting_at(start_sequence);
            Ok::<_, LogError>(LogReader { total_bytes: reader.total_bytes(), reader: Mutex::new(reader) })
        })
    }

    /// Returns the sequences and the encoded `LogRecord`s of at most `max_records` records or about `max_bytes` of
    /// payload. Returns `None` at the end of the log.
    fn next_batch<'py>(
        &self,
        py: Python<'py>,
        max_records: usize,
        max_bytes: usize,
    ) -> PyResult<Option<Records<'py>>> {
        let batch = enter(py, || self.read(max_records, max_bytes))?;
        if batch.sequences.is_empty() {
            return Ok(None);
        }
        let payloads = batch.payloads().map(|payload| PyBytes::new(py, payload)).collect();
        Ok(Some((batch.sequences, payloads)))
    }

    /// Reads the next `max_records` records, or about `max_bytes` of payload, and returns the decisions and outcomes of
    /// a checkpoint as columns. Returns `None` at the end of the log.
    fn next_columns<'py>(
        &self,
        py: Python<'py>,
        checkpoint: &str,
        max_records: usize,
        max_bytes: usize,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let columns = enter(py, || self.read_columns(checkpoint, max_records, max_bytes))?;
        if columns.is_empty() {
            return Ok(None);
        }
        columns.into_dict(py).map(Some)
    }

    /// Returns the findings so far, as JSON. They are complete at the end of the log.
    fn findings(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || serde_json::to_string(self.lock().findings()))
    }

    /// Returns the segments that have been read so far, as JSON.
    fn segments(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || serde_json::to_string(self.lock().segments()))
    }

    /// Size of the segments that have been read so far, in bytes, for progress.
    #[getter]
    fn bytes_read(&self, py: Python<'_>) -> PyResult<u64> {
        enter(py, || Ok::<_, LogError>(self.lock().bytes_read()))
    }
}

/// Removes old segments of a log directory. A server may be writing to it. Returns what was removed and what is left,
/// as JSON.
#[pyfunction]
#[pyo3(signature = (directory, max_age_seconds, max_bytes, unshipped, dry_run))]
pub(crate) fn prune_log(
    py: Python<'_>,
    directory: PathBuf,
    max_age_seconds: Option<f64>,
    max_bytes: Option<u64>,
    unshipped: bool,
    dry_run: bool,
) -> PyResult<String> {
    let max_age =
        max_age_seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
    let retention = Retention { max_age, max_bytes, unshipped };
    let pruned = enter(py, || retention.apply(&Env::real(), &directory, dry_run))?;
    enter(py, || serde_json::to_string(&pruned))
}

/// Records that all records of a log below a sequence have been shipped. Returns the mark that is now effective.
#[pyfunction]
pub(crate) fn mark_shipped(py: Python<'_>, directory: PathBuf, sequence: u64) -> PyResult<u64> {
    enter(py, || scorer_log::mark_shipped(&Env::real(), &directory, sequence))
}

impl LogReader {
    fn lock(&self) -> std::sync::MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, max_records: usize, max_bytes: usize) -> Result<Batch, LogError> {
        let mut reader = self.lock();
        let mut batch = Batch::default();
        while batch.sequences.len() < max_records.max(1) && batch.bytes.len() < max_bytes.max(1) {
            let Some(record) = reader.next_record()? else { break };
            batch.push(record.sequence, record.payload);
        }
        Ok(batch)
    }
}

impl LogReader {
    fn read_columns(
        &self,
        checkpoint: &str,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Columns, Failure> {
        let mut reader = self.lock();
        let mut columns = Columns::default();
        while !columns.is_full(max_records, max_bytes) {
            let Some(record) = reader.next_record()? else { break };
            columns.add(checkpoint, record.sequence, record.payload)?;
        }
        Ok(columns)
    }
}

impl From<Foreign> for Failure {
    fn from(error: Foreign) -> Failure {
        Failure::foreign_record(&error)
    }
}

impl From<LogError> for Failure {
    fn from(error: LogError) -> Failure {
        // Every error of the log becomes a `scorer.errors.LogError`.
        Failure::log(&error)
    }
}
