//! The state of one feature set, in shards with a lock each.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::definition::FeatureSet;
use crate::entity::{Entities, EntityKind};
use crate::event::Event;

/// Number of shards.
const SHARDS: usize = 256;

/// A feature set with its state.
#[derive(Debug)]
pub(crate) struct SetState {
    pub(crate) set: FeatureSet,
    pub(crate) kinds: Vec<EntityKind>,
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
}

/// The states of the keys of one shard, by the position of their kind.
#[derive(Debug, Default)]
pub(crate) struct Shard(Vec<Entities>);

// === impl SetState ===

impl SetState {
    pub(crate) fn new(set: FeatureSet) -> SetState {
        let kinds = EntityKind::all(&set);
        let shard = || Mutex::new(Shard(kinds.iter().map(|_| Entities::default()).collect()));
        SetState { shards: (0..SHARDS).map(|_| shard()).collect(), kinds, set, hasher: RandomState::new() }
    }

    fn shard(&self, kind: usize, key: &str) -> Option<MutexGuard<'_, Shard>> {
        let hash = self.hasher.hash_one((kind, key)) as usize;
        let shard = self.shards.get(hash % SHARDS)?;
        Some(shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Applies an event to the entities of its keys. Every shard may use `shard_limit` bytes. Returns the number of
    /// entities that were removed.
    pub(crate) fn apply(&self, event: &Event<'_>, received_at_us: i64, shard_limit: usize) -> u64 {
        let mut removed = 0;
        for (at, kind) in self.kinds.iter().enumerate() {
            if !kind.reads(event.kind) {
                continue;
            }
            let Some(key) = event.key(&kind.name) else { continue };
            let Some(mut shard) = self.shard(at, key) else { continue };
            if let Some(entities) = shard.0.get_mut(at) {
                entities.apply(kind, key, event, received_at_us);
            }
            let used: usize = shard.0.iter().map(Entities::bytes).sum();
            if used > shard_limit {
                // Every kind keeps its share, so that one kind of many keys does not remove all others.
                for entities in &mut shard.0 {
                    let share = entities.bytes() * (shard_limit / 8 * 7) / used.max(1);
                    removed += entities.evict(share);
                }
            }
        }
        removed
    }

    /// Calls `read` with the state of a key, under its shard's lock. Returns whether there is state.
    pub(crate) fn with(&self, kind: usize, key: &str, read: impl FnOnce(&Entities)) -> bool {
        let Some(shard) = self.shard(kind, key) else { return false };
        let Some(entities) = shard.0.get(kind) else { return false };
        read(entities);
        entities.get(key).is_some()
    }

    /// Calls `each` with all entities of a kind, shard by shard, until it fails.
    pub(crate) fn each<E>(
        &self,
        kind: usize,
        mut each: impl FnMut(&Entities) -> Result<(), E>,
    ) -> Result<(), E> {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.0.get(kind).map_or(Ok(()), &mut each)?;
        }
        Ok(())
    }

    /// Inserts the state of a key, as it was read before. Returns whether it fits the definition.
    pub(crate) fn restore(&self, at: usize, key: &str, newest_us: i64, data: &[u8]) -> bool {
        let Some(kind) = self.kinds.get(at) else { return false };
        let Some(mut shard) = self.shard(at, key) else { return false };
        shard.0.get_mut(at).is_some_and(|entities| entities.restore(kind, key, newest_us, data))
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

    /// Number of shards, each of which has its share of the memory.
    pub(crate) const fn shards() -> usize {
        SHARDS
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
