//! The roles of principals, and the checkpoints at which they have them.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Unauthenticated;
use crate::principal::Principal;

/// A permission that a grant can give to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Score events and rows.
    Score,
    /// Request the selection of actions.
    Select,
    /// Report outcomes of every source but a reviewer.
    ReportOutcomes,
    /// Read the description of a checkpoint: schemas, actions, metadata, reflection.
    Describe,
    /// Request explanations of scores.
    Explain,
    /// Send requests to a shadow pool for observation, as live servers do.
    Observe,
    /// Call the control service: lanes, swaps, rollbacks, status.
    Operate,
    /// Report outcomes whose source is a reviewer, as a platform does.
    ReportReviews,
    /// Record events, from which features are computed.
    RecordEvents,
}

// === impl Role ===

impl Role {
    /// The role's name in settings and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Score => "score",
            Role::Select => "select",
            Role::ReportOutcomes => "report_outcomes",
            Role::Describe => "describe",
            Role::Explain => "explain",
            Role::Observe => "observe",
            Role::Operate => "operate",
            Role::ReportReviews => "report_reviews",
            Role::RecordEvents => "record_events",
        }
    }
}

/// A grant: roles for a principal, or for all principals that match a pattern.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct GrantConfig {
    /// `spiffe://…`, `dns:…`, `jwt:…` or `uid:…`; one that ends in `*` matches every name that begins so.
    pub principal: String,
    /// The roles that the principal gets.
    pub roles: Vec<Role>,
    /// The checkpoints at which it gets them. A name that ends in `*` matches every checkpoint that begins with the
    /// text before it.
    #[serde(default = "everywhere")]
    pub checkpoints: Vec<String>,
    /// Principals of one tenant accept one another's decision tokens; absent: the principal is a tenant of its own.
    #[serde(default)]
    pub tenant: Option<String>,
}

fn everywhere() -> Vec<String> {
    vec!["*".to_owned()]
}

/// A set of roles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Roles(u16);

// === impl Roles ===

impl Roles {
    fn of(roles: &[Role]) -> Roles {
        Roles(roles.iter().fold(0, |bits, &role| bits | 1 << role as u8))
    }

    fn has(self, role: Role) -> bool {
        self.0 & (1 << role as u8) != 0
    }
}

/// Matches one name, or, if it ends in `*`, every name that begins with the text before it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Whole(String),
    Beginning(String),
}

// === impl Pattern ===

impl Pattern {
    fn of(text: &str) -> Pattern {
        text.strip_suffix('*')
            .map_or_else(|| Pattern::Whole(text.to_owned()), |start| Pattern::Beginning(start.to_owned()))
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::Whole(whole) => whole == name,
            Pattern::Beginning(beginning) => name.starts_with(beginning.as_str()),
        }
    }
}

/// Roles at checkpoints, for the principals that match.
#[derive(Debug)]
struct Grant {
    principal: Pattern,
    tenant: Option<Arc<str>>,
    given: Arc<Given>,
}

#[derive(Debug)]
struct Given {
    roles: Roles,
    checkpoints: Vec<Pattern>,
}

/// All grants. Everything that they do not grant is denied.
#[derive(Debug)]
pub struct Grants {
    grants: Vec<Grant>,
    hasher: RandomState,
}

/// A principal with its roles.
#[derive(Debug)]
pub struct Access {
    principal: Principal,
    /// The tenant of the first matching grant that names one.
    tenant: Option<Arc<str>>,
    key: u64,
    given: Vec<Arc<Given>>,
}

/// The reason why an authenticated caller is denied. The message names the principal and the role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No grant gives the role.
    #[error("{principal} has no grant of the role {}; add one to identity.grants", role.as_str())]
    Role {
        /// The caller.
        principal: Principal,
        /// The role that the call needs.
        role: Role,
    },
    /// The role is granted only at other checkpoints.
    #[error(
        "{principal} has no grant of the role {} at this checkpoint; add the checkpoint to its grant",
        role.as_str()
    )]
    Checkpoint {
        /// The caller.
        principal: Principal,
        /// The role that the call needs.
        role: Role,
    },
}

/// The reason why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The caller cannot be authenticated.
    #[error(transparent)]
    Unauthenticated(#[from] Unauthenticated),
    /// The caller is authenticated and does not have the role.
    #[error(transparent)]
    Denied(#[from] Denied),
}

// === impl Denied ===

impl Denied {
    /// The caller.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        match self {
            Denied::Role { principal, .. } | Denied::Checkpoint { principal, .. } => principal,
        }
    }
}

// === impl Grants ===

impl Grants {
    /// Builds the table of these grants.
    #[must_use]
    pub fn new(grants: &[GrantConfig]) -> Grants {
        let grants = grants
            .iter()
            .map(|grant| Grant {
                principal: Pattern::of(&grant.principal),
                tenant: grant.tenant.as_deref().map(Arc::from),
                given: Arc::new(Given {
                    roles: Roles::of(&grant.roles),
                    checkpoints: grant.checkpoints.iter().map(|name| Pattern::of(name)).collect(),
                }),
            })
            .collect();
        Grants { grants, hasher: RandomState::new() }
    }

    /// The roles of a principal; none if no grant matches.
    #[must_use]
    pub fn of(&self, principal: Principal) -> Access {
        let matching = || self.grants.iter().filter(|grant| grant.principal.matches(principal.as_str()));
        let given = matching().map(|grant| Arc::clone(&grant.given)).collect();
        let tenant = matching().find_map(|grant| grant.tenant.clone());
        Access { key: self.hasher.hash_one(principal.as_str()), principal, tenant, given }
    }
}

// === impl Access ===

impl Access {
    /// The principal.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The tenant for which it calls: that of its grants, or the principal itself.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.tenant.as_deref().unwrap_or(self.principal.as_str())
    }

    /// A hash of the principal under a random key of this process, so that no caller can construct a name with the hash
    /// of another.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Checks that a role is granted at any checkpoint.
    ///
    /// # Errors
    /// [`Denied::Role`] if no grant gives the role.
    pub fn check(&self, role: Role) -> Result<(), Denied> {
        if self.given.iter().any(|given| given.roles.has(role)) {
            return Ok(());
        }
        Err(Denied::Role { principal: self.principal.clone(), role })
    }

    /// Whether a role is granted at a checkpoint.
    #[must_use]
    pub fn allows(&self, role: Role, checkpoint: &str) -> bool {
        let at = |given: &Given| given.checkpoints.iter().any(|pattern| pattern.matches(checkpoint));
        self.given.iter().any(|given| given.roles.has(role) && at(given))
    }

    /// Checks that a role is granted at a checkpoint.
    ///
    /// # Errors
    /// [`Denied`] if no grant gives the role at the checkpoint.
    pub fn check_at(&self, role: Role, checkpoint: &str) -> Result<(), Denied> {
        if self.allows(role, checkpoint) {
            return Ok(());
        }
        self.check(role)?;
        Err(Denied::Checkpoint { principal: self.principal.clone(), role })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants() -> Grants {
        let config: Vec<GrantConfig> = serde_json::from_str(
            r#"[{"principal":"spiffe://example.org/checkout","roles":["score","select"],"checkpoints":["fraud.*"]},
                {"principal":"spiffe://example.org/checkout","roles":["report_outcomes"],"checkpoints":["action"]},
                {"principal":"spiffe://example.org/ops/*","roles":["operate"]}]"#,
        )
        .unwrap();
        Grants::new(&config)
    }

    fn access(name: &str) -> Access {
        grants().of(Principal::of_name(name.to_owned()))
    }

    #[test]
    fn roles_hold_at_the_checkpoints_of_their_own_grant() {
        let checkout = access("spiffe://example.org/checkout");
        assert!(
            checkout.allows(Role::Score, "fraud.checkout") && checkout.allows(Role::ReportOutcomes, "action")
        );
        assert!(
            !checkout.allows(Role::ReportOutcomes, "fraud.checkout")
                && !checkout.allows(Role::Score, "action")
        );
        assert!(matches!(checkout.check_at(Role::Score, "action"), Err(Denied::Checkpoint { .. })));
        assert!(matches!(checkout.check_at(Role::Operate, "action"), Err(Denied::Role { .. })));
    }

    #[test]
    fn a_principal_is_its_own_tenant_unless_a_grant_names_one() {
        let config: Vec<GrantConfig> = serde_json::from_str(
            r#"[{"principal":"dns:a","roles":["score"]},{"principal":"dns:b","roles":["score"],"tenant":"shop"},
                {"principal":"dns:*","roles":["describe"],"tenant":"rest"}]"#,
        )
        .unwrap();
        let tenant =
            |name: &str| Grants::new(&config).of(Principal::of_name(name.to_owned())).tenant().to_owned();
        assert_eq!(["dns:a", "dns:b", "dns:c", "uid:0"].map(tenant), ["rest", "shop", "rest", "uid:0"]);
    }

    #[test]
    fn a_principal_without_a_grant_may_do_nothing() {
        for name in ["spiffe://example.org/checkout2", "spiffe://example.org/ops", "dns:a", "uid:0"] {
            let access = access(name);
            for role in [
                Role::Score,
                Role::Select,
                Role::ReportOutcomes,
                Role::Describe,
                Role::Explain,
                Role::Observe,
                Role::Operate,
                Role::ReportReviews,
            ] {
                assert!(access.check(role).is_err(), "{name}");
            }
        }
        let operator = access("spiffe://example.org/ops/ann");
        assert!(operator.check(Role::Operate).is_ok() && operator.check(Role::Score).is_err());
        assert!(operator.allows(Role::Operate, "anything"));
    }

    #[test]
    fn a_denial_names_principal_and_role_in_one_line() {
        let error = access("dns:web").check(Role::Score).unwrap_err().to_string();
        assert_eq!(error, "dns:web has no grant of the role score; add one to identity.grants");
    }
}
