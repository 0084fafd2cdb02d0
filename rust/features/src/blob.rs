//! The state of one entity as a blob, for stores outside of this process.
//!
//! A blob is a version, the beginning of the digest of the feature set, the time of the newest event, the states of the
//! slots, and a CRC32C of all of these.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::SECOND;
use crate::definition::FeatureSet;
use crate::entity::EntityState;
use crate::error::{EventError, PlanError};
use crate::event::{Event, Fields};
use crate::ids::Ids;
use crate::kinds::{self, EventKind};
use crate::plan::{Known, Plan};
use crate::state::SetState;

/// The version of the form. Another form of the state needs another version.
const VERSION: u8 = 1;
/// Number of bytes of the digest of the set.
const DIGEST: usize = 8;
/// Bytes before the states of the slots.
const HEAD: usize = 1 + DIGEST + 8;
/// Bytes of the checksum.
const CHECKSUM: usize = 4;

/// Feature sets whose state is elsewhere: reads features from blobs, and applies events to blobs.
#[derive(Debug)]
pub struct Blobs {
    sets: Vec<SetState>,
    /// The beginning of the digest of each set.
    digests: Vec<[u8; DIGEST]>,
}

/// Why a blob is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlobError {
    /// It has another version, or is of another definition of the set.
    Version,
    /// Its checksum or its length is wrong.
    Corrupt,
}

/// The state of one entity that a read needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// Position of the feature set.
    pub set: usize,
    /// Name of the entity.
    pub name: &'a str,
    /// Position of the entity in [`Plan::entities`].
    pub entity: usize,
}

/// Events of one set, applied to copies of the states of their entities.
#[derive(Debug)]
pub struct Changes {
    blobs: Arc<Blobs>,
    kinds: BTreeMap<String, EventKind>,
    states: HashMap<(usize, String), Option<EntityState>>,
}

// === impl Blobs ===

impl Blobs {
    /// Feature sets, in the order of [`Part::set`].
    #[must_use]
    pub fn new(sets: Vec<FeatureSet>) -> Blobs {
        let start = |set: &FeatureSet| set.digest().first_chunk().copied().unwrap_or_default();
        let digests = sets.iter().map(start).collect();
        Blobs { sets: sets.into_iter().map(|set| SetState::new(set, 0, 0)).collect(), digests }
    }

    /// The sets.
    pub fn sets(&self) -> impl ExactSizeIterator<Item = &FeatureSet> {
        self.sets.iter().map(|state| &state.set)
    }

    /// Time in seconds after which a state without further events no longer affects a value.
    #[must_use]
    pub fn horizon(&self) -> i64 {
        self.sets.iter().map(SetState::horizon).max().unwrap_or(0)
    }

    /// Prepares a read of features, by name and digest.
    ///
    /// # Errors
    /// No set has a feature with this definition.
    pub fn plan(&self, features: &[(&str, [u8; 32])]) -> Result<Plan, PlanError> {
        Plan::new(&self.sets, features)
    }

    /// The states that a read needs, one for each entity of a set.
    pub fn parts<'a>(&'a self, plan: &'a Plan) -> impl ExactSizeIterator<Item = Part<'a>> {
        plan.groups().map(|(set, kind, entity)| {
            let name = self.sets.get(set).and_then(|state| state.kinds.get(kind));
            Part { set, name: name.map_or("", |kind| &kind.name), entity }
        })
    }

    /// Reads features as of `now_us`. `keys` are in the order of [`Plan::entities`]; `blobs` are in that of
    /// [`Blobs::parts`], and `None` is an entity without state. A blob that cannot be used counts as an entity without
    /// key, so that its features have their defaults; `errors` has its place.
    pub fn read(
        &self,
        plan: &Plan,
        keys: &[Option<&str>],
        blobs: &[Option<&[u8]>],
        now_us: i64,
        out: &mut [f32],
        errors: &mut Vec<(usize, BlobError)>,
    ) -> Known {
        let mut states = Vec::with_capacity(blobs.len());
        for (at, ((set, kind, _), blob)) in plan.groups().zip(blobs).enumerate() {
            let state = blob.map_or(Ok(None), |blob| self.decode(set, kind, blob).map(Some));
            states.push(state.unwrap_or_else(|error| {
                errors.push((at, error));
                None
            }));
        }
        let unusable = |at: usize| errors.iter().any(|(place, _)| *place == at);
        plan.read_states(&self.sets, keys, now_us, out, |at| {
            (!unusable(at)).then(|| states.get(at)?.as_ref())
        })
    }

    fn decode(&self, set: usize, kind: usize, blob: &[u8]) -> Result<EntityState, BlobError> {
        let kind = self.sets.get(set).and_then(|state| state.kinds.get(kind)).ok_or(BlobError::Version)?;
        let (checked, sum) = blob.split_last_chunk::<CHECKSUM>().ok_or(BlobError::Corrupt)?;
        if crc32c::crc32c(checked) != u32::from_le_bytes(*sum) {
            return Err(BlobError::Corrupt);
        }
        let (head, data) = checked.split_at_checked(HEAD).ok_or(BlobError::Corrupt)?;
        let (version, rest) = head.split_first().ok_or(BlobError::Corrupt)?;
        let (digest, newest) = rest.split_at_checked(DIGEST).ok_or(BlobError::Corrupt)?;
        if *version != VERSION || self.digests.get(set).is_none_or(|expected| expected != digest) {
            return Err(BlobError::Version);
        }
        let newest_us = newest.try_into().map(i64::from_le_bytes).map_err(|_| BlobError::Corrupt)?;
        EntityState::restore(kind, newest_us, data).ok_or(BlobError::Corrupt)
    }

    fn encode(&self, set: usize, state: &EntityState) -> Vec<u8> {
        let (newest_us, data) = state.parts();
        let mut blob = Vec::with_capacity(HEAD + data.len() + CHECKSUM);
        blob.push(VERSION);
        blob.extend_from_slice(&self.digests.get(set).copied().unwrap_or_default());
        blob.extend_from_slice(&newest_us.to_le_bytes());
        blob.extend_from_slice(data);
        blob.extend_from_slice(&crc32c::crc32c(&blob).to_le_bytes());
        blob
    }
}

// === impl Changes ===

impl Changes {
    /// Changes of the only set of `blobs`.
    #[must_use]
    pub fn new(blobs: Arc<Blobs>) -> Changes {
        Changes { kinds: kinds::all(&blobs.sets, 0, 0), blobs, states: HashMap::new() }
    }

    /// Checks an event.
    ///
    /// # Errors
    /// The event breaks a rule, as [`crate::Store::record`] checks it.
    pub fn check(&self, event: &Event<'_>, received_at_us: i64) -> Result<(), EventError> {
        kinds::declared(&self.kinds, event)?.check(event, received_at_us)
    }

    /// Time in microseconds for which the ids of a kind are remembered.
    #[must_use]
    pub fn remember_us(&self, kind: &str) -> i64 {
        self.kinds.get(kind).map_or(0, |kind| kind.ids.remember_us())
    }

    /// The name that an id has in a store: the first half of a SHA-256 of kind and id.
    #[must_use]
    pub fn id_of(kind: &str, id: &str) -> [u8; 16] {
        Ids::name_of(kind, id)
    }

    /// The entities whose state an event changes: the position and the name of the entity, and the key.
    pub fn entities<'s, 'e>(
        &'s self,
        event: &Event<'e>,
    ) -> impl Iterator<Item = (usize, &'s str, &'e str)> + use<'s, 'e> {
        let set = self.blobs.sets.first();
        let event = *event;
        let read = set.and_then(|state| state.set.events().keys().position(|kind| *kind == event.kind));
        let kinds = set.map_or(&[][..], |state| &state.kinds);
        kinds.iter().enumerate().filter_map(move |(at, kind)| {
            kind.reads(read?).then(|| Some((at, kind.name.as_str(), event.key(&kind.name)?)))?
        })
    }

    /// Gives the state of an entity before events are applied; `None` if it has none. A blob that cannot be used is
    /// replaced by the state of an entity without events.
    ///
    /// # Errors
    /// Returns why the blob cannot be used.
    pub fn load(&mut self, entity: usize, key: &str, blob: Option<&[u8]>) -> Result<(), BlobError> {
        let state = blob.map(|blob| self.blobs.decode(0, entity, blob)).transpose();
        let (state, result) = match state {
            Ok(state) => (state, Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.states.insert((entity, key.to_owned()), state);
        result
    }

    /// Applies an event to the states that were loaded for its entities.
    pub fn apply(&mut self, event: &Event<'_>, received_at_us: i64) {
        let Some(set) = self.blobs.sets.first() else { return };
        let Some(fields) = Fields::new(&set.set, event) else { return };
        for (at, kind) in set.kinds.iter().enumerate().filter(|(_, kind)| kind.reads(fields.kind)) {
            let Some(key) = event.key(&kind.name) else { continue };
            let Some(state) = self.states.get_mut(&(at, key.to_owned())) else { continue };
            state.get_or_insert_with(|| EntityState::empty(kind)).apply(kind, &fields, received_at_us);
        }
    }

    /// Takes the blobs of all states that were loaded: position of the entity, key and blob.
    pub fn take(&mut self) -> Vec<(usize, String, Vec<u8>)> {
        let states = self.states.drain();
        let blobs = &self.blobs;
        states
            .filter_map(|((entity, key), state)| Some((entity, key, blobs.encode(0, state.as_ref()?))))
            .collect()
    }

    /// The names of the entities, by their position.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.blobs.sets.iter().take(1).flat_map(|state| &state.kinds).map(|kind| kind.name.as_str())
    }

    /// Name and version of the set.
    #[must_use]
    pub fn label(&self) -> String {
        self.blobs.sets().next().map(FeatureSet::label).unwrap_or_default()
    }

    /// Forgets all states.
    pub fn clear(&mut self) {
        self.states.clear();
    }

    /// Time in microseconds for which a blob without further events is kept.
    #[must_use]
    pub fn keep_us(&self) -> i64 {
        self.blobs.horizon().saturating_mul(SECOND)
    }
}
