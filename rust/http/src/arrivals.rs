//! Limits the rate at which a peer opens connections, and the peers that may open none for some time.
//!
//! Each peer has a token bucket, and a connection takes one token. A peer whose connection was closed because it broke
//! a rule has no tokens for [`Settings::misuse_pause`]. Each further such connection adds the same time, up to
//! [`Settings::misuse_pause_longest`]. Open connections are not affected.
//!
//! The buckets are in a table of fixed size, in sets of eight. A new peer replaces the peer in its set whose bucket is
//! closest to full, which is the peer that has opened fewest connections. A peer that may open no connections is
//! replaced only if all others in its set must wait longer.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::settings::Rate;
use crate::{Limit, Network, Peer, Settings};

/// Number of peers in the table, which takes 64 KiB.
const PEERS: usize = 4096;
/// Number of entries in a set.
const WAYS: usize = 8;

/// The owner of the tokens that a connection takes; `None` for users of this machine and trusted networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(Option<u64>);

/// The token buckets of a listener's peers. They are locked when a connection opens, and when a connection is closed
/// because its peer broke a rule.
pub(crate) struct Arrivals {
    /// Time in which one token is added.
    token: Nanos,
    /// Time in which a bucket fills.
    full: Nanos,
    pause: Nanos,
    longest: Nanos,
    trusted: Vec<Network>,
    /// A keyed hash, so that clients cannot choose addresses that share a set.
    hash: RandomState,
    began: Instant,
    table: Mutex<Vec<[Place; WAYS]>>,
}

/// Nanoseconds since [`Arrivals::began`], or a duration in nanoseconds.
type Nanos = u64;

/// A peer's bucket, stored as the time at which it will be full. A bucket with a time in the past is full, like that of
/// an unknown peer.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    origin: u64,
    full_at: Nanos,
}

// === impl Origin ===

impl Origin {
    /// The origin of peers without limits.
    pub(crate) const EXEMPT: Origin = Origin(None);
}

// === impl Arrivals ===

impl Arrivals {
    pub(crate) fn new(settings: &Settings) -> Arrivals {
        let Rate { burst, per_second } = settings.connection_rate;
        let token = 1_000_000_000 / u64::from(per_second.max(1));
        Arrivals {
            token,
            full: token.saturating_mul(u64::from(burst.max(1))),
            pause: nanos(settings.misuse_pause),
            longest: nanos(settings.misuse_pause_longest),
            trusted: settings.trusted_networks.clone(),
            hash: RandomState::new(),
            began: Instant::now(),
            table: Mutex::new(vec![[Place::default(); WAYS]; PEERS / WAYS]),
        }
    }

    /// Returns the origin of a connection of `peer`.
    pub(crate) fn origin(&self, peer: Peer) -> Origin {
        match peer {
            Peer::Address(address) if !self.trusted.iter().any(|network| network.contains(address)) => {
                Origin(Some(self.hash.hash_one(address)))
            }
            Peer::Address(_) | Peer::User(_) | Peer::UnknownUser => Origin::EXEMPT,
        }
    }

    /// Returns the origin of a connection whose peer has authenticated as this principal.
    pub(crate) fn principal(&self, key: u64) -> Origin {
        Origin(Some(self.hash.hash_one(("principal", key))))
    }

    /// Takes a token for one connection.
    ///
    /// # Errors
    /// Returns the limit that the connection would exceed.
    pub(crate) fn open(&self, origin: Origin) -> Result<(), Limit> {
        self.open_at(origin, nanos(self.began.elapsed()))
    }

    /// Returns the token of a connection whose peer has authenticated as a principal.
    pub(crate) fn give_back(&self, origin: Origin) {
        self.change(origin, |place| place.full_at = place.full_at.saturating_sub(self.token));
    }

    /// Records a connection that was closed because its peer broke a rule. Returns whether the peer must wait.
    pub(crate) fn misused(&self, origin: Origin) -> bool {
        self.misused_at(origin, nanos(self.began.elapsed()))
    }

    fn open_at(&self, origin: Origin, now: Nanos) -> Result<(), Limit> {
        self.change(origin, |place| {
            let full_at = place.full_at.max(now) + self.token;
            if full_at <= now + self.full {
                place.full_at = full_at;
                return Ok(());
            }
            // Connections take at most the tokens that the bucket holds, so only misuse makes the time longer than
            // this.
            let pausing = place.full_at > now + self.full;
            Err(if pausing { Limit::MisusePause } else { Limit::ConnectionRate })
        })
        .unwrap_or(Ok(()))
    }

    fn misused_at(&self, origin: Origin, now: Nanos) -> bool {
        let changed = self.change(origin, |place| {
            let empty = now + self.full;
            place.full_at = (place.full_at.max(empty) + self.pause).min(empty + self.longest);
        });
        changed.is_some()
    }

    /// Changes the entry of an origin. Returns `None` if the origin has no limits.
    fn change<T>(&self, Origin(origin): Origin, change: impl FnOnce(&mut Place) -> T) -> Option<T> {
        let origin = origin?;
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let sets = table.len() as u64;
        let set = table.get_mut((origin % sets) as usize)?;
        let place = match set.iter().position(|place| place.origin == origin) {
            Some(known) => &mut set[known],
            None => {
                let place = set.iter_mut().min_by_key(|place| place.full_at)?;
                *place = Place { origin, full_at: 0 };
                place
            }
        };
        Some(change(place))
    }
}

fn nanos(time: Duration) -> Nanos {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn arrivals(burst: u32, per_second: u32) -> Arrivals {
        Arrivals::new(&Settings { connection_rate: Rate { burst, per_second }, ..Settings::default() })
    }

    fn peer(text: &str) -> Peer {
        Peer::of_address(text.parse().unwrap())
    }

    /// Returns the number of connections that a peer can open at this time.
    fn opens(arrivals: &Arrivals, origin: Origin, now: Nanos) -> usize {
        std::iter::from_fn(|| arrivals.open_at(origin, now).ok()).count()
    }

    #[test]
    fn a_peer_has_a_burst_and_then_its_rate() {
        let arrivals = arrivals(20, 10);
        let (one, other) = (arrivals.origin(peer("10.0.0.1")), arrivals.origin(peer("10.0.0.2")));
        assert_eq!(opens(&arrivals, one, SECOND), 20);
        assert_eq!(arrivals.open_at(one, SECOND), Err(Limit::ConnectionRate));
        assert_eq!(opens(&arrivals, one, 2 * SECOND), 10);
        assert_eq!(opens(&arrivals, other, 2 * SECOND), 20, "another peer's tokens are untouched");
        assert_eq!(opens(&arrivals, one, 100 * SECOND), 20);
    }

    #[test]
    fn a_peer_that_broke_a_rule_has_to_wait() {
        let settings =
            Settings { connection_rate: Rate { burst: 20, per_second: 10 }, ..Settings::default() };
        let arrivals = Arrivals::new(&settings);
        let (pause, longest) = (nanos(settings.misuse_pause), nanos(settings.misuse_pause_longest));
        let origin = arrivals.origin(peer("10.0.0.1"));
        arrivals.open_at(origin, 0).unwrap();
        assert!(arrivals.misused_at(origin, 0));
        assert_eq!(arrivals.open_at(origin, pause - 1), Err(Limit::MisusePause));
        // The bucket is empty after the pause and then fills at its rate.
        assert_eq!(opens(&arrivals, origin, pause + SECOND), 10);
        for _ in 0..100 {
            arrivals.misused_at(origin, 100 * SECOND);
        }
        assert_eq!(arrivals.open_at(origin, 100 * SECOND + longest - 1), Err(Limit::MisusePause));
        assert_eq!(opens(&arrivals, origin, 100 * SECOND + longest + SECOND), 10);
    }

    #[test]
    fn one_host_is_one_peer_and_trusted_peers_have_no_limit() {
        let trusted_networks = vec!["192.168.0.0/16".parse().unwrap(), "2001:db8:9::/48".parse().unwrap()];
        let arrivals = Arrivals::new(&Settings { trusted_networks, ..Settings::default() });
        let origin = |text| arrivals.origin(peer(text));
        assert_eq!(origin("2001:db8:1:2::3"), origin("2001:db8:1:2:ffff::4"));
        assert_ne!(origin("2001:db8:1:2::3"), origin("2001:db8:1:3::3"));
        assert_eq!(origin("::ffff:192.168.1.1"), Origin::EXEMPT);
        assert_eq!(origin("2001:db8:9:1::1"), Origin::EXEMPT);
        assert_eq!(arrivals.origin(Peer::User(0)), Origin::EXEMPT);
        assert_ne!(arrivals.principal(7), arrivals.principal(8));
        assert!(!arrivals.misused_at(Origin::EXEMPT, 0));
        assert_eq!(arrivals.open_at(Origin::EXEMPT, 0), Ok(()));
    }

    #[test]
    fn the_token_of_an_authenticated_peer_is_given_back() {
        let arrivals = arrivals(2, 1);
        let balancer = arrivals.origin(peer("10.0.0.1"));
        for _ in 0..100 {
            arrivals.open_at(balancer, 0).unwrap();
            arrivals.give_back(balancer);
        }
        assert_eq!(opens(&arrivals, balancer, 0), 2);
    }

    #[test]
    fn a_full_table_forgets_those_that_have_done_least() {
        let arrivals = arrivals(20, 10);
        let hostile = arrivals.origin(peer("10.0.0.1"));
        arrivals.misused_at(hostile, 0);
        for number in 0..100_000_u32 {
            let origin = arrivals.origin(Peer::of_address(std::net::Ipv4Addr::from(number).into()));
            if origin != hostile {
                arrivals.open_at(origin, 0).unwrap();
            }
        }
        assert_eq!(arrivals.open_at(hostile, SECOND), Err(Limit::MisusePause));
        assert_eq!(arrivals.table.lock().unwrap().len() * WAYS, PEERS);
    }
}
