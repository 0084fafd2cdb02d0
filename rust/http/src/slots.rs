//! Counts the open connections of a listener, in total and per peer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Limit, Peer, Settings};

/// The counts of a listener's open connections. They are locked when a connection opens and when it closes.
#[derive(Debug)]
pub(crate) struct Slots {
    most: usize,
    most_per_peer: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_peer: HashMap<Peer, usize>,
}

/// One counted connection. Dropping it decrements the counts.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Slots>,
    peer: Peer,
}

// === impl Slots ===

impl Slots {
    pub(crate) fn new(settings: &Settings) -> Slots {
        let Settings { max_connections, max_connections_per_peer, .. } = *settings;
        Slots { most: max_connections, most_per_peer: max_connections_per_peer, open: Mutex::default() }
    }

    /// Counts one connection of `peer`.
    ///
    /// # Errors
    /// Returns the limit that the connection would exceed.
    pub(crate) fn take(self: &Arc<Slots>, peer: Peer) -> Result<Slot, Limit> {
        let mut open = self.lock();
        if open.all >= self.most {
            return Err(Limit::Connections);
        }
        if open.by_peer.get(&peer).is_some_and(|count| *count >= self.most_per_peer) {
            return Err(Limit::ConnectionsPerPeer);
        }
        open.all += 1;
        *open.by_peer.entry(peer).or_default() += 1;
        Ok(Slot { slots: Arc::clone(self), peer })
    }

    /// Whether more than three quarters of the greatest number of connections are open.
    pub(crate) fn is_crowded(&self) -> bool {
        self.lock().all > self.most / 4 * 3
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.slots.lock();
        open.all -= 1;
        if let Some(count) = open.by_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.by_peer.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_share_and_all_have_the_total() {
        let settings = Settings { max_connections: 4, max_connections_per_peer: 2, ..Settings::default() };
        let slots = Arc::new(Slots::new(&settings));
        let take = |user| slots.take(Peer::User(user));
        let first = take(1).unwrap();
        let second = take(1).unwrap();
        assert_eq!(take(1).unwrap_err(), Limit::ConnectionsPerPeer);
        assert!(!slots.is_crowded());
        let others = (take(2).unwrap(), take(2).unwrap());
        assert!(slots.is_crowded());
        assert_eq!(take(3).unwrap_err(), Limit::Connections);
        drop(first);
        let third = take(1).unwrap();
        drop((second, third, others));
        let open = slots.lock();
        assert!(open.all == 0 && open.by_peer.is_empty());
    }
}
