//! `_scorer.Server`: a handle to the data plane. None of its methods is called per request.

use std::path::PathBuf;
use std::time::Duration;

use pyo3::prelude::*;
use scorer_server as core;
use serde::Serialize;

use crate::enter::enter;
use crate::error::Failure;

/// Longest allowed time of a drain in seconds. A larger value is taken for an error of the unit.
const MAX_DRAIN: f64 = 3600.0;

#[pyclass(frozen, module = "scorer._scorer")]
pub(crate) struct Server {
    inner: core::Server,
    /// Id of the process in which the threads of the server run.
    owner: u32,
}

#[pymethods]
impl Server {
    /// Binds the sockets, opens the log and starts the threads. On return the server listens and its health is
    /// NOT_SERVING.
    #[new]
    fn new(py: Python<'_>, config_json: &str) -> PyResult<Server> {
        let inner = enter(py, || core::Server::start(core::ServerConfig::from_json(config_json)?))?;
        Ok(Server { inner, owner: std::process::id() })
    }

    /// Loads, verifies and warms up a bundle, for a checkpoint if `wanted_json` names one. Returns the report as JSON.
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

    /// Activates a lane table, given as JSON.
    fn swap(&self, py: Python<'_>, table_json: &str) -> PyResult<()> {
        let inner = self.here()?;
        enter(py, || inner.swap(&core::LaneTable::from_json(table_json)?))
    }

    /// Adds a checkpoint. `config_json` has the format of a checkpoint in the configuration. Returns whether it is new.
    fn add_checkpoint(&self, py: Python<'_>, name: &str, config_json: &str) -> PyResult<bool> {
        let inner = self.here()?;
        let config = serde_json::from_str(config_json)
            .map_err(|error| Failure::argument(format!("add_checkpoint: config_json: {error}")))?;
        enter(py, || Ok::<_, Failure>(inner.add_checkpoint(name, &config)?))
    }

    /// Records for the metrics whether the registry is reachable, and when it was last reachable.
    fn note_registry(&self, reachable: bool, last_seen_ms: u64) -> PyResult<()> {
        self.here()?.note_registry(reachable, last_seen_ms);
        Ok(())
    }

    /// Removes an entity from the store of computed features. Returns JSON: `known` and `pending`.
    fn forget_entity(&self, py: Python<'_>, entity: &str, key: &str) -> PyResult<String> {
        let inner = self.here()?;
        enter(py, || json(&inner.forget_entity(entity, key)?))
    }

    /// Records for the metrics how many bundles are in quarantine.
    fn note_quarantined(&self, bundles: u64) -> PyResult<()> {
        self.here()?.note_quarantined(bundles);
        Ok(())
    }

    /// Loads a version of an external list, which must be at least `minimum_version`, and replaces the one before it.
    /// `known`: whether this server has accepted the version before. Returns the report as JSON.
    fn load_list(
        &self,
        py: Python<'_>,
        path: PathBuf,
        digest: &str,
        name: &str,
        minimum_version: u64,
        known: bool,
    ) -> PyResult<String> {
        let inner = self.here()?;
        enter(py, || json(&inner.load_list(&path, digest, name, minimum_version, known)?))
    }

    /// Counts a version of an external list that could not be copied.
    fn note_list_copy_failed(&self, name: &str) -> PyResult<()> {
        self.here()?.note_list_copy_failed(name);
        Ok(())
    }

    /// Unloads a bundle that no lane uses.
    fn unload(&self, py: Python<'_>, digest: &str) -> PyResult<()> {
        let inner = self.here()?;
        enter(py, || inner.unload(digest))
    }

    /// Returns counters and states as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let inner = self.here()?;
        enter(py, || json(&inner.status()))
    }

    /// Returns the events since the last call, one JSON text each.
    fn events(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let inner = self.here()?;
        enter(py, || Ok::<_, Failure>(inner.events()))
    }

    /// Identifies the caller of a control call by its certificate chain (PEM) or bearer token. Returns JSON:
    /// `principal`, or `code` and `error` if the caller may not operate the server.
    #[pyo3(signature = (pem, token = None))]
    fn operator(&self, py: Python<'_>, pem: &[u8], token: Option<&str>) -> PyResult<String> {
        let inner = self.here()?;
        enter(py, || json(&inner.operator(pem, token)))
    }

    /// Returns the addresses on which the server listens, as JSON.
    fn addresses(&self, py: Python<'_>) -> PyResult<String> {
        let inner = self.here()?;
        enter(py, || json(inner.addresses()))
    }

    /// Stops accepting requests, waits up to `seconds` for those in flight, seals the log and joins the threads.
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
    /// Returns the server. Fails in a forked child process, which does not have the threads of the server.
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
