//! Finds the principal that sends a request.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use rustls::pki_types::CertificateDer;
use scorer_identity::tls::ServerTls;
use scorer_identity::{Access, Identity, Unauthenticated};

/// How the peer of a connection has authenticated.
#[derive(Clone, Default)]
pub(crate) enum Credential {
    /// Not at all.
    #[default]
    Absent,
    /// As a principal, by the user id of a Unix socket's peer.
    Known(Arc<Access>),
    /// By a certificate that names a principal.
    Certified(Arc<Certified>),
    /// By a certificate that names no principal.
    Refused(Unauthenticated),
}

/// The certificates of a connection, and the epoch of their last verification.
pub(crate) struct Certified {
    access: Arc<Access>,
    chain: Vec<CertificateDer<'static>>,
    /// The epoch of the last verification that succeeded.
    verified: AtomicU64,
}

// === impl Certified ===

impl Certified {
    pub(super) fn new(access: Arc<Access>, chain: &[CertificateDer<'static>], tls: &ServerTls) -> Certified {
        Certified { access, chain: chain.to_vec(), verified: AtomicU64::new(tls.epoch()) }
    }

    /// The principal, if its certificate is still valid: a connection may last longer than the certificate.
    fn access(&self, tls: &ServerTls) -> Result<Arc<Access>, Unauthenticated> {
        let epoch = tls.epoch();
        if self.verified.load(Relaxed) != epoch {
            tls.verify(&self.chain)?;
            self.verified.store(epoch, Relaxed);
        }
        Ok(Arc::clone(&self.access))
    }
}

// === impl Credential ===

impl Credential {
    /// The key of the principal as which the connection has authenticated.
    pub(crate) fn key(&self) -> Option<u64> {
        match self {
            Credential::Known(access) => Some(access.key()),
            Credential::Certified(certified) => Some(certified.access.key()),
            Credential::Absent | Credential::Refused(_) => None,
        }
    }
}

/// The principal of the request's token; that of its connection if the request has no token or tokens are not accepted.
pub(super) fn of_request(
    identity: &Identity,
    tls: Option<&ServerTls>,
    connection: &Credential,
    headers: &HeaderMap,
) -> Result<Arc<Access>, Unauthenticated> {
    if identity.tokens().is_some() {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        if let Some(value) = given.next() {
            if given.next().is_some() {
                return Err(Unauthenticated::Token("the request has several authorization headers"));
            }
            let token = value.to_str().ok().and_then(|text| text.split_once(' '));
            let token = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
            let (_, token) =
                token.ok_or(Unauthenticated::Token("authorization is not \"Bearer <token>\""))?;
            return identity.of_token(token);
        }
    }
    match connection {
        Credential::Known(access) => Ok(Arc::clone(access)),
        Credential::Certified(certified) => {
            tls.map_or(Err(Unauthenticated::Nothing), |tls| certified.access(tls))
        }
        Credential::Refused(error) => Err(error.clone()),
        Credential::Absent => Err(Unauthenticated::Nothing),
    }
}
