//! The entities of one name in one set: the features that a set declares for it, and the state of every key.

use hashbrown::HashTable;
use scorer_os::memory;

use crate::definition::{Feature, FeatureSet, Window};
use crate::event::Fields;
use crate::kinds::MAX_KEY;
use crate::slot::Slot;
use crate::state;
use crate::tiles;

/// Cache lines of the state of a key that a prefetch loads.
const PREFETCHED: usize = 4;
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
    /// Length of the key in one byte, the key, and the states of the slots, one after the other. One allocation has all, so
    /// that a read waits for memory once.
    data: Vec<u8>,
}

/// The states of the keys of one shard. They begin with a cache line, so that an update loads one line of each.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Entities {
    keys: HashTable<EntityState>,
    /// Salt and position of the kind, for the hashes of keys.
    salt: u128,
    kind: usize,
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
    /// An entity without events, or with the states of its slots.
    fn new(kind: &EntityKind, key: &str, newest_us: i64, states: Option<&[u8]>) -> EntityState {
        let mut data = Vec::with_capacity(1 + key.len() + states.map_or(64, <[u8]>::len));
        // The rules for events limit a key to less than 256 bytes.
        data.push(key.len() as u8);
        data.extend_from_slice(key.as_bytes());
        match states {
            Some(states) => data.extend_from_slice(states),
            None => kind.slots.iter().for_each(|slot| tiles::empty(slot, &mut data)),
        }
        EntityState { newest_us, data }
    }

    /// An entity without events and without a key, for states that are not in a table.
    pub(crate) fn empty(kind: &EntityKind) -> EntityState {
        EntityState::new(kind, "", i64::MIN, None)
    }

    /// The state without a key that [`EntityState::parts`] returned; `None` if it does not fit the definition.
    pub(crate) fn restore(kind: &EntityKind, newest_us: i64, states: &[u8]) -> Option<EntityState> {
        let state = EntityState::new(kind, "", newest_us, Some(states));
        state.is_complete(kind).then_some(state)
    }

    /// Time of the newest event, and the states of the slots.
    pub(crate) fn parts(&self) -> (i64, &[u8]) {
        (self.newest_us, self.split().1)
    }

    fn split(&self) -> (&[u8], &[u8]) {
        let Some((length, rest)) = self.data.split_first() else { return (&[], &[]) };
        rest.split_at_checked(usize::from(*length)).unwrap_or((rest, &[]))
    }

    fn key(&self) -> &[u8] {
        self.split().0
    }

    pub(crate) fn apply(&mut self, kind: &EntityKind, event: &Fields<'_>, received_at_us: i64) {
        self.newest_us = self.newest_us.max(event.occurred_at_us);
        // All slots grow by one allocation.
        let growth = self
            .slots(kind)
            .map(|(_, slot, state)| slot.part(event).map_or(0, |part| tiles::growth(slot, state, part)));
        let growth = growth.sum();
        self.data.reserve_exact(growth);
        let mut at = 1 + self.key().len();
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
        let mut rest = self.split().1;
        kind.slots.iter().enumerate().map(move |(position, slot)| {
            let (state, after) = rest.split_at_checked(tiles::length(slot, rest)).unwrap_or((rest, &[]));
            rest = after;
            (position, slot, state)
        })
    }

    /// Whether the bytes are the states of all slots.
    fn is_complete(&self, kind: &EntityKind) -> bool {
        let mut rest = Some(self.split().1);
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
    /// No entities of a kind. `salt` and the kind's position are for the hashes of keys.
    pub(crate) fn new(salt: u128, kind: usize) -> Entities {
        Entities { keys: HashTable::new(), salt, kind, bytes: 0 }
    }

    /// The state of a key with this hash.
    pub(crate) fn get(&self, hash: u64, key: &str) -> Option<&EntityState> {
        self.keys.find(hash, |state| state.key() == key.as_bytes())
    }

    /// Asks the processor to load the state of a key with this hash. It does not compare the key, so that the states of
    /// the other entities of an event load at the same time.
    pub(crate) fn prefetch(&self, hash: u64) {
        self.keys.find(hash, |state| {
            memory::prefetch_block::<PREFETCHED>(&state.data);
            true
        });
    }

    fn insert(&mut self, hash: u64, state: EntityState) {
        let Entities { keys, salt, kind, bytes } = self;
        *bytes += state.bytes();
        keys.insert_unique(hash, state, |state| state::hash(*salt, *kind, state.key()));
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Memory in bytes: keys and states with the allocator's share, and the table.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.keys.allocation_size()
    }

    /// Every key with the time of its newest event and its state.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, i64, &[u8])> {
        self.keys.iter().map(|state| {
            let (key, states) = state.split();
            (str::from_utf8(key).unwrap_or_default(), state.newest_us, states)
        })
    }

    /// Inserts the state of a key, as [`Entities::all`] returned it. Returns whether it fits the definition.
    pub(crate) fn restore(
        &mut self,
        kind: &EntityKind,
        (hash, key): (u64, &str),
        newest_us: i64,
        data: &[u8],
    ) -> bool {
        let state = EntityState::new(kind, key, newest_us, Some(data));
        let fits = key.len() <= MAX_KEY && state.is_complete(kind) && self.get(hash, key).is_none();
        if fits {
            self.insert(hash, state);
        }
        fits
    }

    /// Applies an event of the key.
    pub(crate) fn apply(
        &mut self,
        kind: &EntityKind,
        (hash, key): (u64, &str),
        event: &Fields<'_>,
        received_at_us: i64,
    ) {
        if let Some(state) = self.keys.find_mut(hash, |state| state.key() == key.as_bytes()) {
            let before = state.bytes();
            state.apply(kind, event, received_at_us);
            self.bytes = (self.bytes + state.bytes()).saturating_sub(before);
            return;
        }
        let mut state = EntityState::new(kind, key, i64::MIN, None);
        state.apply(kind, event, received_at_us);
        self.insert(hash, state);
    }

    /// Removes the state of a key. Returns whether there was any.
    pub(crate) fn remove(&mut self, hash: u64, key: &str) -> bool {
        let Ok(entry) = self.keys.find_entry(hash, |state| state.key() == key.as_bytes()) else {
            return false;
        };
        let (state, _) = entry.remove();
        self.bytes = self.bytes.saturating_sub(state.bytes());
        true
    }

    /// Removes the entities whose newest event is oldest, until at most `limit` bytes are left. Returns their number.
    pub(crate) fn evict(&mut self, limit: usize) -> u64 {
        let mut removed = 0;
        while self.bytes() > limit && !self.keys.is_empty() {
            // A sixteenth at a time, so that the cost of finding the oldest is shared by many removals.
            let mut newest: Vec<i64> = self.keys.iter().map(|state| state.newest_us).collect();
            let at = newest.len() / 16;
            let (_, threshold, _) = newest.select_nth_unstable(at);
            let threshold = *threshold;
            let Entities { keys, salt, kind, bytes } = self;
            keys.retain(|state| {
                let stays = state.newest_us > threshold;
                if !stays {
                    *bytes = bytes.saturating_sub(state.bytes());
                    removed += 1;
                }
                stays
            });
            // The table is a part of the memory.
            keys.shrink_to_fit(|state| state::hash(*salt, *kind, state.key()));
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::FeatureSet;
    use crate::event::Event;

    const SECOND: i64 = 1_000_000;

    /// An entity of the reference: key, time of the newest event, and bytes.
    type Known = (String, i64, usize);

    fn set() -> FeatureSet {
        let definition = r#"{"name": "s", "version": 1, "events": {"e": {"entities": ["card"], "accept_late": 9000000}},
            "features": [{"name": "n", "entity": "card", "event": "e", "aggregate": "count", "window": 86400}]}"#;
        FeatureSet::parse(definition.as_bytes()).unwrap()
    }

    /// Removes by definition: the oldest sixteenth, with all of the same age, until the bytes are within the limit.
    fn evict(known: &mut Vec<Known>, table: impl Fn(usize) -> usize, limit: usize) -> usize {
        let before = known.len();
        known.sort_by_key(|(_, newest, _)| *newest);
        while !known.is_empty()
            && known.iter().map(|(_, _, bytes)| bytes).sum::<usize>() + table(known.len()) > limit
        {
            let age = known[known.len() / 16].1;
            known.retain(|(_, newest, _)| *newest > age);
        }
        before - known.len()
    }

    #[test]
    fn the_entities_that_are_evicted_are_those_of_a_naive_reference() {
        let (set, mut state) = (set(), 11_u64);
        let kinds = EntityKind::all(&set);
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        for round in 0..60 {
            let mut entities = Entities::new(7, 0);
            let count = 1 + below(400);
            for number in 0..count {
                for _ in 0..1 + below(4) {
                    let key = format!("card-{number}");
                    let at = 1_800_000_000 * SECOND + below(40) as i64 * 3600 * SECOND;
                    let event = Event {
                        kind: "e",
                        id: "x",
                        occurred_at_us: at,
                        keys: &[("card", &key)],
                        numbers: &[],
                        texts: &[],
                    };
                    let hash = state::hash(7, 0, key.as_bytes());
                    let fields = Fields::new(&set, &event).unwrap();
                    entities.apply(&kinds[0], (hash, &key), &fields, at + 50 * 3600 * SECOND);
                }
            }
            let mut known: Vec<Known> = entities
                .keys
                .iter()
                .map(|one| (String::from_utf8(one.key().to_vec()).unwrap(), one.newest_us, one.bytes()))
                .collect();
            assert_eq!(
                entities.bytes,
                known.iter().map(|(_, _, bytes)| bytes).sum::<usize>(),
                "round {round}"
            );
            // The size of a table after it was shrunk to a number of entities.
            let table = |count: usize| HashTable::<EntityState>::with_capacity(count).allocation_size();
            let limit = entities.bytes() * below(100) as usize / 100;
            let expected = evict(&mut known, table, limit);
            assert_eq!(entities.evict(limit), expected as u64, "round {round}");
            let mut left: Vec<String> = entities.all().map(|(key, _, _)| key.to_owned()).collect();
            let mut kept: Vec<String> = known.into_iter().map(|(key, _, _)| key).collect();
            left.sort();
            kept.sort();
            assert_eq!(left, kept, "round {round}");
            assert!(entities.bytes() <= limit || left.is_empty(), "round {round}");
        }
    }
}
