//! The header and the claims of a token. A member that is given twice, or has another type, is an error.

use serde::Deserialize;

/// The header.
#[derive(Deserialize)]
pub(super) struct Header {
    pub(super) alg: String,
    pub(super) kid: Option<String>,
    /// Extensions that a verifier must support; this one supports none.
    pub(super) crit: Option<serde_json::Value>,
    /// Detached or unencoded payloads are not accepted.
    pub(super) b64: Option<serde_json::Value>,
}

/// The claims that this server reads.
#[derive(Deserialize)]
pub(super) struct Claims {
    pub(super) iss: String,
    pub(super) sub: String,
    pub(super) aud: Audience,
    pub(super) exp: f64,
    pub(super) nbf: Option<f64>,
    pub(super) iat: Option<f64>,
}

/// One audience or several.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Audience {
    One(String),
    Several(Vec<String>),
}

// === impl Audience ===

impl Audience {
    pub(super) fn names(&self, audience: &str) -> bool {
        match self {
            Audience::One(one) => one == audience,
            Audience::Several(several) => several.iter().any(|one| one == audience),
        }
    }
}

// === impl Claims ===

impl Claims {
    /// Checks the claims at the time `now`, in seconds since the Unix epoch, and returns the second at which the token
    /// expires.
    pub(super) fn check(
        &self,
        issuer: &str,
        audience: &str,
        now: f64,
        leeway: f64,
    ) -> Result<f64, &'static str> {
        if self.iss != issuer {
            return Err("it is another issuer's (iss)");
        }
        if !self.aud.names(audience) {
            return Err("it is for another audience (aud)");
        }
        if !self.exp.is_finite() || self.exp + leeway <= now {
            return Err("it has expired (exp)");
        }
        let begins = self.nbf.unwrap_or(f64::NEG_INFINITY).max(self.iat.unwrap_or(f64::NEG_INFINITY));
        if begins > now + leeway {
            return Err("it is not valid yet (nbf, iat)");
        }
        Ok(self.exp + leeway)
    }
}
