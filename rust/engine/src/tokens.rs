//! Decision tokens as the engine issues and accepts them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwapOption;
use scorer_token::{Claims, KeyRing, Scope, Token, TokenError};

use crate::arrival::Arrival;
use crate::checkpoint::Checkpoint;
use crate::engine::Engine;

/// The keys in force, and what is counted of them.
#[derive(Default)]
pub struct Tokens {
    ring: ArcSwapOption<KeyRing>,
    /// Key files that were read and are in force, the first one included.
    pub loads: AtomicU64,
    /// Key files that were refused; the keys before them stayed.
    pub refusals: AtomicU64,
}

// === impl Tokens ===

impl Tokens {
    /// Puts keys in force: answers that begin after this returns are signed by the first of them.
    pub fn set(&self, ring: KeyRing) {
        self.ring.store(Some(Arc::new(ring)));
        self.loads.fetch_add(1, Relaxed);
    }

    /// Whether tokens are issued.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.ring.load().is_some()
    }

    /// Keys in force.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.ring.load().as_deref().map_or(0, |ring| ring.ids().count())
    }

    /// Verifies the token of a report; `None` if there are no keys to verify it with.
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
    /// The token of an answer, as the reply carries it; empty without keys, or if the request names no checkpoint.
    #[must_use]
    pub fn decision_token(&self, arrival: &Arrival, id: &str, claims: &Claims) -> Vec<u8> {
        let ring = self.tokens.ring.load();
        let (Some(ring), Some(checkpoint)) = (ring.as_deref(), arrival.checkpoint()) else {
            return Vec::new();
        };
        let scope = scope(self.checkpoints.at(checkpoint), arrival);
        ring.sign(claims, &scope, id).map_or_else(Vec::new, |token| token.as_bytes().to_vec())
    }
}

/// Where a request's token is valid.
pub(crate) fn scope<'a>(checkpoint: &'a Checkpoint, arrival: &Arrival) -> Scope<'a> {
    Scope {
        checkpoint: &checkpoint.name,
        checkpoint_fingerprint: checkpoint.fingerprint,
        tenant: arrival.tenant,
    }
}
