//! The ids of recent events, by which duplicates are recognised.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::SECOND;

/// Number of shards.
const SHARDS: usize = 64;
/// Memory of one id.
const ENTRY: usize = 64;

/// The ids of the events of one kind. They are stored as hashes of 128 bits under a random key, so that no sender can
/// make an id that equals another one.
#[derive(Debug)]
pub(crate) struct Ids {
    shards: Vec<Mutex<Shard>>,
    keys: [RandomState; 2],
    /// Time in microseconds for which an id is remembered.
    remember_us: i64,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    known: HashSet<u128>,
    /// Time of receipt and id, in the order of receipt.
    order: VecDeque<(i64, u128)>,
}

/// A locked shard and the hash of an id in it.
pub(crate) struct Place<'a> {
    shard: MutexGuard<'a, Shard>,
    hash: u128,
    remember_us: i64,
}

// === impl Ids ===

impl Ids {
    pub(crate) fn new(remember_seconds: i64) -> Ids {
        Ids {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys: [RandomState::new(), RandomState::new()],
            remember_us: remember_seconds.saturating_mul(SECOND),
        }
    }

    /// Locks the place of an id.
    pub(crate) fn place(&self, id: &str) -> Option<Place<'_>> {
        let [high, low] = self.keys.each_ref().map(|key| key.hash_one(id));
        let shard = self.shards.get(low as usize % SHARDS)?;
        let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Place { shard, hash: u128::from(high) << 64 | u128::from(low), remember_us: self.remember_us })
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let of = |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).order.len();
        self.shards.iter().map(|shard| (of(shard) * ENTRY) as u64).sum()
    }
}

// === impl Place ===

impl Place<'_> {
    /// Whether the id is known at this time.
    pub(crate) fn is_known(&mut self, now_us: i64) -> bool {
        let Shard { known, order } = &mut *self.shard;
        while order.front().is_some_and(|(received, _)| now_us.saturating_sub(*received) > self.remember_us) {
            if let Some((_, hash)) = order.pop_front() {
                known.remove(&hash);
            }
        }
        known.contains(&self.hash)
    }

    /// Remembers the id. At most `limit` ids of a shard are remembered; beyond it the oldest are forgotten. Returns
    /// their number.
    pub(crate) fn insert(&mut self, now_us: i64, limit: usize) -> u64 {
        let hash = self.hash;
        let Shard { known, order } = &mut *self.shard;
        known.insert(hash);
        order.push_back((now_us, hash));
        let mut forgotten = 0;
        while order.len() > limit.max(1) {
            if let Some((_, hash)) = order.pop_front() {
                known.remove(&hash);
                forgotten += 1;
            }
        }
        forgotten
    }

    /// Number of ids of a shard that fit into this part of the store's memory.
    pub(crate) fn limit(bytes: usize, kinds: usize) -> usize {
        bytes / ENTRY / SHARDS / kinds.max(1)
    }
}
