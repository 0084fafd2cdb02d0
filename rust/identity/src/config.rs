//! The settings of identity, which the control plane gives in JSON.

use serde::{Deserialize, Serialize};

use crate::certificate::spiffe_domain;
use crate::grants::GrantConfig;
use crate::jwt::JwtConfig;

/// Longest checkpoint pattern, bytes.
const MAX_CHECKPOINT: usize = 128;

/// The accepted callers and their roles. If identity is configured, every call needs a grant.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct IdentityConfig {
    /// The trust domain of the accepted SPIFFE ids; absent: every trust domain for which the authorities have signed a
    /// certificate.
    #[serde(default)]
    pub trust_domain: Option<String>,
    /// The accepted tokens; absent: none.
    #[serde(default)]
    pub jwt: Option<JwtConfig>,
    /// The roles of each principal.
    pub grants: Vec<GrantConfig>,
}

// === impl IdentityConfig ===

impl IdentityConfig {
    /// Adds a message for each broken rule to `wrong`.
    pub fn check(&self, wrong: &mut Vec<String>) {
        if let Some(domain) = &self.trust_domain
            && spiffe_domain(&format!("spiffe://{domain}/a")).is_none()
        {
            wrong.push(format!(
                "\"identity\": trust_domain {domain:?}; write a name such as \"example.org\", without spiffe://"
            ));
        }
        if self.grants.is_empty() {
            wrong.push(
                "\"identity\": grants is empty, so every call would be denied; add a grant or remove the section"
                    .to_owned(),
            );
        }
        for grant in &self.grants {
            grant.check(self.trust_domain.as_deref(), wrong);
        }
        if let Some(jwt) = &self.jwt {
            jwt.check(wrong);
        }
    }
}

// === impl GrantConfig ===

impl GrantConfig {
    fn check(&self, trust_domain: Option<&str>, wrong: &mut Vec<String>) {
        let GrantConfig { principal, roles, checkpoints, tenant } = self;
        let name = principal.strip_suffix('*').unwrap_or(principal);
        let known = ["spiffe://", "dns:", "jwt:", "uid:"].iter().any(|kind| name.starts_with(kind));
        if !known || name.contains('*') || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            wrong.push(format!(
                "\"identity\": grant for {principal:?}; a principal begins with spiffe://, dns:, jwt: or uid:, and \
                 \"*\" stands only at its end"
            ));
        } else if let (Some(domain), Some(rest)) = (trust_domain, name.strip_prefix("spiffe://"))
            && rest.strip_prefix(domain).is_none_or(|rest| !rest.starts_with('/'))
        {
            wrong.push(format!(
                "\"identity\": grant for {principal:?}; the trust domain is {domain:?}, so no caller can match"
            ));
        }
        if tenant.as_ref().is_some_and(String::is_empty) {
            wrong.push(format!(
                "\"identity\": grant for {principal:?} has an empty tenant; name it or remove the key"
            ));
        }
        if roles.is_empty() {
            wrong.push(format!(
                "\"identity\": grant for {principal:?} has no roles; add one or remove the grant"
            ));
        }
        if checkpoints.is_empty() {
            wrong.push(format!(
                "\"identity\": grant for {principal:?} has no checkpoints; write [\"*\"] for all of them"
            ));
        }
        for checkpoint in checkpoints {
            let name = checkpoint.strip_suffix('*').unwrap_or(checkpoint);
            if name.contains('*') || checkpoint.is_empty() || checkpoint.len() > MAX_CHECKPOINT {
                wrong.push(format!(
                    "\"identity\": grant for {principal:?}, checkpoint {checkpoint:?}; \"*\" stands only at its end"
                ));
            }
        }
    }
}
