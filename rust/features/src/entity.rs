//! The entities of one name in one set: the features that a set declares for it, and the state of every key.

use std::collections::HashMap;

use crate::accumulate::Part;
use crate::definition::{Aggregate, Feature, FeatureSet, Window};
use crate::distinct;
use crate::event::Event;
use crate::tiles::Tiles;

/// Memory of an entity beside its key and its tiles, with its place in the map.
const ENTRY: usize = 96;

/// The features of the entities of one name.
#[derive(Debug)]
pub(crate) struct EntityKind {
    /// Name of the entity.
    pub(crate) name: String,
    /// The features, in the order of the definition.
    pub(crate) features: Vec<Window>,
}

/// The state of one key.
#[derive(Debug)]
pub(crate) struct EntityState {
    /// Time of the newest event.
    newest_us: i64,
    tiles: Box<[Tiles]>,
}

/// The states of the keys of one shard.
#[derive(Debug, Default)]
pub(crate) struct Entities {
    keys: HashMap<Box<str>, EntityState>,
    /// Memory in bytes.
    bytes: usize,
}

// === impl EntityKind ===

impl EntityKind {
    pub(crate) fn all(set: &FeatureSet) -> Vec<EntityKind> {
        let features = |entity: &str| {
            set.features()
                .iter()
                .filter_map(|feature| match feature {
                    Feature::Window(window) if window.entity == entity => Some(window.clone()),
                    _ => None,
                })
                .collect()
        };
        let kinds = set.entities().into_iter();
        kinds
            .map(|entity| EntityKind { name: entity.to_owned(), features: features(entity) })
            .filter(|kind| !kind.features.is_empty())
            .collect()
    }

    /// Whether a feature aggregates events of a kind.
    pub(crate) fn reads(&self, event: &str) -> bool {
        self.features.iter().any(|feature| feature.event == event)
    }
}

/// The part of an event that a feature aggregates; `None` if the event does not count for it.
fn part_of(window: &Window, event: &Event<'_>) -> Option<Part> {
    if window.event != event.kind {
        return None;
    }
    let holds = |(field, values): (&String, &Vec<String>)| {
        event.text(field).is_some_and(|text| values.iter().any(|value| value == text))
    };
    if !window.conditions.iter().all(holds) {
        return None;
    }
    let number = if window.aggregate.of_number() { event.number(&window.of)? } else { 1.0 };
    let place = if window.aggregate == Aggregate::Distinct {
        distinct::place(event.text(&window.of).or_else(|| event.key(&window.of))?)
    } else {
        (0, 0)
    };
    Some(Part { at_us: event.occurred_at_us, number, place })
}

// === impl EntityState ===

impl EntityState {
    fn new(kind: &EntityKind) -> EntityState {
        EntityState { newest_us: i64::MIN, tiles: kind.features.iter().map(Tiles::new).collect() }
    }

    /// The value of a feature by its position in the kind; `None` if it has its default.
    pub(crate) fn value(&self, kind: &EntityKind, feature: usize, now_us: i64) -> Option<f64> {
        self.tiles.get(feature)?.value(kind.features.get(feature)?, now_us)
    }

    fn bytes(&self) -> usize {
        self.tiles.len() * size_of::<Tiles>() + self.tiles.iter().map(Tiles::bytes).sum::<usize>()
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

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Applies an event of the key.
    pub(crate) fn apply(&mut self, kind: &EntityKind, key: &str, event: &Event<'_>, received_at_us: i64) {
        if !self.keys.contains_key(key) {
            let state = EntityState::new(kind);
            self.bytes += ENTRY + key.len() + state.bytes();
            self.keys.insert(key.into(), state);
        }
        let Some(state) = self.keys.get_mut(key) else { return };
        let before = state.bytes();
        state.newest_us = state.newest_us.max(event.occurred_at_us);
        for (tiles, window) in state.tiles.iter_mut().zip(&kind.features) {
            if let Some(part) = part_of(window, event) {
                tiles.add(window, part, received_at_us);
            }
        }
        self.bytes = (self.bytes + state.bytes()).saturating_sub(before);
    }

    /// Removes the entities whose newest event is oldest, until at most `limit` bytes are left. Returns their number.
    pub(crate) fn evict(&mut self, limit: usize) -> u64 {
        let mut removed = 0;
        while self.bytes > limit && !self.keys.is_empty() {
            // A sixteenth at a time, so that the cost of finding the oldest is shared by many removals.
            let mut newest: Vec<i64> = self.keys.values().map(|state| state.newest_us).collect();
            let at = newest.len() / 16;
            let (_, threshold, _) = newest.select_nth_unstable(at);
            let threshold = *threshold;
            let bytes = &mut self.bytes;
            self.keys.retain(|key, state| {
                let stays = state.newest_us > threshold;
                if !stays {
                    *bytes = bytes.saturating_sub(ENTRY + key.len() + state.bytes());
                    removed += 1;
                }
                stays
            });
        }
        removed
    }
}
