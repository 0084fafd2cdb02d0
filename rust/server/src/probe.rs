//! The state of one request from its arrival to its end: the caller, the admission decision and the counters
//! it is counted in.

use std::sync::Arc;
use std::time::Instant;

use http::HeaderMap;
use scorer_engine::{Arrival, Gate, InflightGuard, Rejection, Tenant};
use scorer_identity::{Access, Role};
use tonic::{Code, Status};

use crate::arrive::{self, ArriveError};
use crate::method::Method;
use crate::security::Credential;
use crate::services::Services;
use crate::share::{Held, Share, ShareGuard, Shares};
use crate::tracing::{Ended, Trace};

/// The header that names the caller where one connection carries requests of several callers; see [`Peer`].
const CALLER: &str = "x-caller";
/// Number of callers that one network address can have. Names are not authenticated, so a client must not be able to
/// appear as a new caller with each request.
const CALLERS_PER_ADDRESS: u64 = 16;

/// The peer of a connection, to whose share of the capacity its requests count.
///
/// A request may name its caller in `x-caller`. On the Unix socket, whose users the operating system authenticates,
/// each name is a separate caller. On TCP, names are mapped to 16 callers per address.
///
/// If identity is configured, the caller is the principal, and the name in the request is ignored.
#[derive(Clone)]
pub(crate) struct Peer {
    key: u64,
    /// Whether the peer is a user of this machine.
    local: bool,
    pub(crate) credential: Credential,
    share: Arc<Share>,
}

/// The caller of a request; `None` if identity is not configured.
#[derive(Clone)]
pub(crate) struct Caller(pub(crate) Option<Arc<Access>>);

/// Counts one request exactly once, in whatever way it ends.
pub(crate) struct Probe {
    services: Arc<Services>,
    method: Method,
    pub(crate) arrival: Arc<Arrival>,
    /// The caller; `None` if identity is not configured or the caller is refused.
    caller: Option<Arc<Access>>,
    code: Code,
    /// The place of the request in a trace, if it is traced.
    trace: Option<Box<Trace>>,
    _guards: Option<(InflightGuard, ShareGuard)>,
}

// === impl Caller ===

impl Caller {
    /// Returns the caller that the dispatcher has stored in the request.
    pub(crate) fn of<M>(request: &tonic::Request<M>) -> Caller {
        request.extensions().get::<Caller>().cloned().unwrap_or(Caller(None))
    }

    /// Whether the caller has a role at a checkpoint, or identity is not configured.
    pub(crate) fn allows(&self, role: Role, checkpoint: &str) -> bool {
        self.0.as_ref().is_none_or(|access| access.allows(role, checkpoint))
    }
}

// === impl Peer ===

impl Peer {
    /// Creates the peer of a new connection.
    pub(crate) fn of(services: &Services, peer: scorer_http::Peer) -> Peer {
        let credential = match peer {
            scorer_http::Peer::User(uid) => services.security.of_uid(uid),
            scorer_http::Peer::Address(_) | scorer_http::Peer::UnknownUser => Credential::Absent,
        };
        Peer { credential, ..Peer::at(&services.engine.admission, &services.shares, peer) }
    }

    fn at(gate: &Gate, shares: &Arc<Shares>, peer: scorer_http::Peer) -> Peer {
        let (key, share) = (gate.caller(peer.to_string().as_bytes()), shares.connect(peer));
        Peer { key, local: peer.is_local_user(), credential: Credential::Absent, share }
    }

    /// Counts a request in the connection's share.
    ///
    /// # Errors
    /// Returns [`scorer_engine::Rejection::ShareUsed`].
    pub(crate) fn enter(&self) -> Result<ShareGuard, Rejection> {
        self.share.enter()
    }

    /// Creates the counter of the bytes of a message that has not arrived yet.
    pub(crate) fn hold(&self) -> Held {
        self.share.hold()
    }

    /// Returns the peer with this credential.
    pub(crate) fn with(&self, credential: Credential) -> Peer {
        Peer { credential, ..self.clone() }
    }

    /// Returns the key of the caller of a request with these headers.
    fn caller(&self, gate: &Gate, headers: &HeaderMap) -> u64 {
        let Some(name) = headers.get(CALLER) else { return self.key };
        let name = gate.caller(name.as_bytes());
        gate.caller_at(self.key, if self.local { name } else { name % CALLERS_PER_ADDRESS })
    }
}

/// Returns the tenant of a request. Its decision tokens are accepted only from the same tenant. The name in the request
/// is used only if identity is not configured.
fn tenant(caller: Option<&Access>, headers: &HeaderMap) -> Tenant {
    match caller {
        Some(access) => Tenant::named(access.tenant().as_bytes()),
        None => headers.get(CALLER).map_or(Tenant::UNNAMED, |name| Tenant::named(name.as_bytes())),
    }
}

// === impl Probe ===

impl Probe {
    /// Creates the arrival of a request of `method` and checks whether the server accepts it.
    pub(crate) fn begin(
        services: &Arc<Services>,
        method: Method,
        headers: &HeaderMap,
        peer: &Peer,
        arrived: Instant,
    ) -> (Probe, Result<(), Status>) {
        services.counters.arrived();
        let gate = &services.engine.admission;
        let (caller, allowed) = match services.security.caller(&peer.credential, headers) {
            Ok(caller) => {
                let allowed = method.roles().check(&services.security, caller.as_deref());
                (caller, allowed)
            }
            Err(status) => (None, Err(status)),
        };
        let key = caller.as_ref().map_or_else(|| peer.caller(gate, headers), |access| access.key());
        let (arrival, verdict) = arrive::stamp(headers, arrived, key);
        let mut arrival = match &caller {
            Some(access) => arrival.of_principal(access.key()),
            None => arrival,
        };
        if services.engine.tokens.enabled() {
            arrival.tenant = tenant(caller.as_deref(), headers);
        }
        let trace = services.tracer.as_ref().and_then(|tracer| tracer.sample(headers, arrived));
        if trace.is_some() {
            arrival = arrival.traced();
        }
        let mut probe = Probe {
            services: Arc::clone(services),
            method,
            arrival: Arc::new(arrival),
            caller,
            code: Code::Cancelled,
            trace,
            _guards: None,
        };
        let verdict = allowed.and_then(|()| {
            verdict?;
            let entered = gate.enter(&probe.arrival, method.infers());
            let entered = entered.and_then(|guard| Ok((guard, peer.enter()?)));
            let guards = entered.map_err(|rejection| {
                services.counters.rejected(&rejection);
                ArriveError::from(rejection)
            })?;
            probe._guards = Some(guards);
            Ok(())
        });
        (probe, verdict)
    }

    pub(crate) fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// The caller of the request, with its roles.
    pub(crate) fn caller(&self) -> Caller {
        Caller(self.caller.clone())
    }

    pub(crate) fn set_code(&mut self, code: Code) {
        self.code = code;
    }

    /// Records that the reply has been passed to the transport.
    pub(crate) fn replied(&self) {
        self.services.engine.admission.replied(&self.arrival);
        self.services.engine.handed_over(&self.arrival);
    }

    /// Records that the request has been answered with `code`.
    pub(crate) fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.services.engine.admission.left(&self.arrival);
        if self.code == Code::Cancelled {
            self.services.engine.given_up(&self.arrival);
        }
        let took = self.arrival.at.elapsed();
        let ended = self.trace.take().map(|trace| Ended {
            trace,
            arrival: Arc::clone(&self.arrival),
            method: self.method,
            code: self.code,
            took,
            at_us: self.services.engine.clock.unix_us(),
        });
        let exemplar = ended.as_ref().map(Ended::exemplar);
        let Services { counters, tracer, .. } = &*self.services;
        counters.finished(self.method, &self.arrival, self.code, took, exemplar.as_ref());
        if let Some((tracer, ended)) = tracer.as_ref().zip(ended) {
            tracer.ended(ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use scorer_engine::{Engine, EngineConfig, Events};
    use scorer_log::{Env, RealClock};

    use super::*;
    use crate::share::Most;

    #[test]
    fn an_address_has_few_callers_whatever_its_clients_call_themselves() {
        let config = EngineConfig {
            checkpoints: serde_json::from_str(r#"{"c":{"kind":"score"}}"#).unwrap(),
            ..EngineConfig::default()
        };
        let events = Arc::new(Events::new(Arc::new(RealClock::default())));
        let engine = Engine::new(&config, Env::real(), events, Arc::new(()), Instant::now()).unwrap();
        let gate = &engine.admission;
        let shares = Shares::new(Most { requests: 1, bytes: 1, bytes_per_peer: 1 });
        let address = |text: &str| scorer_http::Peer::of_address(text.parse().unwrap());
        let callers = |peer: scorer_http::Peer| -> HashSet<u64> {
            let peer = Peer::at(gate, &shares, peer);
            let headers = |number: u32| {
                let name = format!("caller-{number}").parse().unwrap();
                HeaderMap::from_iter([(http::HeaderName::from_static(CALLER), name)])
            };
            (0..1000).map(|number| peer.caller(gate, &headers(number))).collect()
        };
        let (first, second, ipv6) =
            (callers(address("10.0.0.1")), callers(address("10.0.0.2")), callers(address("::1")));
        assert!(first.len() <= 16 && ipv6.len() <= 16, "{} {}", first.len(), ipv6.len());
        assert!(first.is_disjoint(&second), "another address is another caller");
        assert_eq!(
            callers(scorer_http::Peer::User(1000)).len(),
            1000,
            "the operating system knows who this is"
        );
        let unnamed = |text| Peer::at(gate, &shares, address(text)).caller(gate, &HeaderMap::new());
        assert_ne!(unnamed("10.0.0.1"), unnamed("10.0.0.2"));
    }
}
