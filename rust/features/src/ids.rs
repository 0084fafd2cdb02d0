//! The ids of recent events, by which duplicates are recognised.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use scorer_os::memory;
use sha2::{Digest as _, Sha256};

use crate::SECOND;

/// Memory of one id.
const ENTRY: usize = 64;

/// The ids of the events of one kind. They are stored as 128 bits of a SHA-256 with a random salt, so that no sender
/// can make an id that equals another one.
#[derive(Debug)]
pub(crate) struct Ids {
    shards: Vec<Mutex<Shard>>,
    salt: u128,
    /// Time in microseconds for which an id is remembered.
    remember_us: i64,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    known: HashTable<u128>,
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
    pub(crate) fn new(remember_seconds: i64, salt: u128, shards: usize) -> Ids {
        Ids {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            salt,
            remember_us: remember_seconds.saturating_mul(SECOND),
        }
    }

    /// The hash of an id. Asks the processor to load its shard.
    pub(crate) fn hash(&self, id: &str) -> u128 {
        let digest = Sha256::new().chain_update(self.salt.to_le_bytes()).chain_update(id).finalize();
        let hash = u128::from_le_bytes(digest.first_chunk().copied().unwrap_or_default());
        if let Some(shard) = self.shards.get(shard_of(hash, self.shards.len())) {
            memory::prefetch(shard);
        }
        hash
    }

    /// Locks the place of the id with this hash.
    pub(crate) fn place(&self, hash: u128) -> Option<Place<'_>> {
        Some(Place { shard: self.shard(hash)?, hash, remember_us: self.remember_us })
    }

    fn shard(&self, hash: u128) -> Option<MutexGuard<'_, Shard>> {
        let shard = self.shards.get(shard_of(hash, self.shards.len()))?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Time in microseconds for which an id is remembered.
    pub(crate) fn remember_us(&self) -> i64 {
        self.remember_us
    }

    /// The first half of a SHA-256 of kind and id.
    pub(crate) fn name_of(kind: &str, id: &str) -> [u8; 16] {
        let digest = Sha256::new().chain_update(kind).chain_update([0]).chain_update(id).finalize();
        digest.first_chunk().copied().unwrap_or_default()
    }

    /// Random bits.
    pub(crate) fn random() -> u128 {
        let half = || u128::from(RandomState::new().hash_one(()));
        half() << 64 | half()
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The times of receipt and the ids of each shard, in the order of receipt, with what `position` returns while the
    /// shard is locked.
    pub(crate) fn all(&self, position: impl Fn() -> u64) -> impl Iterator<Item = (u64, Vec<(i64, u128)>)> {
        self.shards.iter().map(move |shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            (position(), shard.order.iter().copied().collect())
        })
    }

    /// Remembers ids that [`Ids::all`] returned. [`Ids::sort`] follows the last.
    pub(crate) fn restore(&self, received_at_us: i64, hash: u128) {
        if let Some(mut shard) = self.shard(hash) {
            shard.insert(hash);
            shard.order.push_back((received_at_us, hash));
        }
    }

    /// Restores the order of receipt.
    pub(crate) fn sort(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.order.make_contiguous().sort_by_key(|(received, _)| *received);
        }
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let of = |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).order.len();
        self.shards.iter().map(|shard| (of(shard) * ENTRY) as u64).sum()
    }
}

// === impl Shard ===

impl Shard {
    fn insert(&mut self, hash: u128) {
        if let Entry::Vacant(place) =
            self.known.entry(table_hash(hash), |known| *known == hash, |known| table_hash(*known))
        {
            place.insert(hash);
        }
    }

    /// Forgets the id that was received first.
    fn forget_first(&mut self) {
        if let Some((_, hash)) = self.order.pop_front()
            && let Ok(place) = self.known.find_entry(table_hash(hash), |known| *known == hash)
        {
            place.remove();
        }
    }
}

// === impl Place ===

impl Place<'_> {
    /// Whether the id is known at this time.
    pub(crate) fn is_known(&mut self, now_us: i64) -> bool {
        let (shard, hash) = (&mut *self.shard, self.hash);
        let is_old = |(received, _): &(i64, u128)| now_us.saturating_sub(*received) > self.remember_us;
        while shard.order.front().is_some_and(is_old) {
            shard.forget_first();
        }
        shard.known.find(table_hash(hash), |known| *known == hash).is_some()
    }

    /// Remembers the id. At most `limit` ids of a shard are remembered; beyond it the oldest are forgotten. Returns
    /// their number.
    pub(crate) fn insert(&mut self, now_us: i64, limit: usize) -> u64 {
        let shard = &mut *self.shard;
        shard.insert(self.hash);
        shard.order.push_back((now_us, self.hash));
        let mut forgotten = 0;
        while shard.order.len() > limit.max(1) {
            shard.forget_first();
            forgotten += 1;
        }
        forgotten
    }

    /// The hash of the id.
    pub(crate) fn hash(&self) -> u128 {
        self.hash
    }
}

/// Number of ids of a shard that fit into this memory.
pub(crate) fn limit(bytes: u64, shards: usize) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX) / ENTRY / shards.max(1)
}

/// The hash of an id in the table of its shard, whose number has the lowest bits of the id's hash.
fn table_hash(hash: u128) -> u64 {
    (hash >> 64) as u64
}

/// The shard of the hash of an id.
pub(crate) fn shard_of(hash: u128, shards: usize) -> usize {
    (hash % shards.max(1) as u128) as usize
}
