//! `_scorer.Server`: a handle to the data plane. Nothing here is called per request.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use scorer_server as core;
use serde::Serialize;

use crate::enter::enter;
use crate::error::Failure;

/// Longest drain, seconds; more is a mistake in the unit.
const MAX_DRAIN: f64 = 3600.0;

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct Server {
    inner: core::Server,
    /// The process whose threads serve.
    owner: u32,
}

#[pymethods]
impl Server {
    /// Binds, opens the log, starts the threads; it listens, and answers NOT_SERVING, on return.
    #[new]
    fn new(py: Python<'_>, config_json: &str) -> PyResult<Server> {
        let inner = enter(py, || core::Server::start(core::ServerConfig::from_json(config_json)?))?;
        Ok(Server { inner, owner: std::process::id() })
    }

    /// Loads, verifies and warms a bundle, for a checkpoint if `wanted_json` names one; returns the report as
    /// JSON.
    #[pyo3(signature = (path, digest, wanted_json = None))]
    fn load(
        &self,
        py: Python<'_>,
        path: PathBuf,
        digest: &str,
        wanted_json: Option<&str>,
    ) -> PyResult<String> {
        let inner = self.here()?;
        let wanted = match wanted_json.map(serde_json::from_str).transpose() {
            Ok(wanted) => wanted.unwrap_or_default(),
            Err(error) => return Err(Failure::argument(format!("load: wanted_json: {error}")).into()),
        };
        enter(py, || json(&inner.load_for(&path, digest, &wanted)?))
    }

    /// Activates a lane table.
    fn swap(&self, py: Python<'_>, table_json: &str) -> PyResult<()> {
        let inner = self.here()?;
        enter(py, || inner.swap(&core::LaneTable::from_json(table_json)?))
    }

    /// Adds a checkpoint with settings as the configuration has them; returns whether it is new.
    fn add_checkpoint(&self, py: Python<'_>, name: &str, config_json: &str) -> PyResult<bool> {
        let inner = self.here()?;
        let config = serde_json::from_str(config_json)
            .map_err(|error| Failure::argument(format!("add_checkpoint: config_json: {error}")))?;
        enter(py, || Ok::<_, Failure>(inner.add_checkpoint(name, &config)?))
    }

    /// Notes whether the registry could be read, and when it could last, for the metrics.
    fn note_registry(&self, reachable: bool, last_seen_ms: u64) -> PyResult<()> {
        self.here()?.note_registry(reachable, last_seen_ms);
        Ok(())
    }

    /// Notes how many bundles are in quarantine, for the metrics.
    fn note_quarantined(&self, bundles: u64) -> PyResult<()> {
        self.here()?.note_quarantined(bundles);
        Ok(())
    }

    /// Lets go of a bundle that no lane names.
    fn unload(&self, py: Python<'_>, digest: &str) -> PyResult<()> {
        let inner = self.here()?;
        enter(py, || inner.unload(digest))
    }

    /// Counters and states as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let inner = self.here()?;
        enter(py, || json(&inner.status()))
    }

    /// What happened since the last call, as JSON lines.
    fn events(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let inner = self.here()?;
        enter(py, || Ok::<_, Failure>(inner.events()))
    }

    /// Who makes a control call with this certificate chain, PEM, or bearer token, as JSON: `principal`, or `code` and
    /// `error` of a caller that may not operate the server.
    #[pyo3(signature = (pem, token = None))]
    fn operator(&self, py: Python<'_>, pem: &[u8], token: Option<&str>) -> PyResult<String> {
        let inner = self.here()?;
        enter(py, || json(&inner.operator(pem, token)))
    }

    /// Where it listens, as JSON.
    fn addresses(&self, py: Python<'_>) -> PyResult<String> {
        let inner = self.here()?;
        enter(py, || json(inner.addresses()))
    }

    /// Stops taking requests, waits up to `seconds` for those in flight, seals the log, joins the threads.
    fn drain(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let inner = self.here()?;
        if !(0.0..=MAX_DRAIN).contains(&seconds) {
            let message = format!("drain: {seconds} seconds; give 0 to {MAX_DRAIN}");
            return Err(Failure::argument(message).into());
        }
        enter(py, || {
            inner.drain(Duration::from_secs_f64(seconds));
            Ok::<_, Failure>(())
        })
    }
}

impl Server {
    /// The server, unless this is a forked child: its threads stayed behind.
    fn here(&self) -> PyResult<&core::Server> {
        if std::process::id() == self.owner {
            Ok(&self.inner)
        } else {
            Err(Failure::forked(self.owner).into())
        }
    }
}

fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    Ok(serde_json::to_string(value)?)
}
