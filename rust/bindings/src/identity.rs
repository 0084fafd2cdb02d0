//! Certificates for trials, and the check of TLS files.

use std::path::PathBuf;

use pyo3::prelude::*;
use scorer_identity::IdentityError;
use scorer_identity::authority;
use scorer_identity::tls::{ClientTlsConfig, ServerTls, ServerTlsConfig};

use crate::enter::enter;
use crate::error::Failure;

/// Writes an authority, and a certificate and a key for each member, to a directory.
#[pyfunction]
pub(crate) fn write_fleet(
    py: Python<'_>,
    directory: PathBuf,
    trust_domain: &str,
    members: Vec<(String, Vec<String>)>,
    days: u32,
) -> PyResult<()> {
    let write = || authority::write_fleet(&directory, trust_domain, &members, days);
    enter(py, || write().map_err(|error| Failure::identity(&error)))
}

/// Reads the files of a listener with the rules of the server. Returns when its certificate expires, in seconds since
/// the Unix epoch.
#[pyfunction]
pub(crate) fn check_server_tls(py: Python<'_>, config_json: &str) -> PyResult<i64> {
    let config: ServerTlsConfig = serde_json::from_str(config_json).map_err(Failure::from)?;
    enter(py, || checked(ServerTls::new(config).map(|tls| tls.expires())))
}

/// Reads the files of a client with the rules for a connection to `address`. Returns when its own certificate expires,
/// in seconds since the Unix epoch, or `None` if it presents none.
#[pyfunction]
pub(crate) fn check_client_tls(py: Python<'_>, config_json: &str, address: &str) -> PyResult<Option<i64>> {
    let config: ClientTlsConfig = serde_json::from_str(config_json).map_err(Failure::from)?;
    enter(py, || checked(config.connect(address).and_then(|_| config.expires())))
}

fn checked<T>(result: Result<T, IdentityError>) -> Result<T, Failure> {
    result.map_err(|error| Failure::identity(&error))
}
