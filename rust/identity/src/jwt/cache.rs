//! A cache of verified tokens by keyed hash, so that a signature is not verified again for every request.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::grants::Access;

const SHARDS: usize = 16;

/// The cache. It is bounded; the oldest tokens are removed first. Its keys are 128-bit hashes under a random key, so
/// that no caller can construct two tokens with the same hash.
pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    per_shard: usize,
    key: (u64, u64),
}

#[derive(Default)]
struct Shard {
    entries: HashMap<u128, Entry>,
    order: VecDeque<u128>,
}

struct Entry {
    access: Arc<Access>,
    until: Instant,
    /// The number of the key set that verified the token.
    generation: u64,
}

// === impl Cache ===

impl Cache {
    pub(super) fn new(tokens: usize) -> Cache {
        let random = RandomState::new();
        Cache {
            shards: std::array::from_fn(|_| Mutex::default()),
            per_shard: tokens.div_ceil(SHARDS),
            key: (random.hash_one(0_u8), random.hash_one(1_u8)),
        }
    }

    pub(super) fn key(&self, token: &str) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1);
        hasher.write(token.as_bytes());
        hasher.finish128().as_u128()
    }

    pub(super) fn find(&self, key: u128, generation: u64, now: Instant) -> Option<Arc<Access>> {
        let shard = self.shard(key);
        let entry = shard.entries.get(&key)?;
        (entry.generation == generation && now < entry.until).then(|| Arc::clone(&entry.access))
    }

    pub(super) fn keep(&self, key: u128, generation: u64, access: &Arc<Access>, until: Instant) {
        let mut shard = self.shard(key);
        let entry = Entry { access: Arc::clone(access), until, generation };
        if shard.entries.insert(key, entry).is_none() {
            shard.order.push_back(key);
        }
        while shard.order.len() > self.per_shard {
            if let Some(oldest) = shard.order.pop_front() {
                shard.entries.remove(&oldest);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().unwrap().entries.len()).sum()
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, Shard> {
        self.shards[(key % SHARDS as u128) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}
