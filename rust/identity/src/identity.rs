//! Turns credentials into what their bearers may do.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use crate::certificate;
use crate::config::IdentityConfig;
use crate::error::Unauthenticated;
use crate::grants::{Access, Grants};
use crate::jwt::Tokens;
use crate::principal::Principal;

/// The identities that a server accepts, and their grants.
#[derive(Debug)]
pub struct Identity {
    trust_domain: Option<String>,
    grants: Grants,
    tokens: Option<Tokens>,
}

// === impl Identity ===

impl Identity {
    /// The identities of a checked configuration. Keys of tokens are read by [`Tokens::reload`].
    #[must_use]
    pub fn new(config: &IdentityConfig) -> Identity {
        Identity {
            trust_domain: config.trust_domain.clone(),
            grants: Grants::new(&config.grants),
            tokens: config.jwt.clone().map(Tokens::new),
        }
    }

    /// What the bearer of a verified certificate may do.
    ///
    /// # Errors
    /// The certificate does not name one principal of the trust domain.
    pub fn of_certificate(&self, certificate: &CertificateDer<'_>) -> Result<Arc<Access>, Unauthenticated> {
        let principal = certificate::principal(certificate, self.trust_domain.as_deref())?;
        Ok(Arc::new(self.grants.of(principal)))
    }

    /// What the user of a Unix socket may do.
    #[must_use]
    pub fn of_uid(&self, uid: u32) -> Arc<Access> {
        Arc::new(self.grants.of(Principal::of_uid(uid)))
    }

    /// What the bearer of a token may do.
    ///
    /// # Errors
    /// No tokens are accepted here, or not this one.
    pub fn of_token(&self, token: &str) -> Result<Arc<Access>, Unauthenticated> {
        let tokens = self.tokens.as_ref().ok_or(Unauthenticated::Token("this server accepts none"))?;
        tokens.access(token, &self.grants)
    }

    /// The verifier of tokens, if any are accepted.
    #[must_use]
    pub fn tokens(&self) -> Option<&Tokens> {
        self.tokens.as_ref()
    }
}
