//! The entities of one name in one set: the features that a set declares for it, and the state of every key.

use std::collections::HashMap;

use crate::definition::{Feature, FeatureSet, Window};
use crate::event::Fields;
use crate::slot::Slot;
use crate::tiles;

/// Bytes of a key in the table, with its control byte.
const ENTRY: usize = size_of::<(Box<str>, EntityState)>() + 1;
/// Bytes that the allocator adds to an allocation, on average.
const ALLOCATION: usize = 16;

/// The features of the entities of one name.
#[derive(Debug)]
pub(crate) struct EntityKind {
    /// Name of the entity.
    pub(crate) name: String,
    /// The features, in the order of the definition.
    pub(crate) features: Vec<Window>,
    slots: Vec<Slot>,
    /// Position of the slot of each feature.
    slot_of: Vec<usize>,
}

/// The state of one key.
#[derive(Debug)]
pub(crate) struct EntityState {
    /// Time of the newest event.
    newest_us: i64,
    /// The states of the slots, one after the other.
    data: Vec<u8>,
}

/// The states of the keys of one shard.
#[derive(Debug, Default)]
pub(crate) struct Entities {
    keys: HashMap<Box<str>, EntityState>,
    /// Memory of keys and states in bytes, without the table.
    bytes: usize,
}

// === impl EntityKind ===

impl EntityKind {
    pub(crate) fn all(set: &FeatureSet) -> Vec<EntityKind> {
        let features = |entity: &str| -> Vec<Window> {
            let windows = set.features().iter().filter_map(|feature| match feature {
                Feature::Window(window) if window.entity == entity => Some(window.clone()),
                _ => None,
            });
            windows.collect()
        };
        let kinds = set.entities().into_iter().map(|entity| {
            let features = features(entity);
            let (slots, slot_of) = Slot::all(set, &features);
            EntityKind { name: entity.to_owned(), features, slots, slot_of }
        });
        kinds.filter(|kind| !kind.features.is_empty()).collect()
    }

    /// Whether a feature aggregates events of a kind, by its position in the set.
    pub(crate) fn reads(&self, event: usize) -> bool {
        self.slots.iter().any(|slot| slot.reads(event))
    }

    /// Position of the slot of a feature.
    pub(crate) fn slot_of(&self, feature: usize) -> usize {
        self.slot_of.get(feature).copied().unwrap_or(usize::MAX)
    }
}

// === impl EntityState ===

impl EntityState {
    fn new(kind: &EntityKind) -> EntityState {
        let mut data = Vec::new();
        kind.slots.iter().for_each(|slot| tiles::empty(slot, &mut data));
        data.shrink_to_fit();
        EntityState { newest_us: i64::MIN, data }
    }

    fn apply(&mut self, kind: &EntityKind, event: &Fields<'_>, received_at_us: i64) {
        self.newest_us = self.newest_us.max(event.occurred_at_us);
        // All slots grow by one allocation.
        let growth = self
            .slots(kind)
            .map(|(_, slot, state)| slot.part(event).map_or(0, |part| tiles::growth(slot, state, part)));
        let growth = growth.sum();
        self.data.reserve_exact(growth);
        let mut at = 0;
        for slot in &kind.slots {
            if let Some(part) = slot.part(event) {
                tiles::add(slot, &mut self.data, at, part, received_at_us);
            }
            at += tiles::length(slot, self.data.get(at..).unwrap_or_default());
        }
        if self.data.capacity() > self.data.len() + self.data.len() / 8 + 64 {
            self.data.shrink_to_fit();
        }
    }

    /// Every slot by position, with its state.
    pub(crate) fn slots<'a>(
        &'a self,
        kind: &'a EntityKind,
    ) -> impl Iterator<Item = (usize, &'a Slot, &'a [u8])> {
        let mut rest = self.data.as_slice();
        kind.slots.iter().enumerate().map(move |(position, slot)| {
            let (state, after) = rest.split_at_checked(tiles::length(slot, rest)).unwrap_or((rest, &[]));
            rest = after;
            (position, slot, state)
        })
    }

    /// Whether the bytes are the states of all slots.
    fn is_complete(&self, kind: &EntityKind) -> bool {
        let mut rest = Some(self.data.as_slice());
        for slot in &kind.slots {
            rest = rest.and_then(|bytes| bytes.get(tiles::length(slot, bytes)..));
        }
        rest.is_some_and(<[u8]>::is_empty)
    }

    fn bytes(&self) -> usize {
        self.data.capacity() + ALLOCATION
    }
}

// === impl Entities ===

impl Entities {
    pub(crate) fn get(&self, key: &str) -> Option<&EntityState> {
        self.keys.get(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Memory in bytes: keys and states with the allocator's share, and the table.
    pub(crate) fn bytes(&self) -> usize {
        // A table is at most seven eighths full.
        self.bytes + self.keys.capacity() * 8 / 7 * ENTRY
    }

    /// Every key with the time of its newest event and its state.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, i64, &[u8])> {
        self.keys.iter().map(|(key, state)| (&**key, state.newest_us, state.data.as_slice()))
    }

    /// Inserts the state of a key, as [`Entities::all`] returned it. Returns whether it fits the definition.
    pub(crate) fn restore(&mut self, kind: &EntityKind, key: &str, newest_us: i64, data: &[u8]) -> bool {
        let state = EntityState { newest_us, data: data.to_vec() };
        if !state.is_complete(kind) {
            return false;
        }
        self.bytes += key.len() + ALLOCATION + state.bytes();
        self.keys.insert(key.into(), state).is_none()
    }

    /// Applies an event of the key.
    pub(crate) fn apply(&mut self, kind: &EntityKind, key: &str, event: &Fields<'_>, received_at_us: i64) {
        if let Some(state) = self.keys.get_mut(key) {
            let before = state.bytes();
            state.apply(kind, event, received_at_us);
            self.bytes = (self.bytes + state.bytes()).saturating_sub(before);
            return;
        }
        let mut state = EntityState::new(kind);
        state.apply(kind, event, received_at_us);
        self.bytes += key.len() + ALLOCATION + state.bytes();
        self.keys.insert(key.into(), state);
    }

    /// Removes the state of a key. Returns whether there was any.
    pub(crate) fn remove(&mut self, key: &str) -> bool {
        let Some(state) = self.keys.remove(key) else { return false };
        self.bytes = self.bytes.saturating_sub(key.len() + ALLOCATION + state.bytes());
        true
    }

    /// Removes the entities whose newest event is oldest, until at most `limit` bytes are left. Returns their number.
    pub(crate) fn evict(&mut self, limit: usize) -> u64 {
        let mut removed = 0;
        while self.bytes() > limit && !self.keys.is_empty() {
            // A sixteenth at a time, so that the cost of finding the oldest is shared by many removals.
            let mut newest: Vec<i64> = self.keys.values().map(|state| state.newest_us).collect();
            let at = newest.len() / 16;
            let (_, threshold, _) = newest.select_nth_unstable(at);
            let threshold = *threshold;
            let bytes = &mut self.bytes;
            self.keys.retain(|key, state| {
                let stays = state.newest_us > threshold;
                if !stays {
                    *bytes = bytes.saturating_sub(key.len() + ALLOCATION + state.bytes());
                    removed += 1;
                }
                stays
            });
            // The table is a part of the memory.
            self.keys.shrink_to_fit();
        }
        removed
    }
}
