//! TLS from files: certificates, keys, authorities and revocation lists, which can be replaced while connections are
//! open.

mod client;
mod files;
mod server;

use std::sync::Arc;

use crate::error::Unauthenticated;
use rustls::SupportedProtocolVersion;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::version::{TLS12, TLS13};
use serde::{Deserialize, Serialize};

pub use client::{ClientTls, ClientTlsConfig};
pub use server::{ClientCertificates, ExpiredCrl, Reloaded, ServerTls, ServerTlsConfig};

/// The oldest version of TLS that is accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum MinVersion {
    /// TLS 1.2 and 1.3.
    #[serde(rename = "1.2")]
    Tls12,
    /// Only TLS 1.3.
    #[default]
    #[serde(rename = "1.3")]
    Tls13,
}

static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
static NEWEST: [&SupportedProtocolVersion; 1] = [&TLS13];

// === impl MinVersion ===

impl MinVersion {
    fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            MinVersion::Tls12 => &BOTH,
            MinVersion::Tls13 => &NEWEST,
        }
    }
}

/// Parses the certificates of a peer, PEM.
///
/// # Errors
/// Fails if one of them is malformed.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unauthenticated> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    read.map_err(|_| Unauthenticated::Certificate("it is malformed".to_owned()))
}

/// The cryptographic algorithms of every connection.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[cfg(test)]
mod tests;
