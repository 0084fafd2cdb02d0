//! Finds the principal of a credential and its roles.

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
    /// Creates the identities of a checked configuration. The keys of tokens are read later, by [`Tokens::reload`].
    #[must_use]
    pub fn new(config: &IdentityConfig) -> Identity {
        Identity {
            trust_domain: config.trust_domain.clone(),
            grants: Grants::new(&config.grants),
            tokens: config.jwt.clone().map(Tokens::new),
        }
    }

    /// The principal of a verified certificate, with its roles.
    ///
    /// # Errors
    /// The certificate does not name one principal of the trust domain.
    pub fn of_certificate(&self, certificate: &CertificateDer<'_>) -> Result<Arc<Access>, Unauthenticated> {
        let principal = certificate::principal(certificate, self.trust_domain.as_deref())?;
        Ok(Arc::new(self.grants.of(principal)))
    }

    /// The principal of the user of a Unix socket, with its roles.
    #[must_use]
    pub fn of_uid(&self, uid: u32) -> Arc<Access> {
        Arc::new(self.grants.of(Principal::of_uid(uid)))
    }

    /// The principal of a token, with its roles.
    ///
    /// # Errors
    /// The server accepts no tokens, or does not accept this one.
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
