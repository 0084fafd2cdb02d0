//! The state of one feature set, in shards with a lock each.

use std::hash::Hasher as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use scorer_os::memory;
use siphasher::sip::SipHasher13;

use crate::definition::FeatureSet;
use crate::entity::{Entities, EntityKind, EntityState};
use crate::event::{Event, Fields};
use crate::shard;

/// A feature set with its state.
#[derive(Debug)]
pub(crate) struct SetState {
    pub(crate) set: FeatureSet,
    pub(crate) kinds: Vec<EntityKind>,
    shards: Vec<Mutex<Shard>>,
    /// Memory that each shard may use, in bytes.
    shard_limit: usize,
    salt: u128,
}

/// The states of the keys of one shard, by the position of their kind.
#[derive(Debug, Default)]
pub(crate) struct Shard(Vec<Entities>);

/// An entity that an event changes, by positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) set: usize,
    pub(crate) shard: usize,
    pub(crate) kind: usize,
    /// Hash of the key.
    pub(crate) hash: u64,
    /// Position of its shard's lock among those that the event takes.
    pub(crate) guard: usize,
}

/// A hash of a key, also for a later process with the same salt.
pub(crate) fn hash(salt: u128, kind: usize, key: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys((salt >> 64) as u64, salt as u64);
    hasher.write_usize(kind);
    hasher.write(key);
    hasher.finish()
}

/// Position of the shard of a hash. The table of a shard uses the bits below 40 and above 56.
pub(crate) fn shard_of(hash: u64, shards: usize) -> usize {
    (hash >> 40) as usize & shards.wrapping_sub(1)
}

// === impl SetState ===

impl SetState {
    /// A set without state, whose entities may use this memory in bytes.
    pub(crate) fn new(set: FeatureSet, salt: u128, bytes: u64) -> SetState {
        let kinds = EntityKind::all(&set);
        let shard = || {
            let entities = (0..kinds.len()).map(|kind| Entities::new(salt, kind));
            Mutex::new(Shard(entities.collect()))
        };
        let count = shard::count(bytes);
        let shard_limit = usize::try_from(bytes).unwrap_or(usize::MAX) / count;
        SetState { shards: (0..count).map(|_| shard()).collect(), kinds, set, shard_limit, salt }
    }

    /// The place of a key of a kind.
    pub(crate) fn target(&self, set: usize, kind: usize, key: &str) -> Target {
        let hash = hash(self.salt, kind, key.as_bytes());
        Target { set, shard: shard_of(hash, self.shards.len()), kind, hash, guard: 0 }
    }

    /// Asks the processor to load the lock of a shard.
    pub(crate) fn prefetch(&self, shard: usize) {
        if let Some(shard) = self.shards.get(shard) {
            memory::prefetch(shard);
        }
    }

    pub(crate) fn lock(&self, shard: usize) -> Option<MutexGuard<'_, Shard>> {
        Some(self.shards.get(shard)?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends the entities of the set that an event changes.
    pub(crate) fn targets(&self, set: usize, event: &Event<'_>, to: &mut Vec<Target>) {
        let Some(event_kind) = self.set.events().keys().position(|kind| *kind == event.kind) else { return };
        for (at, kind) in self.kinds.iter().enumerate() {
            if kind.reads(event_kind)
                && let Some(key) = event.key(&kind.name)
            {
                let target = self.target(set, at, key);
                self.prefetch(target.shard);
                to.push(target);
            }
        }
    }

    /// Applies an event to the entity of a kind in its locked shard. Returns the number of entities that were removed to
    /// keep the memory limit.
    pub(crate) fn apply(
        &self,
        shard: &mut Shard,
        target: &Target,
        event: &Event<'_>,
        fields: &Fields<'_>,
        received_at_us: i64,
    ) -> u64 {
        let Some(kind) = self.kinds.get(target.kind) else { return 0 };
        let (Some(entities), Some(key)) = (shard.0.get_mut(target.kind), event.key(&kind.name)) else {
            return 0;
        };
        entities.apply(kind, (target.hash, key), fields, received_at_us);
        shard.evict(self.shard_limit)
    }

    /// Removes the oldest entities of every shard that exceeds its limit. Returns their number.
    pub(crate) fn trim(&self) -> u64 {
        (0..self.shards.len()).filter_map(|shard| Some(self.lock(shard)?.evict(self.shard_limit))).sum()
    }

    /// Calls `read` with the state of a key, under its shard's lock. Returns whether there is state.
    pub(crate) fn with(&self, kind: usize, key: &str, read: impl FnOnce(Option<&EntityState>)) -> bool {
        let target = self.target(0, kind, key);
        let Some(shard) = self.lock(target.shard) else { return false };
        let state = shard.0.get(kind).and_then(|entities| entities.get(target.hash, key));
        read(state);
        state.is_some()
    }

    /// Inserts the state of a key, as it was read before. Returns whether it fits the definition.
    pub(crate) fn restore(&self, at: usize, key: &str, newest_us: i64, data: &[u8]) -> bool {
        let Some(kind) = self.kinds.get(at) else { return false };
        let target = self.target(0, at, key);
        let Some(mut shard) = self.lock(target.shard) else { return false };
        shard
            .0
            .get_mut(at)
            .is_some_and(|entities| entities.restore(kind, (target.hash, key), newest_us, data))
    }

    /// Number of entities with state, and their memory in bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        let mut size = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for entities in &shard.0 {
                size.0 += entities.len() as u64;
                size.1 += entities.bytes() as u64;
            }
        }
        size
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Time in seconds after which an event no longer affects a value.
    pub(crate) fn horizon(&self) -> i64 {
        // After 64 half-lives, a weight is below the precision of the sum.
        let features = self.kinds.iter().flat_map(|kind| &kind.features).map(|window| {
            if window.aggregate.is_decayed() {
                window.window.saturating_mul(64)
            } else {
                window.window + window.delay + window.tile
            }
        });
        let late = self.set.events().values().map(|event| event.accept_late).max().unwrap_or(0);
        features.max().unwrap_or(0).saturating_add(late)
    }
}

// === impl Shard ===

impl Shard {
    /// The states of the keys of a kind.
    pub(crate) fn entities(&self, kind: usize) -> Option<&Entities> {
        self.0.get(kind)
    }

    /// Asks the processor to load the table that has the key of a target.
    pub(crate) fn prefetch_table(&self, target: &Target) {
        if let Some(entities) = self.0.get(target.kind) {
            memory::prefetch(entities);
        }
    }

    /// Asks the processor to load the state of the key of a target.
    pub(crate) fn prefetch(&self, target: &Target) {
        if let Some(entities) = self.0.get(target.kind) {
            entities.prefetch(target.hash);
        }
    }

    /// Removes the oldest entities of a shard that exceeds its limit. Returns their number.
    fn evict(&mut self, limit: usize) -> u64 {
        let used: usize = self.0.iter().map(Entities::bytes).sum();
        if used <= limit {
            return 0;
        }
        // Every kind keeps its share, so that one kind of many keys does not remove all others.
        let share = |entities: &Entities| entities.bytes() * (limit / 8 * 7) / used.max(1);
        self.0.iter_mut().map(|entities| entities.evict(share(entities))).sum()
    }

    /// Removes the state of a key. Returns whether there was any.
    pub(crate) fn remove(&mut self, target: &Target, key: &str) -> bool {
        self.0.get_mut(target.kind).is_some_and(|entities| entities.remove(target.hash, key))
    }
}
