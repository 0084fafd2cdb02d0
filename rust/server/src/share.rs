//! What one peer, and one connection of it, may have in flight, so that one client never takes the places of all.
//!
//! A peer has a fixed share of `max_inflight`. Within it a connection may have as many requests in flight as are left:
//! one connection alone comes to half of the share, eight that take all they can leave a ninth of it, and a connection
//! with few requests finds room beside any number of greedy ones.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, PoisonError};

use scorer_engine::Rejection;
use scorer_http::Peer;

/// The shares of all peers that are connected; locked when a connection opens and when it closes.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    peers: Mutex<HashMap<Peer, Arc<AtomicUsize>>>,
}

/// The share of one connection.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    peer: Peer,
    /// Requests in flight of the peer, and of the connection.
    of_peer: Arc<AtomicUsize>,
    own: AtomicUsize,
}

/// One request's place in a share; given back when dropped.
#[derive(Debug)]
pub(crate) struct ShareGuard(Arc<Share>);

// === impl Shares ===

impl Shares {
    /// Of `most` requests in flight per peer.
    pub(crate) fn new(most: usize) -> Arc<Shares> {
        Arc::new(Shares { most, peers: Mutex::default() })
    }

    /// The share of a new connection.
    pub(crate) fn connect(self: &Arc<Shares>, peer: Peer) -> Arc<Share> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = Arc::clone(peers.entry(peer).or_default());
        Arc::new(Share { shares: Arc::clone(self), peer, of_peer, own: AtomicUsize::new(0) })
    }
}

// === impl Share ===

impl Share {
    /// Takes a place for one request.
    ///
    /// # Errors
    /// [`Rejection::ShareUsed`].
    pub(crate) fn enter(self: &Arc<Share>) -> Result<ShareGuard, Rejection> {
        // The guard exists before the check, so that a rejection gives its place back as well.
        let of_peer = self.of_peer.fetch_add(1, AcqRel);
        let own = self.own.fetch_add(1, AcqRel);
        let guard = ShareGuard(Arc::clone(self));
        let left = self.shares.most.saturating_sub(of_peer);
        if left == 0 {
            return Err(Rejection::ShareUsed { got: of_peer, of: "peer" });
        }
        if own >= left {
            return Err(Rejection::ShareUsed { got: own, of: "connection" });
        }
        Ok(guard)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut peers = self.shares.peers.lock().unwrap_or_else(PoisonError::into_inner);
        // The map's own and this one: no other connection of the peer is left.
        if Arc::strong_count(&self.of_peer) == 2 {
            peers.remove(&self.peer);
        }
    }
}

impl Drop for ShareGuard {
    fn drop(&mut self) {
        self.0.own.fetch_sub(1, AcqRel);
        self.0.of_peer.fetch_sub(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(share: &Arc<Share>) -> Vec<ShareGuard> {
        std::iter::from_fn(|| share.enter().ok()).collect()
    }

    #[test]
    fn greedy_connections_leave_room_for_others() {
        let shares = Shares::new(90);
        let peer = Peer::User(1);
        let greedy: Vec<_> = (0..8).map(|_| shares.connect(peer)).collect();
        let mut held: Vec<_> = greedy.iter().map(fill).collect();
        // Whoever came first took more; taking turns, each has a ninth.
        held.clear();
        for _ in 0..90 {
            held.push(greedy.iter().filter_map(|share| share.enter().ok()).collect());
        }
        let modest = shares.connect(peer);
        let room = fill(&modest);
        assert!((4..=10).contains(&room.len()), "{}", room.len());
        assert!(matches!(modest.enter(), Err(Rejection::ShareUsed { of: "connection", .. })));
        let other = shares.connect(Peer::User(2));
        assert_eq!(fill(&other).len(), 45, "another peer's share is untouched");
        drop((held, room));
        assert_eq!(fill(&greedy[0]).len(), 45);
    }

    #[test]
    fn one_place_can_be_used_and_peers_leave_no_trace() {
        let shares = Shares::new(1);
        let share = shares.connect(Peer::User(1));
        let guard = share.enter().unwrap();
        let second = shares.connect(Peer::User(1));
        assert!(matches!(second.enter(), Err(Rejection::ShareUsed { of: "peer", got: 1 })));
        drop(guard);
        drop(second.enter().unwrap());
        drop(share);
        assert_eq!(shares.peers.lock().unwrap().len(), 1);
        drop(second);
        assert!(shares.peers.lock().unwrap().is_empty());
    }
}
