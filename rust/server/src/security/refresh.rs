//! Reads certificates and keys again when their files change.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use scorer_engine::Level;
use scorer_identity::jwt::Tokens;
use scorer_identity::tls::Reloaded;
use serde_json::json;

use super::Security;
use crate::files::Followed;

/// One kind of file: how it is read, and the events that report the result.
struct Kind {
    broken: bool,
    read: fn(&Security) -> Reloaded,
    replaced: &'static str,
    rejected: &'static str,
}

/// The followed files, of those that are configured.
pub(crate) fn followed(security: &Arc<Security>) -> Vec<Followed> {
    let certificates = security.tls().map(|tls| {
        let kind = Kind {
            broken: false,
            read: |security| security.tls().map_or(Reloaded::Unchanged, |tls| tls.reload()),
            replaced: "tls_replaced",
            rejected: "tls_rejected",
        };
        (tls.reload_interval(), kind)
    });
    let keys = security.tokens().map(|tokens| {
        let kind = Kind {
            broken: tokens.keys().expired,
            read: |security| security.tokens().map_or(Reloaded::Unchanged, Tokens::reload),
            replaced: "jwt_keys_replaced",
            rejected: "jwt_keys_rejected",
        };
        (tokens.reload_interval(), kind)
    });
    let follow = |(interval, mut kind): (Duration, Kind)| {
        let security = Arc::clone(security);
        Followed::every(interval, move || {
            let result = (kind.read)(&security);
            security.note(&mut kind, result);
        })
    };
    certificates.into_iter().chain(keys).map(follow).collect()
}

// === impl Security ===

impl Security {
    /// Whether there are files to read again.
    pub(crate) fn has_files(&self) -> bool {
        self.tls().is_some() || self.tokens().is_some()
    }

    /// The verifier of tokens.
    pub(crate) fn tokens(&self) -> Option<&Tokens> {
        self.identity()?.tokens()
    }

    /// Reads the keys of tokens for the first time.
    pub(super) fn read_keys(&self) {
        if let Some(Reloaded::Rejected(error)) = self.tokens().map(Tokens::reload) {
            self.counters.outdated.fetch_add(1, Relaxed);
            let fields = json!({"error": error.to_string()});
            self.events.push(Level::Error, "jwt_keys_rejected", fields);
        }
    }

    fn note(&self, kind: &mut Kind, result: Reloaded) {
        let counters = &self.counters;
        match result {
            Reloaded::Unchanged => {}
            Reloaded::Replaced => {
                counters.replaced.fetch_add(1, Relaxed);
                if std::mem::replace(&mut kind.broken, false) {
                    counters.outdated.fetch_sub(1, Relaxed);
                }
                self.events.push(Level::Info, kind.replaced, json!({}));
            }
            Reloaded::Rejected(error) => {
                counters.rejected.fetch_add(1, Relaxed);
                if !std::mem::replace(&mut kind.broken, true) {
                    counters.outdated.fetch_add(1, Relaxed);
                }
                let fields = json!({"error": error.to_string(), "remedy": "those read before stay in use"});
                self.events.push(Level::Error, kind.rejected, fields);
            }
        }
    }
}
