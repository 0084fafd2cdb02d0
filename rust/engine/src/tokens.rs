//! Issues and verifies decision tokens.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwapOption;
use scorer_token::{Claims, KeyRing, Kind as TokenKind, Scope, Token, TokenError};

use crate::arrival::Arrival;
use crate::checkpoint::Checkpoint;
use crate::config::Kind;
use crate::engine::Engine;

/// The current keys and their counters.
#[derive(Default)]
pub struct Tokens {
    ring: ArcSwapOption<KeyRing>,
    /// Number of key files that were loaded, including the first.
    pub loads: AtomicU64,
    /// Number of key files that were refused, so that the previous keys stayed in use.
    pub refusals: AtomicU64,
}

// === impl Tokens ===

impl Tokens {
    /// Replaces the keys. The first of them signs all answers that start after this call.
    pub fn set(&self, ring: KeyRing) {
        self.ring.store(Some(Arc::new(ring)));
        self.loads.fetch_add(1, Relaxed);
    }

    /// Whether tokens are issued.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.ring.load().is_some()
    }

    /// Number of current keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.ring.load().as_deref().map_or(0, |ring| ring.ids().count())
    }

    /// Verifies the token of a report. Returns `None` if there are no keys.
    pub(crate) fn verify<'a>(
        &self,
        token: &'a [u8],
        scope: &Scope<'_>,
        reported: &str,
    ) -> Option<Result<Token<'a>, TokenError>> {
        self.ring.load().as_deref().map(|ring| ring.verify(token, scope, reported))
    }
}

// === impl Engine ===

impl Engine {
    /// Creates the token for the reply of an answer; empty without keys, or if the request names no checkpoint.
    #[must_use]
    pub fn decision_token(&self, arrival: &Arrival, id: &str, claims: &Claims) -> Vec<u8> {
        let ring = self.tokens.ring.load();
        let kind = if claims.kind == TokenKind::Action { Kind::Action } else { Kind::Score };
        let mut checkpoints =
            arrival.steps().filter_map(|step| Some(self.checkpoints.at(step.checkpoint()?)));
        let checkpoint = checkpoints.find(|checkpoint| checkpoint.kind == kind);
        let (Some(ring), Some(checkpoint)) = (ring.as_deref(), checkpoint) else {
            return Vec::new();
        };
        let scope = scope(checkpoint, arrival);
        ring.sign(claims, &scope, id).map_or_else(Vec::new, |token| token.as_bytes().to_vec())
    }
}

/// Returns the scope in which a request's token is valid.
pub(crate) fn scope<'a>(checkpoint: &'a Checkpoint, arrival: &Arrival) -> Scope<'a> {
    Scope {
        checkpoint: &checkpoint.name,
        checkpoint_fingerprint: checkpoint.fingerprint,
        tenant: arrival.tenant,
    }
}
