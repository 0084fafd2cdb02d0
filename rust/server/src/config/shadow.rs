//! What a server is for.

use serde::{Deserialize, Serialize};

/// What a server is for.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It answers.
    #[default]
    Live,
    /// It observes what live servers send it, and answers no requests.
    Shadow,
}

// === impl Role ===

impl Role {
    /// The word in settings, status and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Live => "live",
            Role::Shadow => "shadow",
        }
    }
}
