//! Who sends to this pool, and how much.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Servers that are counted by name; further ones are counted together.
const MOST: usize = 256;
/// Those together. No server is called this: a name has no spaces.
const OTHERS: &str = "all others";

/// Counters by sending server.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    by_server: Mutex<(BTreeMap<String, Received>, String)>,
}

/// What came from one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Received {
    /// Calls.
    pub calls: u64,
    /// Requests that every lane took that wanted it.
    pub accepted: u64,
    /// Requests that no lane observes here, or that a lane had no room for.
    pub dropped: u64,
}

// === impl Senders ===

impl Senders {
    pub(crate) fn count(&self, server: &str, accepted: u64, dropped: u64) {
        let mut guard = self.by_server.lock().unwrap_or_else(PoisonError::into_inner);
        let (by_server, last) = &mut *guard;
        let known = by_server.contains_key(server) || by_server.len() < MOST;
        let received = by_server.entry(if known { server } else { OTHERS }.to_owned()).or_default();
        received.calls += 1;
        received.accepted += accepted;
        received.dropped += dropped;
        if last != server {
            server.clone_into(last);
        }
    }

    /// Who called last; empty before the first.
    pub(crate) fn last(&self) -> String {
        self.by_server.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Received> {
        self.by_server.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_counted_until_there_are_too_many() {
        let senders = Senders::default();
        for number in 0..MOST + 3 {
            senders.count(&format!("server-{number}"), 2, 1);
        }
        senders.count("server-0", 2, 1);
        let all = senders.all();
        assert_eq!(all.len(), MOST + 1);
        assert_eq!(all["server-0"], Received { calls: 2, accepted: 4, dropped: 2 });
        assert_eq!(all[OTHERS], Received { calls: 3, accepted: 6, dropped: 3 });
        assert_eq!(senders.last(), "server-0");
    }
}
