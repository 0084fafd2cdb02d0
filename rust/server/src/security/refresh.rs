//! Reads certificates and keys again when their files change.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use scorer_engine::Level;
use scorer_identity::jwt::Tokens;
use scorer_identity::tls::Reloaded;
use serde_json::json;

use super::Security;

/// One kind of file and when it is read next.
struct Watched {
    interval: Duration,
    next: Instant,
    broken: bool,
    read: fn(&Security) -> Reloaded,
    replaced: &'static str,
    rejected: &'static str,
}

/// Reads files again until the other end of `stop` is dropped. Runs on a thread of its own: files may be slow.
pub(crate) fn keep_current(security: &Security, stop: &Receiver<()>) {
    let mut watched = security.watched();
    loop {
        let Some(next) = watched.iter().map(|watched| watched.next).min() else { return };
        match stop.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
        for file in &mut watched {
            if file.next <= Instant::now() {
                let result = (file.read)(security);
                file.next = Instant::now() + file.interval;
                security.note(file, result);
            }
        }
    }
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

    fn watched(&self) -> Vec<Watched> {
        let now = Instant::now();
        let tls = self.tls().map(|tls| Watched {
            interval: tls.reload_interval(),
            next: now + tls.reload_interval(),
            broken: false,
            read: |security| security.tls().map_or(Reloaded::Unchanged, |tls| tls.reload()),
            replaced: "tls_replaced",
            rejected: "tls_rejected",
        });
        let keys = self.tokens().map(|tokens| Watched {
            interval: tokens.reload_interval(),
            next: now + tokens.reload_interval(),
            broken: tokens.keys().expired,
            read: |security| security.tokens().map_or(Reloaded::Unchanged, Tokens::reload),
            replaced: "jwt_keys_replaced",
            rejected: "jwt_keys_rejected",
        });
        tls.into_iter().chain(keys).collect()
    }

    fn note(&self, file: &mut Watched, result: Reloaded) {
        let counters = &self.counters;
        match result {
            Reloaded::Unchanged => {}
            Reloaded::Replaced => {
                counters.replaced.fetch_add(1, Relaxed);
                if std::mem::replace(&mut file.broken, false) {
                    counters.outdated.fetch_sub(1, Relaxed);
                }
                self.events.push(Level::Info, file.replaced, json!({}));
            }
            Reloaded::Rejected(error) => {
                counters.rejected.fetch_add(1, Relaxed);
                if !std::mem::replace(&mut file.broken, true) {
                    counters.outdated.fetch_add(1, Relaxed);
                }
                let fields = json!({"error": error.to_string(), "remedy": "those read before stay in use"});
                self.events.push(Level::Error, file.rejected, fields);
            }
        }
    }
}
