//! Counts what each live server sends to this shadow pool.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// The largest number of servers counted by name; the others are counted together.
const MOST: usize = 256;
/// The name under which the others are counted. No server has it: the name of a server has no spaces.
const OTHERS: &str = "all others";

/// Counters by sending server.
#[derive(Debug, Default)]
pub(crate) struct Senders {
    by_server: Mutex<(BTreeMap<String, Received>, String)>,
}

/// What this pool received from one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Received {
    /// Calls.
    pub calls: u64,
    /// Requests that were queued for every lane that samples them.
    pub accepted: u64,
    /// Requests that no lane observes here, or for which the queue of a lane was full.
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

    /// The server that called last; empty before the first call.
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
