//! The kinds of events of all sets, and the rules for an event.

use std::collections::{BTreeMap, BTreeSet};

use crate::SECOND;
use crate::error::{EventError, Refusal};
use crate::event::Event;
use crate::ids::{self, Ids};
use crate::shard;
use crate::state::SetState;

/// Limits on the length of an id, a key and a text in bytes.
const MAX_ID: usize = 80;
pub(crate) const MAX_KEY: usize = 128;
const MAX_TEXT: usize = 128;
/// Greatest time by which an event may be ahead of its receipt.
const AHEAD_US: i64 = 5 * SECOND;

/// A kind of events, as the sets together declare it.
#[derive(Debug)]
pub(crate) struct EventKind {
    entities: BTreeSet<String>,
    numbers: BTreeSet<String>,
    texts: BTreeSet<String>,
    accept_late_us: i64,
    pub(crate) ids: Ids,
    /// Number of ids that a shard of them remembers.
    pub(crate) ids_limit: usize,
    /// Positions of the sets that declare it.
    pub(crate) sets: Vec<usize>,
}

/// The kinds of all sets by name. `salt` is for the hashes of ids, which have this many bytes of memory together.
pub(crate) fn all(sets: &[SetState], salt: u128, bytes: u64) -> BTreeMap<String, EventKind> {
    let mut kinds: BTreeMap<String, EventKind> = BTreeMap::new();
    for (at, state) in sets.iter().enumerate() {
        for (name, event) in state.set.events() {
            let kind = kinds.entry(name.clone()).or_insert_with(|| EventKind {
                entities: BTreeSet::new(),
                numbers: BTreeSet::new(),
                texts: BTreeSet::new(),
                accept_late_us: 0,
                ids: Ids::new(0, salt, 0),
                ids_limit: 0,
                sets: Vec::new(),
            });
            kind.entities.extend(event.entities.iter().cloned());
            kind.numbers.extend(event.numbers.iter().cloned());
            kind.texts.extend(event.texts.iter().cloned());
            kind.accept_late_us = kind.accept_late_us.max(event.accept_late.saturating_mul(SECOND));
            kind.sets.push(at);
        }
    }
    let bytes = bytes / kinds.len().max(1) as u64;
    let shards = shard::count(bytes);
    for kind in kinds.values_mut() {
        kind.ids = Ids::new(kind.accept_late_us / SECOND, salt, shards);
        kind.ids_limit = ids::limit(bytes, shards);
    }
    kinds
}

/// The declaration of the kind of an event.
///
/// # Errors
/// No set declares the kind.
pub(crate) fn declared<'a>(
    kinds: &'a BTreeMap<String, EventKind>,
    event: &Event<'_>,
) -> Result<&'a EventKind, EventError> {
    kinds.get(event.kind).ok_or_else(|| {
        let known: Vec<&str> = kinds.keys().map(String::as_str).collect();
        Refusal::UnknownKind.error(format!(
            "kind {:?} is not declared; the feature sets of this server declare {}",
            shown(event.kind),
            known.join(", ")
        ))
    })
}

// === impl EventKind ===

impl EventKind {
    /// Checks an event of this kind.
    ///
    /// # Errors
    /// Returns the first rule that it breaks. Messages contain no key, text or id.
    pub(crate) fn check(&self, event: &Event<'_>, received_at_us: i64) -> Result<(), EventError> {
        let kind = event.kind;
        if event.id.is_empty() || event.id.len() > MAX_ID {
            let length = event.id.len();
            return Err(Refusal::Id.error(format!("id: {length} bytes; use 1 to {MAX_ID}")));
        }
        if event.keys.is_empty() {
            return Err(Refusal::NoKey.error("keys: none is given; state the key of at least one entity"));
        }
        for (entity, key) in event.keys {
            if !self.entities.contains(*entity) {
                let entity = shown(entity);
                return Err(Refusal::UnknownEntity.error(format!(
                    "keys: events of kind {kind:?} have no entity {entity:?}; correct the name"
                )));
            }
            if key.is_empty() || key.len() > MAX_KEY {
                let length = key.len();
                return Err(Refusal::Key
                    .error(format!("keys: that of {entity:?} has {length} bytes; use 1 to {MAX_KEY}")));
            }
        }
        for (field, value) in event.numbers {
            if !self.numbers.contains(*field) {
                return Err(unknown_field(kind, "number", field));
            }
            if !value.is_finite() {
                return Err(Refusal::Number.error(format!("numbers: {field:?} is not finite; leave it out")));
            }
        }
        for (field, text) in event.texts {
            if !self.texts.contains(*field) {
                return Err(unknown_field(kind, "text", field));
            }
            if text.len() > MAX_TEXT {
                let length = text.len();
                return Err(Refusal::Text
                    .error(format!("texts: {field:?} has {length} bytes; use at most {MAX_TEXT}")));
            }
        }
        if event.occurred_at_us > received_at_us.saturating_add(AHEAD_US) {
            return Err(Refusal::Future.error(
                "occurred_at_us: more than 5 s ahead of this server's clock; correct the sender's clock",
            ));
        }
        if received_at_us.saturating_sub(event.occurred_at_us) > self.accept_late_us {
            let days = self.accept_late_us as f64 / (86_400 * SECOND) as f64;
            return Err(Refusal::Late.error(format!(
                "occurred_at_us: older than {days} days, the limit of kind {kind:?}; leave the event out"
            )));
        }
        Ok(())
    }
}

fn unknown_field(kind: &str, what: &str, field: &str) -> EventError {
    let field = shown(field);
    Refusal::UnknownField
        .error(format!("{what}s: events of kind {kind:?} have no {what} field {field:?}; correct the name"))
}

/// The beginning of a name from outside, without control characters.
pub(crate) fn shown(name: &str) -> String {
    name.chars()
        .take(64)
        .map(|one| if one.is_control() { char::REPLACEMENT_CHARACTER } else { one })
        .collect()
}
