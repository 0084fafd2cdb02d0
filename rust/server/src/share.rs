//! Limits what one peer, and one connection of it, may have in flight, in requests and in bytes of their messages, so
//! that one client cannot use the places, or the memory, of all.
//!
//! A peer has a fixed share of `max_inflight`. Within it, a connection may have at most as many requests in flight as
//! the share has free places. So one connection alone reaches half of the share, eight connections that take all they
//! can leave a ninth of it free, and a connection with few requests always finds a place.
//!
//! The bytes of messages are counted when they arrive, not when they are announced, so that a client that announces a
//! large message and sends nothing uses nothing of the limit.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, PoisonError};

use scorer_engine::Rejection;
use scorer_http::{Limit, Peer};

/// The shares of all peers that are connected; locked when a connection opens and when it closes.
#[derive(Debug)]
pub(crate) struct Shares {
    most: Most,
    /// Bytes of messages in flight, of all peers.
    bytes: AtomicUsize,
    peers: Mutex<HashMap<Peer, Arc<Used>>>,
}

/// The limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// Requests in flight per peer.
    pub(crate) requests: usize,
    /// Bytes of messages in flight, of all peers.
    pub(crate) bytes: usize,
    /// Bytes of messages in flight per peer.
    pub(crate) bytes_per_peer: usize,
}

/// What one peer has in flight.
#[derive(Debug, Default)]
struct Used {
    requests: AtomicUsize,
    bytes: AtomicUsize,
}

/// The share of one connection.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    peer: Peer,
    of_peer: Arc<Used>,
    /// The connection's requests in flight.
    own: AtomicUsize,
}

/// The bytes of one request's message that count against the limits; dropping it subtracts them.
#[derive(Debug)]
pub(crate) struct Held {
    share: Arc<Share>,
    bytes: AtomicUsize,
}

/// One request's place in a share; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct ShareGuard(Arc<Share>);

// === impl Shares ===

impl Shares {
    pub(crate) fn new(most: Most) -> Arc<Shares> {
        Arc::new(Shares { most, bytes: AtomicUsize::new(0), peers: Mutex::default() })
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
    /// [`Rejection::ShareUsed`] if the share of the peer or of the connection is in use.
    pub(crate) fn enter(self: &Arc<Share>) -> Result<ShareGuard, Rejection> {
        // The guard exists before the check, so that a rejection frees the place too.
        let of_peer = self.of_peer.requests.fetch_add(1, AcqRel);
        let own = self.own.fetch_add(1, AcqRel);
        let guard = ShareGuard(Arc::clone(self));
        let left = self.shares.most.requests.saturating_sub(of_peer);
        if left == 0 {
            return Err(Rejection::ShareUsed { got: of_peer, of: "peer" });
        }
        if own >= left {
            return Err(Rejection::ShareUsed { got: own, of: "connection" });
        }
        Ok(guard)
    }

    /// The count of a request whose message has not arrived yet: 0 bytes.
    pub(crate) fn hold(self: &Arc<Share>) -> Held {
        Held { share: Arc::clone(self), bytes: AtomicUsize::new(0) }
    }
}

// === impl Held ===

impl Held {
    /// Sets how many bytes of the message are in memory.
    ///
    /// # Errors
    /// The limit that they exceed; then the message counts as 0 bytes.
    pub(crate) fn set(&self, bytes: usize) -> Result<(), Limit> {
        let Share { shares, of_peer, .. } = &*self.share;
        let before = self.bytes.swap(bytes, AcqRel);
        let add = |to: &AtomicUsize| {
            // The difference is negative, and wraps around, if there are fewer bytes than before.
            to.fetch_add(bytes.wrapping_sub(before), AcqRel).wrapping_add(bytes.wrapping_sub(before))
        };
        let (all, own) = (add(&shares.bytes), add(&of_peer.bytes));
        if bytes <= before {
            return Ok(());
        }
        let limit = if own > shares.most.bytes_per_peer {
            Limit::InflightBytesPerPeer
        } else if all > shares.most.bytes {
            Limit::InflightBytes
        } else {
            return Ok(());
        };
        self.give_back();
        Err(limit)
    }

    fn give_back(&self) {
        let Share { shares, of_peer, .. } = &*self.share;
        let bytes = self.bytes.swap(0, AcqRel);
        shares.bytes.fetch_sub(bytes, AcqRel);
        of_peer.bytes.fetch_sub(bytes, AcqRel);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut peers = self.shares.peers.lock().unwrap_or_else(PoisonError::into_inner);
        // The references of the map and of this connection are the only ones: the peer has no other connection.
        if Arc::strong_count(&self.of_peer) == 2 {
            peers.remove(&self.peer);
        }
    }
}

impl Drop for ShareGuard {
    fn drop(&mut self) {
        self.0.own.fetch_sub(1, AcqRel);
        self.0.of_peer.requests.fetch_sub(1, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Acquire;

    use super::*;

    fn shares(requests: usize) -> Arc<Shares> {
        Shares::new(Most { requests, bytes: 100, bytes_per_peer: 60 })
    }

    #[test]
    fn bytes_are_limited_in_all_and_of_each_peer() {
        let shares = shares(10);
        let (one, other) = (shares.connect(Peer::User(1)), shares.connect(Peer::User(2)));
        let (first, second) = (one.hold(), one.hold());
        assert_eq!((first.set(30), first.set(40), second.set(20)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(second.set(21), Err(Limit::InflightBytesPerPeer));
        // A refused message holds no memory.
        let third = other.hold();
        assert_eq!((third.set(60), second.set(1)), (Ok(()), Err(Limit::InflightBytes)));
        // A complete message makes room for the next one of its stream.
        assert_eq!((third.set(0), second.set(20)), (Ok(()), Ok(())));
        drop((first, second, third));
        assert_eq!((shares.bytes.load(Acquire), one.of_peer.bytes.load(Acquire)), (0, 0));
    }

    fn fill(share: &Arc<Share>) -> Vec<ShareGuard> {
        std::iter::from_fn(|| share.enter().ok()).collect()
    }

    #[test]
    fn greedy_connections_leave_room_for_others() {
        let shares = shares(90);
        let peer = Peer::User(1);
        let greedy: Vec<_> = (0..8).map(|_| shares.connect(peer)).collect();
        let mut held: Vec<_> = greedy.iter().map(fill).collect();
        // The first connections took more. When the connections take turns, each gets a ninth.
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
        let shares = shares(1);
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
