//! The TLS settings of a server.

use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use ring::digest;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use serde::{Deserialize, Serialize};

use super::files::Source;
use super::{MinVersion, provider};
use crate::certificate;
use crate::error::{IdentityError, Unauthenticated};

/// Whether clients present certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// They are not asked for a certificate.
    Off,
    /// They may present one; it must be valid.
    Optional,
    /// They must present a valid one; other connections are refused.
    #[default]
    Required,
}

/// The effect of an expired revocation list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpiredCrl {
    /// Every certificate of its issuer is refused.
    #[default]
    Refuse,
    /// It is used as if it had not expired.
    Accept,
}

/// The TLS settings of a listener.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ServerTlsConfig {
    /// The server's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The authorities that may sign the certificates of clients, PEM; absent: clients present no certificate.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
    /// Whether clients present certificates; has no effect without `client_ca`.
    #[serde(default)]
    pub client_certificates: ClientCertificates,
    /// Revocation lists, PEM. If there are any, a certificate is refused if its issuer has no list.
    #[serde(default)]
    pub crl: Vec<PathBuf>,
    /// The effect of an expired list.
    #[serde(default)]
    pub expired_crl: ExpiredCrl,
    /// The oldest version of TLS.
    #[serde(default)]
    pub min_version: MinVersion,
    /// Time limit for a handshake, in milliseconds.
    #[serde(default = "default_handshake_ms")]
    pub handshake_ms: u64,
    /// Interval at which the files are read again, in milliseconds.
    #[serde(default = "default_reload_ms")]
    pub reload_ms: u64,
}

fn default_handshake_ms() -> u64 {
    2000
}

fn default_reload_ms() -> u64 {
    1000
}

/// The result of reading the files again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// Their contents are the same.
    Unchanged,
    /// New handshakes use the new contents.
    Replaced,
    /// They cannot be used, for this reason; the previous contents stay in use. Reported once for each new content.
    Rejected(IdentityError),
}

/// The TLS of a listener. Its files can be replaced while connections are open.
pub struct ServerTls {
    config: ServerTlsConfig,
    active: ArcSwap<Active>,
    /// The contents that were read last, whether they could be used or not.
    seen: Mutex<Seen>,
    expires: AtomicI64,
    /// How often the files were replaced.
    replaced: AtomicU64,
}

struct Active {
    server: Arc<ServerConfig>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

#[derive(Clone, PartialEq, Eq)]
enum Seen {
    Content(Vec<u8>),
    Unreadable(IdentityError),
}

/// The contents of all files.
struct Material<'a> {
    certificate: Source<'a>,
    key: Source<'a>,
    client_ca: Option<Source<'a>>,
    crl: Vec<Source<'a>>,
}

// === impl ServerTlsConfig ===

impl ServerTlsConfig {
    /// Adds a message for each broken rule to `wrong`.
    pub fn check(&self, wrong: &mut Vec<String>) {
        for (key, value, low, high) in
            [("handshake_ms", self.handshake_ms, 10, 60_000), ("reload_ms", self.reload_ms, 10, 86_400_000)]
        {
            if !(low..=high).contains(&value) {
                wrong.push(format!("\"tls\": {key} is {value}; use {low} to {high}"));
            }
        }
        if self.client_ca.is_none() && !self.crl.is_empty() {
            wrong.push("\"tls\": crl is set and client_ca is not; set it, or remove the lists".to_owned());
        }
    }

    /// Whether clients can present certificates.
    #[must_use]
    pub fn knows_clients(&self) -> bool {
        self.client_ca.is_some() && self.client_certificates != ClientCertificates::Off
    }

    fn read(&self) -> Result<Material<'_>, IdentityError> {
        Ok(Material {
            certificate: Source::read("tls certificate", &self.certificate)?,
            key: Source::read("tls key", &self.key)?,
            client_ca: self
                .client_ca
                .as_deref()
                .map(|path| Source::read("tls client_ca", path))
                .transpose()?,
            crl: self.crl.iter().map(|path| Source::read("tls crl", path)).collect::<Result<_, _>>()?,
        })
    }
}

// === impl Material ===

impl Material<'_> {
    fn digest(&self) -> Vec<u8> {
        let mut hasher = digest::Context::new(&digest::SHA256);
        let sources = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        for source in sources.into_iter().flatten().chain(&self.crl) {
            hasher.update(&(source.bytes.len() as u64).to_be_bytes());
            hasher.update(&source.bytes);
        }
        hasher.finish().as_ref().to_vec()
    }

    fn build(&self, config: &ServerTlsConfig) -> Result<(Active, i64), IdentityError> {
        let chain = self.certificate.certificates()?;
        let expires = chain.first().and_then(|leaf| certificate::expires(leaf));
        let expires = expires.ok_or_else(|| self.certificate.fail("its first certificate cannot be read"))?;
        let clients = match (&self.client_ca, config.client_certificates) {
            (None, _) | (_, ClientCertificates::Off) => None,
            (Some(authorities), wanted) => Some(self.verifier(authorities, wanted, config.expired_crl)?),
        };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(config.min_version.versions())
            .map_err(|error| IdentityError::Rule(error.to_string()))?;
        let builder = match &clients {
            Some(clients) => builder.with_client_cert_verifier(Arc::clone(clients)),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_single_cert(chain, self.key.key()?).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                self.key.fail("it does not belong to the certificate; replace both files together")
            }
            error => self.certificate.fail(format!("it cannot be used with its key: {error}")),
        })?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        // A resumed session would not verify the client's certificate again. Connections are long, so a full handshake
        // for each costs little.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok((Active { server: Arc::new(server), clients }, expires))
    }

    fn verifier(
        &self,
        authorities: &Source<'_>,
        wanted: ClientCertificates,
        expired: ExpiredCrl,
    ) -> Result<Arc<dyn ClientCertVerifier>, IdentityError> {
        let mut lists = Vec::new();
        for source in &self.crl {
            lists.extend(source.revocation_lists()?);
        }
        let mut builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(authorities.roots()?), provider())
                .with_crls(lists);
        if wanted == ClientCertificates::Optional {
            builder = builder.allow_unauthenticated();
        }
        if expired == ExpiredCrl::Refuse {
            builder = builder.enforce_revocation_expiration();
        }
        builder.build().map_err(|error| match self.crl.first() {
            Some(list) => list.fail(format!("it cannot be used: {error}")),
            None => authorities.fail(error.to_string()),
        })
    }
}

// === impl ServerTls ===

impl ServerTls {
    /// Reads the files and builds the settings of the listener.
    ///
    /// # Errors
    /// Fails if a file cannot be read or used.
    pub fn new(config: ServerTlsConfig) -> Result<ServerTls, IdentityError> {
        let (active, expires, seen) = {
            let material = config.read()?;
            let (active, expires) = material.build(&config)?;
            (active, expires, Seen::Content(material.digest()))
        };
        Ok(ServerTls {
            config,
            active: ArcSwap::from_pointee(active),
            seen: Mutex::new(seen),
            expires: AtomicI64::new(expires),
            replaced: AtomicU64::new(0),
        })
    }

    /// Reads the files again, and uses the new contents if they are complete and consistent.
    pub fn reload(&self) -> Reloaded {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let material = self.config.read();
        let now = match &material {
            Ok(material) => Seen::Content(material.digest()),
            Err(error) => Seen::Unreadable(error.clone()),
        };
        if *seen == now {
            return Reloaded::Unchanged;
        }
        *seen = now;
        match material.and_then(|material| material.build(&self.config)) {
            Ok((active, expires)) => {
                self.active.store(Arc::new(active));
                self.expires.store(expires, Relaxed);
                self.replaced.fetch_add(1, Release);
                Reloaded::Replaced
            }
            Err(error) => Reloaded::Rejected(error),
        }
    }

    /// The settings that the next handshake uses.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.active.load().server)
    }

    /// Verifies a client's chain by the current authorities and lists. Needed if another TLS implementation made the
    /// handshake, or if the files were replaced after it.
    ///
    /// # Errors
    /// The chain is not trusted, or clients present no certificates here.
    pub fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), Unauthenticated> {
        let refused = |problem: String| Unauthenticated::Certificate(problem);
        let active = self.active.load();
        let Some(clients) = &active.clients else {
            return Err(refused("this server accepts none".to_owned()));
        };
        let Some((leaf, others)) = chain.split_first() else { return Err(Unauthenticated::Nothing) };
        clients
            .verify_client_cert(leaf, others, UnixTime::now())
            .map(|_| ())
            .map_err(|error| refused(format!("not trusted: {error}")))
    }

    /// A number that changes with every replacement of the files and with every minute. A certificate that was verified
    /// under another number must be verified again, because it may have been revoked or may have expired.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        let minutes = UnixTime::now().as_secs() / 60;
        (self.replaced.load(Acquire) << 32) | (minutes & u64::from(u32::MAX))
    }

    /// The time at which the server's own certificate expires, in seconds since the Unix epoch.
    #[must_use]
    pub fn expires(&self) -> i64 {
        self.expires.load(Relaxed)
    }

    /// The interval at which to call [`ServerTls::reload`].
    #[must_use]
    pub fn reload_interval(&self) -> Duration {
        Duration::from_millis(self.config.reload_ms)
    }

    /// Time limit for a handshake.
    #[must_use]
    pub fn handshake_timeout(&self) -> Duration {
        Duration::from_millis(self.config.handshake_ms)
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").field("config", &self.config).finish_non_exhaustive()
    }
}
