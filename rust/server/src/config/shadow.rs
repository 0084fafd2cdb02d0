//! The role of a server.

use serde::{Deserialize, Serialize};

/// The role of a server.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The server answers requests.
    #[default]
    Live,
    /// The server observes requests that live servers send to it, and answers none.
    Shadow,
}

// === impl Role ===

impl Role {
    /// The name in settings, status and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Live => "live",
            Role::Shadow => "shadow",
        }
    }
}
