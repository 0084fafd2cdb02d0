//! `run_load`: the open-loop load generator.

use std::ops::ControlFlow;

use bytes::Bytes;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use scorer_loadgen::{LoadConfig, Progress, run};

use crate::enter::enter;

/// Runs one load test and returns its report as JSON.
///
/// `payloads[i]` are the encoded requests of the configuration's i-th method. `progress` is called about once per
/// second with a JSON text. If it returns a true value, the run ends early, which the report states. The thread is
/// detached from the interpreter during the run, except for a check of pending signals ten times per second. An
/// exception of a signal handler ends the run without a report.
#[pyfunction]
#[pyo3(signature = (config, payloads, progress = None))]
pub(crate) fn run_load(
    py: Python<'_>,
    config: &str,
    payloads: Vec<Vec<PyBackedBytes>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let config: LoadConfig =
        serde_json::from_str(config).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let payloads: Vec<Vec<Bytes>> = payloads
        .iter()
        .map(|method| method.iter().map(|body| Bytes::copy_from_slice(body)).collect())
        .collect();
    let mut raised = None;
    let report = enter(py, || {
        run(&config, payloads, |reached| match look_up(progress.as_ref(), reached) {
            Ok(false) => ControlFlow::Continue(()),
            Ok(true) => ControlFlow::Break(()),
            Err(error) => {
                raised = Some(error);
                ControlFlow::Break(())
            }
        })
    });
    if let Some(error) = raised {
        return Err(error);
    }
    serde_json::to_string(&report?).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Runs the handlers of pending signals and calls `callback`. Returns whether the run must end.
fn look_up(callback: Option<&Py<PyAny>>, reached: Option<&Progress>) -> PyResult<bool> {
    Python::attach(|py| {
        py.check_signals()?;
        let (Some(callback), Some(reached)) = (callback, reached) else { return Ok(false) };
        let text =
            serde_json::to_string(reached).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        callback.call1(py, (text,))?.is_truthy(py)
    })
}
