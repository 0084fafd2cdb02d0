//! The TLS settings of a client.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};

use super::files::Source;
use super::{MinVersion, provider};
use crate::certificate;
use crate::error::IdentityError;

/// The certificate files of a client.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ClientTlsConfig {
    /// The authorities that may sign the server's certificate, PEM.
    pub ca: PathBuf,
    /// The client's certificate chain, PEM; absent: the client presents no certificate.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    #[serde(default)]
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must have; absent: the host of its address.
    #[serde(default)]
    pub server_name: Option<String>,
}

/// The TLS settings of one connection. They are built from the files for each connection, so that the next connection
/// uses replaced certificates.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// Certificates and rules.
    pub config: Arc<ClientConfig>,
    /// The name that the server's certificate must have.
    pub server_name: ServerName<'static>,
}

// === impl ClientTlsConfig ===

impl ClientTlsConfig {
    /// Adds a message for each broken rule to `wrong`. `what` is the name of the setting.
    pub fn check(&self, what: &str, wrong: &mut Vec<String>) {
        if self.certificate.is_some() != self.key.is_some() {
            wrong.push(format!("\"{what}\": certificate and key go together; set both or neither"));
        }
    }

    /// Returns when the client's own certificate expires, in seconds since the Unix epoch, or `None` if it presents
    /// none.
    ///
    /// # Errors
    /// Fails if the certificate cannot be read.
    pub fn expires(&self) -> Result<Option<i64>, IdentityError> {
        let Some(path) = &self.certificate else { return Ok(None) };
        let source = Source::read("tls certificate", path)?;
        let expires = source.certificates()?.first().and_then(|leaf| certificate::expires(leaf));
        expires.map(Some).ok_or_else(|| source.fail("its first certificate cannot be read"))
    }

    /// Reads the files for a connection to `address` (`host:port`).
    ///
    /// # Errors
    /// Fails if a file cannot be read or used.
    pub fn connect(&self, address: &str) -> Result<ClientTls, IdentityError> {
        let roots = Source::read("tls ca", &self.ca)?.roots()?;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(MinVersion::Tls12.versions())
            .map_err(|error| IdentityError::Rule(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let chain = Source::read("tls certificate", certificate)?.certificates()?;
                let source = Source::read("tls key", key)?;
                builder
                    .with_client_auth_cert(chain, source.key()?)
                    .map_err(|error| source.fail(format!("it does not belong to the certificate: {error}")))?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let host = self.server_name.as_deref().unwrap_or_else(|| {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            host.trim_start_matches('[').trim_end_matches(']')
        });
        let server_name = ServerName::try_from(host.to_owned())
            .map_err(|_| IdentityError::Rule(format!("{host:?} is no name of a server; set server_name")))?;
        Ok(ClientTls { config: Arc::new(config), server_name })
    }
}
