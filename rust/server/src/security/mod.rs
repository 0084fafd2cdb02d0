//! Authentication and authorization: the listener's TLS, the caller of each request, and the caller's roles.

mod caller;
mod refresh;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use http::HeaderMap;
use rustls::ServerConfig as Rustls;
use rustls::pki_types::CertificateDer;
use scorer_engine::{Events, Level};
use scorer_http::{HandshakeFailure, Limit, Peer, Tls, TlsSource};
use scorer_identity::tls::{ServerTls, certificates};
use scorer_identity::{Access, Identity, Principal, Refused, Role, Unauthenticated};
use serde::Serialize;
use serde_json::json;
use tonic::{Code, Status};

use crate::config::ServerConfig;
use crate::error::ServerError;
use caller::Certified;
pub(crate) use caller::Credential;
pub(crate) use refresh::followed;

/// The listener's certificates, the accepted identities, and the counters of refusals.
pub(crate) struct Security {
    tls: Option<Arc<ServerTls>>,
    identity: Option<Identity>,
    events: Arc<Events>,
    pub(crate) counters: Counters,
}

/// Counts of refused handshakes and requests, and of files that were read again.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) handshakes_failed: [AtomicU64; HandshakeFailure::COUNT],
    pub(crate) unauthenticated: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) rejected: AtomicU64,
    /// How many kinds of file cannot be used now; their last valid contents stay in use.
    pub(crate) outdated: AtomicU64,
    refusals: Rate,
    handshakes: Rate,
    misuses: Rate,
}

/// Whether the peer of a control connection may operate the server.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Operator {
    /// The peer may.
    Allowed {
        /// The name of its principal.
        principal: String,
    },
    /// The peer may not.
    Refused {
        /// `UNAUTHENTICATED` or `PERMISSION_DENIED`.
        code: &'static str,
        /// The reason, in one line.
        error: String,
    },
}

/// Limits events to one a second: many refusals must not push other events out of the ring of events.
#[derive(Debug, Default)]
struct Rate {
    /// The second of the last event, since the Unix epoch.
    last_s: AtomicU64,
    left_out: AtomicU64,
}

/// The current certificates of the listener, for handshakes.
struct Source(Arc<ServerTls>);

impl TlsSource for Source {
    fn current(&self) -> Arc<Rustls> {
        self.0.current()
    }
}

// === impl Security ===

impl Security {
    /// Reads certificates and keys.
    pub(crate) fn new(config: &ServerConfig, events: &Arc<Events>) -> Result<Security, ServerError> {
        let tls = config.tls.clone().map(ServerTls::new).transpose()?.map(Arc::new);
        let identity = config.identity.as_ref().map(Identity::new);
        let security = Security { tls, identity, events: Arc::clone(events), counters: Counters::default() };
        security.read_keys();
        let remote = config.listen.as_deref().filter(|address| !is_loopback(address));
        if let (Some(address), None) = (remote, &security.tls) {
            let remedy = "set [server.tls]; without it others can read and change requests";
            security.events.push(
                Level::Warning,
                "plaintext_listener",
                json!({"address": address, "remedy": remedy}),
            );
        }
        Ok(security)
    }

    /// The settings for the handshakes of the TCP listener; absent without TLS.
    pub(crate) fn listener(&self) -> Option<Tls> {
        let tls = self.tls.as_ref()?;
        Some(Tls { source: Arc::new(Source(Arc::clone(tls))), handshake_timeout: tls.handshake_timeout() })
    }

    pub(crate) fn tls(&self) -> Option<&ServerTls> {
        self.tls.as_deref()
    }

    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The credential of a connection to the listener whose peer has presented these certificates.
    pub(crate) fn of_certificates(&self, certificates: &[CertificateDer<'static>]) -> Credential {
        let (Some(identity), Some(tls), Some(leaf)) = (&self.identity, &self.tls, certificates.first())
        else {
            return Credential::Absent;
        };
        match identity.of_certificate(leaf) {
            Ok(access) => Credential::Certified(Arc::new(Certified::new(access, certificates, tls))),
            Err(error) => Credential::Refused(error),
        }
    }

    /// The credential of a connection to the Unix socket by this user.
    pub(crate) fn of_uid(&self, uid: u32) -> Credential {
        self.identity.as_ref().map_or(Credential::Absent, |identity| Credential::Known(identity.of_uid(uid)))
    }

    /// The principal that sends a request with these headers over a connection of this credential; `None` where
    /// identity is not configured.
    ///
    /// # Errors
    /// UNAUTHENTICATED if neither the headers nor the connection name a valid principal.
    pub(crate) fn caller(
        &self,
        connection: &Credential,
        headers: &HeaderMap,
    ) -> Result<Option<Arc<Access>>, Status> {
        let Some(identity) = &self.identity else { return Ok(None) };
        caller::of_request(identity, self.tls(), connection, headers)
            .map(Some)
            .map_err(|why| self.refused(&why.into()))
    }

    /// Checks that a caller has one of these roles at any checkpoint, or at `checkpoint`.
    ///
    /// # Errors
    /// PERMISSION_DENIED if the caller has none of the roles.
    pub(crate) fn check(
        &self,
        caller: Option<&Access>,
        role: Role,
        checkpoint: Option<&str>,
    ) -> Result<(), Status> {
        let Some(access) = caller else { return Ok(()) };
        let checked = match checkpoint {
            Some(checkpoint) => access.check_at(role, checkpoint),
            None => access.check(role),
        };
        checked.map_err(|denied| self.refused(&denied.into()))
    }

    /// Finds the principal of a call with this token, over a connection that another TLS implementation has accepted
    /// with these certificates (PEM), and decides whether it may operate this server.
    pub(crate) fn operator(&self, pem: &[u8], token: Option<&str>) -> Operator {
        let decide = || -> Result<Principal, Refused> {
            let identity = self.identity.as_ref().ok_or(Unauthenticated::Nothing)?;
            let access = match (token, &self.tls) {
                (Some(token), _) if identity.tokens().is_some() => identity.of_token(token)?,
                (_, Some(tls)) => {
                    let chain = certificates(pem)?;
                    tls.verify(&chain)?;
                    identity.of_certificate(chain.first().ok_or(Unauthenticated::Nothing)?)?
                }
                _ => return Err(Unauthenticated::Nothing.into()),
            };
            access.check(Role::Operate)?;
            Ok(access.principal().clone())
        };
        match decide() {
            Ok(principal) => Operator::Allowed { principal: principal.to_string() },
            Err(why) => {
                let status = self.refused(&why);
                let code = scorer_proto::CODE_NAMES[status.code() as usize];
                Operator::Refused { code, error: status.message().to_owned() }
            }
        }
    }

    /// Counts a failed handshake and reports at most one a second as an event.
    pub(crate) fn no_handshake(&self, failure: HandshakeFailure) {
        self.counters.handshakes_failed[failure as usize].fetch_add(1, Relaxed);
        if let Some(left_out) = self.counters.handshakes.event(self.events.now_us()) {
            let fields = json!({"reason": failure.as_str(), "left_out": left_out});
            self.events.push(Level::Warning, "handshake_failed", fields);
        }
    }

    /// Reports, at most once a second, that a connection of `peer` was closed because it exceeded a limit.
    pub(crate) fn misused(&self, peer: Peer, limit: Limit, pause_seconds: u64) {
        if let Some(left_out) = self.counters.misuses.event(self.events.now_us()) {
            let fields = json!({
                "peer": peer.to_string(), "limit": limit.as_str(), "pause_seconds": pause_seconds, "left_out": left_out,
            });
            self.events.push(Level::Warning, "peer_paused", fields);
        }
    }

    /// Counts a refusal and converts it to a status. At most one refusal a second becomes an event, with its principal.
    fn refused(&self, why: &Refused) -> Status {
        let (count, code) = match why {
            Refused::Unauthenticated(_) => (&self.counters.unauthenticated, Code::Unauthenticated),
            Refused::Denied(_) => (&self.counters.denied, Code::PermissionDenied),
        };
        count.fetch_add(1, Relaxed);
        if let Some(left_out) = self.counters.refusals.event(self.events.now_us()) {
            let principal = match why {
                Refused::Unauthenticated(_) => None,
                Refused::Denied(denied) => Some(denied.principal().to_string()),
            };
            let fields = json!({
                "code": scorer_proto::CODE_NAMES[code as usize],
                "principal": principal,
                "error": why.to_string(),
                "left_out": left_out,
            });
            self.events.push(Level::Warning, "call_refused", fields);
        }
        Status::new(code, why.to_string())
    }
}

// === impl Rate ===

impl Rate {
    /// How many events were omitted since the last one; `None`, and this one is omitted too, if this second has had
    /// one.
    fn event(&self, now_us: i64) -> Option<u64> {
        let second = u64::try_from(now_us / 1_000_000).unwrap_or(0);
        if self.last_s.swap(second, Relaxed) == second {
            self.left_out.fetch_add(1, Relaxed);
            return None;
        }
        Some(self.left_out.swap(0, Relaxed))
    }
}

/// Whether an address can be reached only from this machine.
pub(crate) fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}
