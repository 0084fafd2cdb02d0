//! The state of all sets in memory: what an event changes, and what is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::definition::FeatureSet;
use crate::error::EventError;
use crate::event::{Event, Fields};
use crate::kinds::{self, EventKind};
use crate::snapshot::Positions;
use crate::state::{SetState, Shard, Target};

/// Part of the memory that ids may use.
const IDS_PART: u64 = 4;

/// The sets with their state.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) sets: Vec<SetState>,
    pub(crate) kinds: BTreeMap<String, EventKind>,
    /// Random bits by which keys and ids are in shards. A snapshot has them too.
    pub(crate) salt: u128,
    pub(crate) evicted: AtomicU64,
    pub(crate) forgotten: AtomicU64,
}

/// The locked shards of the entities of an event, in one order everywhere, so that two events never wait for each other.
struct Locked<'a> {
    targets: Vec<Target>,
    shards: Vec<MutexGuard<'a, Shard>>,
}

// === impl Locked ===

impl Locked<'_> {
    /// Asks the processor to load the states of all targets at the same time, each of which is in another place.
    fn prefetch(&self) {
        for target in &self.targets {
            if let Some(shard) = self.shards.get(target.guard) {
                shard.prefetch(target);
            }
        }
    }
}

// === impl Tables ===

impl Tables {
    /// Sets without state, in this memory in bytes.
    pub(crate) fn new(sets: &[FeatureSet], memory_bytes: u64, salt: u128) -> Tables {
        let ids_bytes = memory_bytes / IDS_PART;
        let bytes = (memory_bytes - ids_bytes) / sets.len().max(1) as u64;
        let sets: Vec<SetState> = sets.iter().map(|set| SetState::new(set.clone(), salt, bytes)).collect();
        let kinds = kinds::all(&sets, salt, ids_bytes);
        Tables { sets, kinds, salt, evicted: AtomicU64::new(0), forgotten: AtomicU64::new(0) }
    }

    /// Checks an event. Returns its kind.
    pub(crate) fn check(&self, event: &Event<'_>, received_at_us: i64) -> Result<&EventKind, EventError> {
        let kind = kinds::declared(&self.kinds, event)?;
        kind.check(event, received_at_us)?;
        Ok(kind)
    }

    /// Applies an event of a kind, unless its id is known. `append` is called while all places that the event changes are
    /// locked. Returns whether the event is new.
    pub(crate) fn record(
        &self,
        kind: &EventKind,
        event: &Event<'_>,
        received_at_us: i64,
        append: impl FnOnce() -> Result<(), EventError>,
    ) -> Result<bool, EventError> {
        // All that the event needs is in other places of the memory, which load at the same time.
        let id = kind.ids.hash(event.id);
        let targets = self.targets(kind, event);
        // The id is locked until the event is applied, so that a duplicate waits for it.
        let Some(mut place) = kind.ids.place(id) else { return Ok(false) };
        if place.is_known(received_at_us) {
            return Ok(false);
        }
        let mut locked = self.lock(targets);
        append()?;
        self.forgotten.fetch_add(place.insert(received_at_us, kind.ids_limit), Relaxed);
        self.apply(&mut locked, event, received_at_us, &|_| true);
        Ok(true)
    }

    /// The entities that an event of a kind changes, in the order of locks. Asks the processor to load the locks.
    fn targets(&self, kind: &EventKind, event: &Event<'_>) -> Vec<Target> {
        let mut targets = Vec::with_capacity(event.keys.len() * kind.sets.len());
        for set in &kind.sets {
            if let Some(state) = self.sets.get(*set) {
                state.targets(*set, event, &mut targets);
            }
        }
        targets.sort_unstable();
        targets
    }

    /// Locks the shards of targets, which are sorted.
    fn lock(&self, mut targets: Vec<Target>) -> Locked<'_> {
        let mut shards: Vec<MutexGuard<'_, Shard>> = Vec::with_capacity(targets.len());
        let mut last = None;
        targets.retain_mut(|target| {
            let place = (target.set, target.shard);
            if last != Some(place) {
                let Some(guard) = self.sets.get(target.set).and_then(|state| state.lock(target.shard)) else {
                    return false;
                };
                guard.prefetch_table(target);
                shards.push(guard);
                last = Some(place);
            }
            target.guard = shards.len() - 1;
            true
        });
        let locked = Locked { targets, shards };
        locked.prefetch();
        locked
    }

    /// Applies an event to the locked entities that `has_effect` accepts.
    fn apply(
        &self,
        locked: &mut Locked<'_>,
        event: &Event<'_>,
        received_at_us: i64,
        has_effect: &dyn Fn(&Target) -> bool,
    ) -> bool {
        let Locked { targets, shards } = locked;
        let mut any = false;
        let mut of_set: Option<(usize, Fields<'_>)> = None;
        for target in targets.iter().filter(|target| has_effect(target)) {
            let (Some(shard), Some(state)) = (shards.get_mut(target.guard), self.sets.get(target.set)) else {
                continue;
            };
            if of_set.as_ref().is_none_or(|(set, _)| *set != target.set) {
                of_set = Fields::new(&state.set, event).map(|fields| (target.set, fields));
            }
            let Some((_, fields)) = &of_set else { continue };
            let removed = state.apply(shard, target, event, fields, received_at_us);
            self.evicted.fetch_add(removed, Relaxed);
            any = true;
        }
        any
    }

    /// Applies an event of the journal to the places that a snapshot does not have it for. `erased` is whether it was
    /// erased for the entity and key. Returns whether it changed a place; `None` if no set declares its kind.
    pub(crate) fn replay(
        &self,
        event: &Event<'_>,
        received_at_us: i64,
        sequence: u64,
        positions: &Positions,
        erased: &dyn Fn(&str, &str) -> bool,
    ) -> Option<bool> {
        let kind = self.kinds.get(event.kind)?;
        let mut place = kind.ids.place(kind.ids.hash(event.id))?;
        let is_new = sequence > positions.of_id(event.kind, place.hash());
        if is_new {
            if place.is_known(received_at_us) {
                return Some(false);
            }
            self.forgotten.fetch_add(place.insert(received_at_us, kind.ids_limit), Relaxed);
        }
        let targets = self.targets(kind, event);
        let has_effect = |target: &Target| {
            let kind = self.sets.get(target.set).and_then(|state| state.kinds.get(target.kind));
            let Some((name, key)) = kind.and_then(|kind| Some((&kind.name, event.key(&kind.name)?))) else {
                return false;
            };
            sequence > positions.of_entity(target.set, target.kind, key) && !erased(name, key)
        };
        let mut locked = self.lock(targets);
        Some(self.apply(&mut locked, event, received_at_us, &has_effect) || is_new)
    }

    /// Removes the state of an entity from all sets. `then` is called while its places are locked. Returns whether there
    /// was any, or nothing if no set has such entities.
    pub(crate) fn remove(&self, entity: &str, key: &str, then: impl FnOnce()) -> Option<bool> {
        let mut targets = Vec::new();
        for (set, state) in self.sets.iter().enumerate() {
            if let Some(kind) = state.kinds.iter().position(|kind| kind.name == entity) {
                targets.push(state.target(set, kind, key));
            }
        }
        if targets.is_empty() {
            return None;
        }
        targets.sort_unstable();
        let mut locked = self.lock(targets);
        let mut removed = false;
        let Locked { targets, shards } = &mut locked;
        for target in targets.iter() {
            removed |= shards.get_mut(target.guard).is_some_and(|shard| shard.remove(target, key));
        }
        then();
        Some(removed)
    }

    /// The names of the entities of which a set has features.
    pub(crate) fn entities(&self) -> BTreeSet<&str> {
        self.sets.iter().flat_map(|set| set.kinds.iter().map(|kind| &*kind.name)).collect()
    }

    /// Brings restored state into its order and its limit.
    pub(crate) fn restored(&self) {
        self.kinds.values().for_each(|kind| kind.ids.sort());
        let evicted: u64 = self.sets.iter().map(SetState::trim).sum();
        self.evicted.fetch_add(evicted, Relaxed);
    }

    /// Time in seconds after which an event has no effect.
    pub(crate) fn horizon(&self) -> i64 {
        self.sets.iter().map(SetState::horizon).max().unwrap_or(0)
    }

    /// Number of entities with state, and the memory of all state in bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        let ids: u64 = self.kinds.values().map(|kind| kind.ids.bytes()).sum();
        self.sets.iter().map(SetState::size).fold((0, ids), |sum, size| (sum.0 + size.0, sum.1 + size.1))
    }
}
